"""The GPT in NumPy, with a KV cache. `minigpt sample` runs it instead of PyTorch.

It computes the same function as model/gpt.py. A few changes to the weights make each step faster, and change the
logits only by rounding errors:

- The gain and bias of a norm are folded into the linear layer that follows it, if there is one.
- LayerNorm subtracts the mean. If everything written to the residual stream has zero mean, LayerNorm has nothing to
  subtract and becomes RMSNorm (`center_writing_weights` in https://transformerlensorg.github.io/TransformerLens).
- RoPE rotates pairs of values. Each pair is adjacent in memory, as one complex number. One multiplication rotates it
  (Su et al. 2021, https://arxiv.org/abs/2104.09864, section 3.2.1).
- Constant factors, such as the 1 / sqrt(D) of attention, are folded into the weights.

Symbols in shapes: B sequences, T new tokens in each, N = B T, S tokens so far in each, C width, H heads, D = C / H,
V vocabulary size.
"""

import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from minigpt.config.schema import ModelConfig
from minigpt.config.shapes import NORM_EPS, POSITION_BASE

Array = NDArray[np.float32]

QKV, QK_GAIN = ("attention.qkv.weight", "attention.qkv.bias"), "attention.qk_norm.weight"
WRITERS = ("attention.proj.weight", "attention.proj.bias", "mlp.down.weight", "mlp.down.bias")
"""The weights of a block that write to the residual stream."""
CHUNK = 64
"""Prompt tokens to process at once. More tokens need more memory for attention."""
ROWS, BLOCK = 10, 100_000
"""Up to this many rows and matrix elements, OpenBLAS multiplies twice as fast: it has a path for small matrices.

https://github.com/OpenMathLib/OpenBLAS/blob/develop/kernel/x86_64/sgemm_small_kernel_permit_skylakex.c
"""
SIMD = np.show_config(mode="dicts").get("SIMD Extensions", {})  # empty parts are missing
HAS_AVX512 = bool({"AVX512_SKX", "X86_V4"} & {*SIMD.get("baseline", ()), *SIMD.get("found", ())})
ROW_BY_ROW = platform.machine() in {"x86_64", "AMD64"} and not HAS_AVX512
"""Whether an x86 processor lacks this path for small matrices. Then few rows are faster one by one."""
MANY = 8
"""From this number of rows on, transposed weights are faster if `ROW_BY_ROW`."""


