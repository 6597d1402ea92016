"""Export to ONNX, the file format of ONNX Runtime.

`model.onnx` maps a batch of texts to the logits at all positions. `step.onnx` maps one token of each text and a KV
cache to the logits of the next token and the new cache, which has a fixed size.

The graphs are made of ONNX operators (https://onnx.ai/onnx/operators/). Tracing the torch model with torch.onnx.export
gives the same results, but takes 10 seconds for a small model, and cannot export a cache that grows.

Letters in shapes: B batch, T new tokens, S tokens in the cache or text, C width, H heads, D = C / H, V vocabulary.
"""

import math
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minigpt.config.schema import ModelConfig
from minigpt.config.shapes import NORM_EPS
from minigpt.errors import NoCounterpartError
from minigpt.interop.card import optional
from minigpt.interop.logits import Logits
from minigpt.sampling.engine import angles
from minigpt.storage.checkpoint import Arrays, Checkpoint

PACKAGE = "onnxruntime"
PROGRAM = "ONNX Runtime"
OPSET, IR_VERSION = 20, 9
"""The first set of operators with GELU, and the version of the file format that came with it (2023)."""

EXAMPLE = '''\
"""Continue a text with NumPy and ONNX Runtime: python sample.py PROMPT [LENGTH] [TEMPERATURE]."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

folder = Path(__file__).resolve().parent
chars = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")).get("chars")  # none: tokens are bytes
defaults = (chars[0] if chars else "\\n", "200", "0.8")
prompt, length, temperature, *_ = *sys.argv[1:], *defaults[len(sys.argv) - 1 :]
prompt = prompt or defaults[0]
if chars and (unknown := {*prompt} - {*chars}):
    sys.exit(f"not in the vocabulary: {unknown}")
session = onnxruntime.InferenceSession(folder / "step.onnx", providers=["CPUExecutionProvider"])
layers, two, _, heads, context, size = session.get_inputs()[2].shape
cache = np.zeros((layers, two, 1, heads, context, size), np.float32)  # keys and values of one text
ids = [chars.index(char) for char in prompt] if chars else list(prompt.encode())
end, start, position = len(ids) + int(length), max(0, len(ids) - context), 0
while len(ids) < end:
    if position == context:  # the context is full: read its second half again, from position 0
        start, position = start + max(1, context // 2), 0
    for token in ids[start + position :]:
        feed = {"ids": np.array([token]), "position": np.array(position), "cache": cache}
        (logits,), cache = session.run(None, feed)
        position += 1
    noise = np.random.gumbel(size=logits.shape)  # the largest logit plus noise is a sample: the Gumbel-max trick
    ids.append(int((logits + float(temperature) * noise).argmax()))
text = "".join(chars[i] for i in ids) if chars else bytes(ids).decode(errors="replace")
print(text)
'''


def write(checkpoint: Checkpoint, folder: Path) -> None:
    """Write model.onnx, step.onnx, tokenizer.json and a program that samples, sample.py, into `folder`."""
    config = checkpoint.config.model
    if config.is_recurrent:
        raise NoCounterpartError(f"the export to ONNX has no counterpart of model.family={config.family}")
    onnx = optional("onnx")
    for name, step in (("model", False), ("step", True)):
        onnx.save(_Graph(config, checkpoint.weights).build(step), folder / f"{name}.onnx")
    (folder / "tokenizer.json").write_text(checkpoint.tokenizer.to_json(), encoding="utf-8")
    (folder / "sample.py").write_text(EXAMPLE, encoding="utf-8", newline="\n")


