"""Export to ONNX, the file format of ONNX Runtime: torch.onnx.export traces the model."""

import logging
import warnings
from pathlib import Path

import numpy as np
import torch

from minigpt.errors import NoCounterpartError
from minigpt.interop.card import optional
from minigpt.interop.logits import Logits
from minigpt.model.gpt import use_kernels
from minigpt.model.kernels import TORCH
from minigpt.model.load import load_model
from minigpt.storage.checkpoint import Checkpoint

PACKAGE = "onnxruntime"
PROGRAM = "ONNX Runtime"


def write(checkpoint: Checkpoint, folder: Path) -> None:
    """Write model.onnx and tokenizer.json. The graph maps ids (batch, length) to logits (batch, length, V).

    The length is at most the context. There is no KV cache: each call computes the whole text.
    """
    config = checkpoint.config.model
    if config.is_recurrent:  # torch.onnx.export would fix the length of texts
        raise NoCounterpartError(f"the export to ONNX has no counterpart of model.family={config.family}")
    optional("onnxscript")  # which torch.onnx.export imports
    model = load_model(checkpoint)
    use_kernels(model, TORCH)  # torch.onnx.export cannot trace the others
    ids = torch.zeros(2, config.context, dtype=torch.long)  # a size of 1 would become a constant
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # hide a warning about torchvision
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model, (ids,), input_names=["ids"], output_names=["logits"],
            dynamic_shapes={"ids": {0: "batch", 1: "length"}}, dynamo=True, verbose=False,
        )  # fmt: skip
    assert program
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # paths of this machine
    program.save(folder / "model.onnx")
    (folder / "tokenizer.json").write_text(checkpoint.tokenizer.to_json(), encoding="utf-8")


def load(folder: Path) -> Logits:
    """Return a function from token ids (T,) to logits (T, V), computed by ONNX Runtime from model.onnx."""
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    return lambda ids: session.run(None, {"ids": np.asarray(ids, dtype=np.int64)[None]})[0][0]


def usage(folder: Path, prompt: str) -> str:
    """Return lines of Python that compute the logits of one text."""
    return f"""\
import onnxruntime
session = onnxruntime.InferenceSession({str(folder / "model.onnx")!r})
(logits,) = session.run(None, {{"ids": [[0]]}})  # token ids (batch, length); tokenizer.json has the vocabulary"""