class Linear:
    """Map x (N, in) to x weight^T + bias (N, out)."""

    def __init__(self, weight: Array, bias: Array | None) -> None:
        """Store weight (out, in) and bias (out)."""
        size, inputs = weight.shape
        most = max(64, BLOCK // inputs)  # columns in a block at most; if possible, their number divides `size`
        width = next((n for n in range(most, most // 2, -1) if size % n == 0), math.ceil(size / math.ceil(size / most)))
        self.size, self.bias = size, bias
        self.weight = np.zeros((inputs, size + -size % width), np.float32)  # zeros fill the last block
        self.weight[:, :size] = weight.T
        self.blocks = self.weight.reshape(inputs, -1, width).swapaxes(0, 1)  # (blocks, in, width), a view

    @cached_property
    def transposed(self) -> Array:
        """The weight (out, in). It doubles the memory, so it is made when first needed."""
        return np.ascontiguousarray(self.weight.T)

    def __call__(self, x: Array) -> Array:
        y: Array
        if ROW_BY_ROW and len(x) >= MANY:
            y = np.ascontiguousarray(np.dot(self.transposed, x.T).T)
        elif not 1 < len(x) <= ROWS:
            y = np.dot(x, self.weight)
        elif ROW_BY_ROW:
            y = np.stack([np.dot(row, self.weight) for row in x])
        else:
            y = np.matmul(x, self.blocks).swapaxes(0, 1).reshape(len(x), -1)
        y = y[:, : self.size]
        if self.bias is not None:
            y += self.bias
        return y


@dataclass(frozen=True)
class Layer:
    """The weights of one block."""

    qkv: Linear
    qk_gain: Array | None
    proj: Linear
    up: Linear
    down: Linear


class Engine:
    """Predict the next token of B sequences of equal length."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Array]) -> None:
        """Prepare a model. `weights` uses the names in `GPT.state_dict()`. The engine does not change the arrays."""
        self.context, self.n_head, self.activation = config.context, config.n_head, config.activation
        self.norm_eps, self.qk_eps = config.n_embd * NORM_EPS[config.norm], config.head_size * NORM_EPS["rmsnorm"]
        self.layers = [_layer(config, weights, f"blocks.{index}.") for index in range(config.n_layer)]
        self.unembed = _linear(weights, "norm", "token_embedding")  # one tied matrix for input and output
        self.embedding = weights["token_embedding.weight"]  # (V, C)
        self.positions = self.rotations = None
        if config.position == "learned":
            self.positions = weights["position_embedding.weight"]  # (context, C)
        if config.position == "sinusoidal":  # Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.5
            theta = angles(config.context, config.n_embd)
            self.embedding = self.embedding * math.sqrt(config.n_embd)
            self.positions = np.stack((np.sin(theta), np.cos(theta)), -1).reshape(len(theta), -1).astype(np.float32)
        if config.position == "rotary":
            turns = np.exp(1j * angles(config.context, config.head_size))
            self.rotations = turns.astype(np.complex64)[:, None, None]  # (context, 1, 1, D / 2)
        if config.norm == "layernorm":
            self.embedding = _centered(self.embedding.T).T
            self.positions = None if self.positions is None else _centered(self.positions.T).T

    def start(self, ids: NDArray[np.int64]) -> Array:
        """Start new sequences (B, T), and return the logits (B, V) of the next token."""
        B, T = ids.shape
        shape = (2, len(self.layers), B, self.n_head, self.context, self.embedding.shape[1] // self.n_head)
        self.keys, self.values = np.empty(shape, np.float32)  # (L, B, H, context, D) each
        self.length = 0
        for first in range(0, T, CHUNK):
            logits = self._forward(ids[:, first : first + CHUNK])
        return logits

    def step(self, ids: NDArray[np.int64]) -> Array:
        """Append one token to each sequence (B), and return the logits (B, V) of the next token."""
        return self._forward(ids[:, None])

    def _forward(self, ids: NDArray[np.int64]) -> Array:
        """Append tokens (B, T) to the sequences, and return the logits (B, V) of the next token."""
        B, T = ids.shape
        start, end = self.length, self.length + T
        x = self.embedding[ids]  # (B, T, C)
        if self.positions is not None:
            x += self.positions[start:end]
        x = x.reshape(B * T, -1)  # (N, C)
        for layer, keys, values in zip(self.layers, self.keys, self.values, strict=True):
            heads = layer.qkv(_normalize(x, self.norm_eps)).reshape(B, T, 3, self.n_head, -1)
            qk = heads[:, :, :2]  # (B, T, 2, H, D)
            if layer.qk_gain is not None:
                qk *= layer.qk_gain / np.sqrt(np.vecdot(qk, qk)[..., None] + self.qk_eps)
            if self.rotations is not None:
                pairs = qk.view(np.complex64)  # (B, T, 2, H, D / 2)
                pairs *= self.rotations[start:end]
            q, k, v = heads.transpose(2, 0, 3, 1, 4)  # (B, H, T, D) each
            keys[:, :, start:end] = k
            values[:, :, start:end] = v
            scores = q @ keys[:, :, :end].swapaxes(2, 3)  # (B, H, T, S)
            if T > 1:
                scores += np.triu(np.full((T, end), -np.inf, np.float32), start + 1)  # hide later tokens
            scores -= scores.max(-1, keepdims=True)
            np.exp(scores, out=scores)
            y = scores @ values[:, :, :end]  # (B, H, T, D)
            y /= scores.sum(-1, keepdims=True)
            x += layer.proj(y.swapaxes(1, 2).reshape(B * T, -1))
            x += layer.down(_activate(layer.up(_normalize(x, self.norm_eps)), self.activation))
        self.length = end
        return self.unembed(_normalize(x.reshape(B, T, -1)[:, -1], self.norm_eps))


def _normalize(x: Array, eps: float) -> Array:
    """Return x (N, C) / sqrt(|x|^2 + eps). The next matrix includes the factor sqrt(C) that makes this RMSNorm."""
    size = np.vecdot(x, x)  # (N)
    size += eps
    y: Array = x / np.sqrt(size, out=size)[:, None]
    return y


def _activate(h: Array, activation: str) -> Array:
    """Return the activation of h (N, M), or of its two halves for SwiGLU. Results are doubled, except for relu2."""
    if activation == "relu2":
        np.maximum(h, 0, out=h)
        h *= h
        return h
    if activation == "swiglu":  # g u sigmoid(g) = g u (1 + tanh(g / 2)) / 2
        g, u = np.split(h, 2, axis=1)
        gate: Array = np.tanh(g * 0.5)
        h = g * u
    elif activation == "gelu":  # Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415
        gate = h * h
        gate *= 0.044715 * math.sqrt(2 / math.pi)
        gate += math.sqrt(2 / math.pi)
        gate *= h
        np.tanh(gate, out=gate)
    elif activation != "gelu_exact":
        raise ValueError(activation)
    else:
        gate = erf(h * math.sqrt(0.5)).astype(np.float32)
    gate += 1
    gate *= h
    return gate


def erf(x: Array) -> NDArray[np.float64]:
    """Return the error function to within 1e-7, using the rational approximation of Eigen and XLA.

    https://github.com/openxla/xla/blob/main/xla/hlo/builder/lib/math.cc
    """
    x = np.clip(x, -4, 4)
    square = x * x
    y: NDArray[np.float64] = x * np.polyval(ERF_NUMERATOR, square) / np.polyval(ERF_DENOMINATOR, square)
    return y


ERF_NUMERATOR = [
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
]  # fmt: skip
ERF_DENOMINATOR = [
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03, -1.42647390514189e-02,
]  # fmt: skip


def _layer(config: ModelConfig, weights: Mapping[str, Array], prefix: str) -> Layer:
    """Return the block whose weight names begin with `prefix`."""
    block = {name[len(prefix) :]: weight for name, weight in weights.items() if name.startswith(prefix)}
    for change in (pair_rotary, fold_scales, center_writers):
        block |= change(config, block)
    mlp = ("mlp.gate", "mlp.up") if config.activation == "swiglu" else ("mlp.up",)
    return Layer(
        qkv=_linear(block, "norm1", "attention.qkv"),
        qk_gain=block.get(QK_GAIN),
        proj=_linear(block, None, "attention.proj"),
        up=_linear(block, "norm2", *mlp),
        down=_linear(block, None, "mlp.down"),
    )


def pair_rotary(config: ModelConfig, block: Mapping[str, Array]) -> dict[str, Array]:
    """Return weights and gains with the pair i, i + D / 2 of the queries and keys of each head at 2 i, 2 i + 1."""
    if config.position != "rotary":
        return {}
    H, D = config.n_head, config.head_size
    pairs, order = np.arange(D).reshape(2, -1).T.ravel(), np.arange(3 * H * D).reshape(3, H, D)
    order[:2] = order[:2, :, pairs]
    changed = {name: block[name].T[..., order.ravel()].T for name in QKV if name in block}
    return changed | ({QK_GAIN: block[QK_GAIN][pairs]} if QK_GAIN in block else {})


def fold_scales(config: ModelConfig, block: Mapping[str, Array]) -> dict[str, Array]:
    """Return the weights that include the factors of attention, of the norm of queries and keys, and of `_activate`."""
    H, D, changed = config.n_head, config.head_size, dict[str, Array]()
    if QK_GAIN in block:  # sqrt(D) from the RMSNorm of q, sqrt(D) from that of k, 1 / sqrt(D) from attention
        changed[QK_GAIN] = np.stack((block[QK_GAIN], block[QK_GAIN] * math.sqrt(D)))[:, None]  # (2, 1, D)
    else:
        scale = np.repeat(np.array([1 / math.sqrt(D), 1, 1], np.float32), H * D)
        changed = {name: (block[name].T * scale).T for name in QKV if name in block}
    if config.activation != "relu2":
        changed["mlp.down.weight"] = block["mlp.down.weight"] * 0.5
    return changed


def center_writers(config: ModelConfig, block: Mapping[str, Array]) -> dict[str, Array]:
    """Return the weights that write to the residual stream, less the mean that LayerNorm would subtract."""
    return {name: _centered(block[name]) for name in WRITERS if name in block and config.norm == "layernorm"}


def _linear(weights: Mapping[str, Array], norm: str | None, *names: str) -> Linear:
    """Stack the matrices `names`, and fold in the gain and bias of the preceding norm."""
    weight = np.concatenate([weights[f"{name}.weight"] for name in names])  # (out, in)
    bias = np.concatenate([weights[f"{name}.bias"] for name in names]) if f"{names[0]}.bias" in weights else None
    if f"{norm}.bias" in weights:
        shift = weight @ weights[f"{norm}.bias"]
        bias = shift if bias is None else bias + shift
    if norm:
        weight *= weights[f"{norm}.weight"] * math.sqrt(weight.shape[1])
    return Linear(weight, bias)


def _centered(weight: Array) -> Array:
    """Subtract the mean over C from weights (C, ...) that write to the residual stream."""
    centered: Array = weight - weight.mean(0)
    return centered


def angles(context: int, size: int) -> NDArray[np.float64]:
    """Return the angles of RoPE and of sinusoidal encodings, (context, size / 2)."""
    frequencies = POSITION_BASE ** (-np.arange(0, size, 2) / size)
    theta: NDArray[np.float64] = np.arange(context)[:, None] * frequencies
    return theta
