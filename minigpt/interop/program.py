"""A NumPy program of thirty lines that computes the logits of a model from its exported weights.

The README.md of an export to safetensors shows it. The tests run it.
"""

from minigpt.config.schema import ModelConfig

_HEAD = """\
import math
import numpy as np
from safetensors.numpy import load_file

W = load_file("model.safetensors")

def linear(name, x):
    return x @ W[name + ".weight"].T{bias}
"""
_NORMS = {
    "layernorm": """
def norm(name, x):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * W[name + ".weight"]{bias}
""",
    "rmsnorm": "",
}
_RMS = """
def rms_norm(name, x):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * W[name + ".weight"]
"""
_ACTIVATIONS = {
    "gelu": "0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))",
    "gelu_exact": "0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))",
    "relu2": "np.maximum(x, 0) ** 2",
    "swiglu": "x / (1 + np.exp(-x))",
}
_ANGLES = """
def angles(T, size):
    return np.arange(T)[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)  # (T, size / 2)
"""
_ROPE = """
def rope(x):  # (heads, T, size)
    cos, sin = np.cos(angles(*x.shape[1:])), np.sin(angles(*x.shape[1:]))
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate((a * cos - b * sin, a * sin + b * cos), axis=-1)
"""
_POSITIONS = {
    "learned": '    x = x + W["position_embedding.weight"][:T]\n',
    "sinusoidal": """\
    sin_cos = np.stack((np.sin(angles(T, {C})), np.cos(angles(T, {C}))), axis=-1)
    x = x * math.sqrt({C}) + sin_cos.reshape(T, {C})
""",
    "rotary": "",
    "none": "",
}
_BODY = """
def logits(ids):  # (T,) to (T, {V}); T is at most {context}
    T = len(ids)
    x = W["token_embedding.weight"][ids]  # (T, {C})
{positions}\
    future = np.triu(np.full((T, T), -np.inf), 1)
    for block in (f"blocks.{{i}}." for i in range({layers})):
        qkv = linear(block + "attention.qkv", {norm}(block + "norm1", x))
        q, k, v = qkv.reshape(T, 3, {heads}, {D}).transpose(1, 2, 0, 3)  # (heads, T, {D}) each
{queries}\
        scores = q @ k.transpose(0, 2, 1) / math.sqrt({D}) + future
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        y = weights / weights.sum(-1, keepdims=True) @ v
        x = x + linear(block + "attention.proj", y.transpose(1, 0, 2).reshape(T, {C}))
        h = {norm}(block + "norm2", x)
        x = x + linear(block + "mlp.down", {mlp})
    return {norm}("norm", x) @ W["token_embedding.weight"].T
"""


def numpy_program(config: ModelConfig, vocab_size: int) -> str:
    """Return the program for a model with these settings: a function `logits` from ids (T,) to logits (T, V)."""
    if config.is_recurrent:
        return _recurrent(config, vocab_size)
    bias, is_rms = ' + W[name + ".bias"]' * config.bias, config.norm == "rmsnorm"
    queries = '        q, k = (rms_norm(block + "attention.qk_norm", x) for x in (q, k))\n' * config.qk_norm
    queries += "        q, k = rope(q), rope(k)\n" * (config.position == "rotary")
    activation = f"\ndef activation(x):\n    return {_ACTIVATIONS[config.activation]}\n"
    mlp = 'activation(linear(block + "mlp.up", h))'
    if config.activation == "swiglu":
        mlp = 'activation(linear(block + "mlp.gate", h)) * linear(block + "mlp.up", h)'
    body = _BODY.format(
        V=vocab_size, C=config.n_embd, D=config.head_size, context=config.context, layers=config.n_layer,
        heads=config.n_head, norm="rms_norm" if is_rms else "norm", queries=queries, mlp=mlp,
        positions=_POSITIONS[config.position].format(C=config.n_embd),
    )  # fmt: skip
    parts = (
        _HEAD.format(bias=bias),
        _NORMS[config.norm].format(bias=bias),
        _RMS * (is_rms or config.qk_norm),
        activation,
        _ANGLES * (config.position in ("sinusoidal", "rotary")),
        _ROPE * (config.position == "rotary"),
        body,
    )
    return "".join(parts)


_STEPS = {
    "rnn": "h = np.tanh(a + b)",
    "lstm": """\
i, f, g, o = np.split(a + b, 4)
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(cell)""",
    "gru": """\
(r, z, n), (rh, zh, nh) = np.split(a, 3), np.split(b, 3)
            new, keep = np.tanh(n + sigmoid(r + rh) * nh), sigmoid(z + zh)
            h = keep * h + (1 - keep) * new""",
}
_RECURRENT = """
def sigmoid(x):
    return 0.5 + 0.5 * np.tanh(0.5 * x)

def logits(ids):  # (T,) to (T, {V})
    x = W["token_embedding.weight"][ids] * math.sqrt({C})  # (T, {C})
    for layer in range({layers}):
        h, cell, states = np.zeros({C}), np.zeros({C}), []
        for vector in x:
            a = linear(f"blocks.{{layer}}", "ih", vector)
            b = linear(f"blocks.{{layer}}", "hh", h)
            {step}
            states.append(h)
        x = x + np.array(states) if layer else np.array(states)
    return x @ W["token_embedding.weight"].T
"""


def _recurrent(config: ModelConfig, vocab_size: int) -> str:
    head = _HEAD.replace("name, x", "layer, part, x").replace('name + ".weight"', 'f"{{layer}}.weight_{{part}}_l0"')
    bias = ' + W[f"{layer}.bias_{part}_l0"]' * config.bias
    body = _RECURRENT.format(V=vocab_size, C=config.n_embd, layers=config.n_layer, step=_STEPS[config.family])
    return head.format(bias=bias) + body
