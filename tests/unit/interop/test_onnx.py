"""ONNX: ONNX Runtime computes what minigpt computes."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exports import made
from small_models import SWITCHES, switch_names

from minigpt.cli.hints import error_line
from minigpt.errors import NoCounterpartError, UserError
from minigpt.interop import onnx
from minigpt.interop.export import check, export
from minigpt.model.load import load_model
from minigpt.storage.checkpoint import Checkpoint
from minigpt.text.tokenizer import ByteTokenizer, CharTokenizer

pytest.importorskip("onnxscript")
runtime = pytest.importorskip("onnxruntime")
TEXT = "Grüße an alle"


def compare(loaded: Checkpoint, folder: Path) -> None:
    """Compare the graph with minigpt's model, for several shapes."""
    onnx.write(loaded, folder)
    model, context = load_model(loaded), loaded.config.model.context
    session = runtime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    for B, T in ((1, 1), (3, 1), (1, min(2, context)), (3, context)):
        ids = np.random.default_rng(0).integers(loaded.tokenizer.vocab_size, size=(B, T))
        with torch.inference_mode():
            expected = model(torch.tensor(ids)).numpy()
        (logits,) = session.run(None, {"ids": ids})
        np.testing.assert_allclose(logits, expected, atol=1e-4)


# These combinations have every value of every switch.
@pytest.mark.slow
@pytest.mark.parametrize("switches", SWITCHES[::21], ids=switch_names)
def test_the_graph_computes_the_same_as_the_model(switches: dict[str, Any], tmp_path: Path) -> None:
    compare(made(CharTokenizer(TEXT), **switches), tmp_path)


@pytest.mark.slow
def test_a_context_of_one_and_one_head_are_sizes_like_others(tmp_path: Path) -> None:
    compare(made(CharTokenizer(TEXT), context=1, n_head=1, n_layer=1), tmp_path)


@pytest.mark.slow
def test_an_export_agrees_and_its_usage_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    loaded, out = made(ByteTokenizer(), n_layer=1), tmp_path / "out"
    export(loaded, "onnx", out)
    assert capfd.readouterr() == ("", "")
    assert str(Path(onnx.__file__).parents[1]).encode() not in (out / "model.onnx").read_bytes()
    agreement = check(loaded, "onnx", out)
    assert agreement
    assert agreement.same_text
    assert agreement.difference < 1e-4
    names: dict[str, Any] = {}
    exec(onnx.usage(out, ""), names)  # noqa: S102
    assert names["logits"].shape == (1, 1, 256)


def test_a_recurrent_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoCounterpartError, match="no counterpart of model") as refused:
        export(made(CharTokenizer(TEXT), family="gru"), "onnx", tmp_path / "out")
    assert "--to safetensors" in str(error_line(refused.value, "export"))


@pytest.mark.parametrize(("to", "package"), [("onnx", "onnxscript"), ("gguf", "gguf")])
def test_a_missing_package_is_named(to: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"package {package} is not installed; to install it: pip install {package}$"):
        export(made(CharTokenizer(TEXT)), to, tmp_path / "out")
