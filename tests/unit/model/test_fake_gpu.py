"""What can run on a GPU keeps its tensors on one device. Checked on a fake GPU, because CI has no real one."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fake_gpu import fake_gpu
from small_models import SWITCHES, V, small_config, some_ids, switch_names

from minigpt.config.schema import OptimConfig
from minigpt.interpret.extract import extract
from minigpt.model.gpt import GPT
from minigpt.text.tokenizer import CharTokenizer
from minigpt.training.evaluate import MAX_TOKENS, evaluate
from minigpt.training.optim import Optimizer

CHARS = CharTokenizer("abcdefghijklm")


def model_on(device: torch.device, **changes: Any) -> GPT:
    with device:
        return GPT(small_config("modern", **changes), V)


def train_step(device: torch.device, **switches: Any) -> None:
    model = model_on(device, dropout=0.1, **switches)
    ids = some_ids(2, 11).to(device)
    assert F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).device == device
    for parameter in model.parameters():  # a process that has run a backward pass cannot run one on a new device type
        parameter.grad = torch.zeros_like(parameter)
    Optimizer(model, OptimConfig()).step(1.0)


def run_evaluate(device: torch.device) -> None:
    assert evaluate(model_on(device), CHARS.encode("abcdefghijklm" * 3), CHARS).characters == 38


def run_extract(device: torch.device) -> None:
    model = model_on(device)
    seen = extract(model, np.arange(9))
    assert {seen.weights.device.type, seen.logits.device.type, seen.residual.device.type} == {"cpu"}


@pytest.fixture(autouse=True)
def batches_for_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MAX_TOKENS, "gpu", 20)


@pytest.mark.parametrize("switches", SWITCHES[::9], ids=switch_names)
def test_a_training_step_stays_on_the_gpu(switches: dict[str, Any]) -> None:
    """The forward pass with dropout, and an update."""
    with fake_gpu() as device:
        train_step(device, **switches)


@pytest.mark.parametrize("run", [run_evaluate, run_extract])
def test_stays_on_the_gpu(run: Callable[[torch.device], None]) -> None:
    with fake_gpu() as device:
        run(device)


@pytest.mark.parametrize("run", [train_step, run_evaluate, run_extract])
def test_a_tensor_left_on_the_cpu_is_found(
    run: Callable[[torch.device], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests above can fail."""
    embed = GPT.embed
    monkeypatch.setattr(GPT, "embed", lambda self, ids: embed(self, ids) + torch.zeros(1, ids.size(1), 1))
    with fake_gpu() as device, pytest.raises(RuntimeError, match="on the same device"):
        run(device)