class _Graph:
    """An ONNX graph under construction. Its methods append operators and return the names of their results."""

    def __init__(self, config: ModelConfig, weights: Arrays) -> None:
        self.config, self.nodes = config, list[Any]()
        self.constants: dict[str, npt.NDArray[Any]] = {**weights}

    def add(self, operator: str, *inputs: str | npt.ArrayLike, output: str = "", **attributes: Any) -> str:
        """Append an operator. An input is the name of a result or of a weight, or a number or array."""
        from onnx import helper

        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        output = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [output], **attributes))
        return output

    def constant(self, value: npt.ArrayLike) -> str:
        array, name = np.asarray(value), f"constant_{len(self.constants)}"
        self.constants[name] = array.astype(np.float32 if array.dtype.kind == "f" else array.dtype)
        return name

    def build(self, step: bool) -> Any:
        """Return the model: all tokens of each text, or one `step` with a cache."""
        from onnx import TensorProto, checker, helper, numpy_helper

        config = self.config
        cache_shape: list[int | str] = []
        if step:
            cache_shape = [config.n_layer, 2, "batch", config.n_head, config.context, config.head_size]
            ids = self.add("Unsqueeze", "ids", [1])  # (B, 1)
            queries = self.add("Reshape", "position", [1])  # the positions of the new tokens, (T,)
            keys = self.constant(np.arange(config.context))  # the positions in the cache, (S,)
        else:
            ids = "ids"  # (B, T)
            queries = keys = self.add("Range", 0, self.add("Gather", self.add("Shape", ids), 1), 1)
        x, caches = self.embed(ids, queries), []
        for index in range(config.n_layer):
            past = self.add("Gather", "cache", index, axis=0) if step else ""
            x, cache = self.block(f"blocks.{index}.", x, queries, keys, past)
            caches.append(self.add("Unsqueeze", cache, [0]))
        x = self.norm("norm", x)
        if step:
            x = self.add("Squeeze", x, [1])
            self.add("Concat", *caches, axis=0, output="new_cache")
        self.add("MatMul", x, self.add("Transpose", "token_embedding.weight", perm=[1, 0]), output="logits")
        info, times = helper.make_tensor_value_info, [] if step else ["length"]
        inputs = [info("ids", TensorProto.INT64, ["batch", *times])]
        outputs = [info("logits", TensorProto.FLOAT, ["batch", *times, len(self.constants["token_embedding.weight"])])]
        if step:
            inputs += [info("position", TensorProto.INT64, []), info("cache", TensorProto.FLOAT, cache_shape)]
            outputs.append(info("new_cache", TensorProto.FLOAT, cache_shape))
        tensors = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph(self.nodes, "step" if step else "model", inputs, outputs, tensors)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="minigpt")
        checker.check_model(model)
        return model

    def embed(self, ids: str, positions: str) -> str:
        """Return x (B, T, C) for ids (B, T) at positions (T,)."""
        config = self.config
        x = self.add("Gather", "token_embedding.weight", ids)
        if config.position == "learned":
            x = self.add("Add", x, self.add("Gather", "position_embedding.weight", positions))
        if config.position == "sinusoidal":  # Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.5
            theta = angles(config.context, config.n_embd)
            table = np.stack((np.sin(theta), np.cos(theta)), axis=-1).reshape(len(theta), -1)
            x = self.add("Mul", x, math.sqrt(config.n_embd))
            x = self.add("Add", x, self.add("Gather", self.constant(table), positions))
        return x

    def block(self, prefix: str, x: str, queries: str, keys: str, past: str) -> tuple[str, str]:
        """Return the output (B, T, C) of a block for x (B, T, C), and its keys and values (2, B, H, S, D).

        Args:
            prefix: The beginning of the names of its weights.
            x: The residual stream.
            queries: The positions of x, (T,).
            keys: The positions of the keys, (S,).
            past: The keys and values so far (2, B, H, S, D), or "" if there are only new keys and values.
        """
        config = self.config
        H, D = config.n_head, config.head_size
        qkv = self.linear(f"{prefix}attention.qkv", self.norm(f"{prefix}norm1", x))
        qkv = self.add("Transpose", self.add("Reshape", qkv, [0, 0, 3, H, D]), perm=[2, 0, 3, 1, 4])  # (3, B, H, T, D)
        qk, v = self.part(qkv, 0, 0, 2), self.part(qkv, 0, 2, 3)
        if config.qk_norm:
            qk = self.rms_norm(f"{prefix}attention.qk_norm", qk)
        if config.position == "rotary":  # Su et al. 2021, https://arxiv.org/abs/2104.09864, section 3.4.2
            theta, a, b = angles(config.context, D), self.part(qk, -1, 0, D // 2), self.part(qk, -1, D // 2, D)
            cos, sin = (self.add("Gather", table, queries) for table in (np.cos(theta), np.sin(theta)))  # (T, D / 2)
            first = self.add("Sub", self.add("Mul", a, cos), self.add("Mul", b, sin))
            second = self.add("Add", self.add("Mul", a, sin), self.add("Mul", b, cos))
            qk = self.add("Concat", first, second, axis=-1)
        q, cache = self.part(qk, 0, 0, 1), self.add("Concat", self.part(qk, 0, 1, 2), v, axis=0)
        if past:
            is_new = self.add("Equal", self.add("Unsqueeze", keys, [1]), queries)  # (S, 1)
            cache = self.add("Where", is_new, cache, past)
        k, v = self.part(cache, 0, 0, 1), self.part(cache, 0, 1, 2)  # (1, B, H, S, D) each
        scores = self.add("MatMul", q, self.add("Transpose", k, perm=[0, 1, 2, 4, 3]))  # (1, B, H, T, S)
        is_past = self.add("LessOrEqual", keys, self.add("Unsqueeze", queries, [1]))  # (T, S)
        scores = self.add("Where", is_past, self.add("Mul", scores, 1 / math.sqrt(D)), -math.inf)
        y = self.add("MatMul", self.add("Softmax", scores, axis=-1), v)
        y = self.add("Transpose", self.add("Squeeze", y, [0]), perm=[0, 2, 1, 3])  # (B, T, H, D)
        x = self.add("Add", x, self.linear(f"{prefix}attention.proj", self.add("Reshape", y, [0, 0, config.n_embd])))
        mlp = self.mlp(f"{prefix}mlp.", self.norm(f"{prefix}norm2", x))
        return self.add("Add", x, mlp), cache

    def mlp(self, prefix: str, x: str) -> str:
        """Return the output (B, T, C) of the MLP for x (B, T, C)."""
        h = self.linear(f"{prefix}up", x)
        match self.config.activation:
            case "gelu":
                h = self.add("Gelu", h, approximate="tanh")
            case "gelu_exact":
                h = self.add("Gelu", h)
            case "relu2":
                h = self.add("Relu", h)
                h = self.add("Mul", h, h)
            case "swiglu":
                gate = self.linear(f"{prefix}gate", x)
                h = self.add("Mul", self.add("Mul", gate, self.add("Sigmoid", gate)), h)
        return self.linear(f"{prefix}down", h)

    def linear(self, name: str, x: str) -> str:
        """Return x (..., in) times a matrix (out, in), plus the bias if there is one."""
        y = self.add("MatMul", x, self.add("Transpose", f"{name}.weight", perm=[1, 0]))
        return self.add("Add", y, f"{name}.bias") if f"{name}.bias" in self.constants else y

    def norm(self, name: str, x: str) -> str:
        """Return the LayerNorm or RMSNorm of x (..., C)."""
        if self.config.norm == "rmsnorm":
            return self.rms_norm(name, x)
        bias = [f"{name}.bias"] if f"{name}.bias" in self.constants else []
        return self.add("LayerNormalization", x, f"{name}.weight", *bias, epsilon=NORM_EPS["layernorm"])

    def rms_norm(self, name: str, x: str) -> str:
        """Return x (..., n) divided by its root mean square, times the gains (n)."""
        square = self.add("ReduceMean", self.add("Mul", x, x), [-1])
        size = self.add("Sqrt", self.add("Add", square, NORM_EPS["rmsnorm"]))
        return self.add("Mul", self.add("Div", x, size), f"{name}.weight")

    def part(self, x: str, axis: int, start: int, end: int) -> str:
        """Return x[start:end] of one axis."""
        return self.add("Slice", x, [start], [end], [axis])


def load(folder: Path) -> Logits:
    """Return a function from token ids (T,) to logits (T, V), computed by ONNX Runtime from model.onnx."""
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    return lambda ids: session.run(None, {"ids": np.asarray(ids, dtype=np.int64)[None]})[0][0]


def usage(folder: Path, prompt: str) -> str:
    """Return the lines to paste that continue a text with NumPy and ONNX Runtime alone."""
    return f"pip install numpy onnxruntime\npython {shlex.quote((folder / 'sample.py').as_posix())}"
