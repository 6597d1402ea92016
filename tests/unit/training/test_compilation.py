"""If compilation fails or does not pay, training continues without it and ends with the same weights."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import make_config, make_data, same, tensors
from torch import Tensor

from minigpt.model import device
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.training.compilation import Loss, compile_loss
from minigpt.training.loop import train

pytestmark = pytest.mark.usefixtures("quick_and_clean")


def fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError("no such instruction: bf16cvt\nand forty lines of generated code")


def break_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give torch.compile a backend that raises, like a broken compiler."""
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda loss: compile(loss, backend=fail))


def train_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: Any, wanted: Any) -> tuple[bool, bool]:
    """Train without compilation and with `compiler`; return whether the second compiled, and the weights agree."""
    for name in ("plain", "compiled"):
        (tmp_path / name).mkdir()
    train(make_config(model__dropout=0.1), tmp_path / "plain", make_data())
    compiler(monkeypatch)
    train(make_config(model__dropout=0.1, runtime__compile=wanted), tmp_path / "compiled", make_data())
    is_compiled = load_checkpoint(tmp_path / "compiled/checkpoints/step-00000012").metadata.runtime.compile
    return is_compiled, same(tensors(tmp_path / "plain", 12), tensors(tmp_path / "compiled", 12))


def test_a_failed_compilation_is_one_warning_and_the_plain_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    break_compiler(monkeypatch)
    weight, messages = torch.ones(2, requires_grad=True), list[str]()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return ((x * weight - y) ** 2).sum()

    assert compile_loss(loss, (torch.ones(2), torch.ones(2)), is_optional=True, log=messages.append) is loss
    (warning,) = (line for line in messages if "failed" in line)
    assert "no such instruction" in warning
    assert "\n" not in warning


def test_training_continues_after_a_failed_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint records that the run is not compiled, so a resume elsewhere gives the same result."""
    assert train_twice(tmp_path, monkeypatch, break_compiler, True) == (False, True)


@pytest.mark.parametrize(("wanted", "keeps"), [("auto", False), (True, True)])
def test_compilation_that_does_not_pay_is_kept_only_if_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Any, keeps: bool
) -> None:
    """For a model of 10.7 M parameters, compilation can make each step 1.3 times as long."""

    def slow_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
        def compile(loss: Loss) -> Loss:
            def compiled(x: Tensor, y: Tensor) -> Tensor:
                time.sleep(0.05)
                return loss(x, y)

            return compiled

        monkeypatch.setattr(torch, "compile", compile)
        monkeypatch.setattr(device, "COMPILE_FROM_SECONDS", 0.0)
        monkeypatch.setattr(device, "has_compiler", lambda kind: True)

    assert train_twice(tmp_path, monkeypatch, slow_compiler, wanted) == (keeps, True)
    assert torch.are_deterministic_algorithms_enabled() is keeps


def test_out_of_memory_is_not_a_failed_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "compile", lambda loss: exhausted)
    with pytest.raises(torch.OutOfMemoryError):
        compile_loss(exhausted, (torch.ones(2), torch.ones(2)), is_optional=False, log=print)
