"""ONNX: ONNX Runtime computes what minigpt computes, at once and step by step."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exports import made
from small_models import SWITCHES, switch_names

from minigpt.cli.hints import error_line
from minigpt.config.schema import SampleConfig
from minigpt.errors import NoCounterpartError, UserError
from minigpt.interop import onnx
from minigpt.interop.export import check, export
from minigpt.model.load import load_model
from minigpt.sampling.generate import generate
from minigpt.sampling.load import load_engine
from minigpt.storage.checkpoint import Checkpoint
from minigpt.text.tokenizer import ByteTokenizer, CharTokenizer

pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
TEXT = "Grüße an alle"


def session(folder: Path, name: str) -> Any:
    return runtime.InferenceSession(folder / name, providers=["CPUExecutionProvider"])


def compare(loaded: Checkpoint, folder: Path) -> None:
    """Compare both graphs in `folder` with minigpt's model, for several shapes."""
    onnx.write(loaded, folder)
    model, config = load_model(loaded), loaded.config.model
    whole, step, rng = session(folder, "model.onnx"), session(folder, "step.onnx"), np.random.default_rng(0)
    for B, T in ((1, 1), (3, 1), (1, min(2, config.context)), (3, config.context)):
        ids = rng.integers(loaded.tokenizer.vocab_size, size=(B, T))
        with torch.inference_mode():
            expected = model(torch.tensor(ids)).numpy()
        (logits,) = whole.run(None, {"ids": ids})
        np.testing.assert_allclose(logits, expected, atol=1e-4)
        # A cache may hold anything at positions that are still to come.
        shape = (config.n_layer, 2, B, config.n_head, config.context, config.head_size)
        cache = rng.normal(0, 100, shape).astype(np.float32)
        for t in range(T):
            logits, cache = step.run(None, {"ids": ids[:, t], "position": np.array(t), "cache": cache})
            np.testing.assert_allclose(logits, expected[:, t], atol=1e-4)


# Every fifth combination still has every pair of values of any two switches.
@pytest.mark.parametrize("switches", SWITCHES[::5], ids=switch_names)
def test_both_graphs_compute_the_same_as_the_model(switches: dict[str, Any], tmp_path: Path) -> None:
    compare(made(CharTokenizer(TEXT), **switches), tmp_path)


def test_a_context_of_one_and_one_head_are_sizes_like_others(tmp_path: Path) -> None:
    compare(made(CharTokenizer(TEXT), context=1, n_head=1, n_layer=1), tmp_path)


@pytest.mark.parametrize("byte", [False, True])
def test_the_example_continues_a_text_beyond_the_context(byte: bool, tmp_path: Path) -> None:
    loaded = made(ByteTokenizer() if byte else CharTokenizer(TEXT), n_layer=1)
    export(loaded, "onnx", tmp_path / "out")
    agreement = check(loaded, "onnx", tmp_path / "out")
    assert agreement
    assert agreement.same_text
    assert agreement.difference < 1e-4
    settings = SampleConfig(temperature=0, length=25)
    greedy = "".join(char.text for char in generate(load_engine(loaded), loaded.tokenizer, "an", settings))
    command = [sys.executable, "-I", tmp_path / "out/sample.py", "an", "25", "0"]
    done = subprocess.run(command, capture_output=True, check=True, env={"PYTHONIOENCODING": "utf-8"})
    if not byte:  # half a character of random bytes may come out in two ways
        assert done.stdout.decode() == f"an{greedy}\n"
    assert done.stderr == b""
    empty = subprocess.run([*command[:3], "", "5"], capture_output=True, check=True, env={"PYTHONIOENCODING": "utf-8"})
    first = "\n" if byte else loaded.tokenizer.chars[0]
    assert empty.stdout.decode().startswith(first)


def test_a_recurrent_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoCounterpartError, match="no counterpart of model") as refused:
        export(made(CharTokenizer(TEXT), family="gru"), "onnx", tmp_path / "out")
    assert "--to safetensors" in str(error_line(refused.value, "export"))


@pytest.mark.parametrize("name", ["onnx", "gguf"])
def test_a_missing_package_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=rf"the package {name} is not installed; to install it: pip install {name}$"):
        export(made(CharTokenizer(TEXT)), name, tmp_path / "out")
