"""Runs of a fraction of a second, and how to compare them."""

import json
import math
import random
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from minigpt.config import resolve as configuration
from minigpt.config.schema import RunConfig
from minigpt.model.gpt import GPT
from minigpt.storage.metadata import read_metadata
from minigpt.storage.runs import best_step, checkpoint_steps, step_folder
from minigpt.text.dataset import TokenDataset, split
from minigpt.text.tokenizer import Ids, make_tokenizer
from minigpt.training.learner import Learner, make_learner
from minigpt.training.loop import Probe, Training
from minigpt.training.metrics import Metrics

SETTINGS = {
    "sample.preview": 0,
    "model.n_layer": 2,
    "model.n_head": 2,
    "model.n_embd": 16,
    "model.context": 16,
    "train.batch_size": 4,
    "train.steps": 12,
    "train.log_every": 3,
    "train.eval_every": 4,
    "train.save_every": 5,
    "runtime.device": "cpu",
    "runtime.dtype": "float32",
    "runtime.compile": False,
    "runtime.threads": 1,
}
TIMES = {"time", "time/seconds", "speed/memory_bytes"}


def make_config(**changes: Any) -> RunConfig:
    """Return the configuration of a short run. Write `train__steps=4` to change `train.steps`."""
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return configuration.resolve(("small", SETTINGS), ("test", dotted)).config


def make_data(text: str = "") -> TokenDataset:
    words = ["to", "be", "or", "not", "that", "is", "the", "question", "whether", "nobler"]
    text = text or " ".join(random.Random(0).choices(words, k=600))
    tokenizer = make_tokenizer("char", text)
    train_part, validation = split([tokenizer.encode(text)], 0.1)
    return TokenDataset(train_part, validation, tokenizer, "fingerprint", len(text))


def new_training(config: RunConfig, run: Path | None = None, data: TokenDataset | None = None) -> Training:
    """Return a new run before its first step."""
    data = data or make_data()
    return Training(config, run or Path(), data, make_learner(config, data))


def tensors(run: Path, step: int) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint, of the model and the optimizer."""
    folder = step_folder(run, step)
    return {**load_file(folder / "model.safetensors"), **load_file(folder / "optimizer.safetensors")}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def ending(run: Path) -> dict[str, Any]:
    """Return what two equal runs share to the last bit: the last and best checkpoint, and curves without times."""
    step = checkpoint_steps(run)[-1]
    folder = step_folder(run, step)
    meta = read_metadata(folder)
    state = asdict(meta.state)
    state.pop("seconds")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "model": (folder / "model.safetensors").read_bytes(),
        "optimizer": (folder / "optimizer.safetensors").read_bytes(),
        "state": state,
        "runtime": meta.runtime,
        "best": best_step(run),
        "curves": [
            {tag: value for tag, value in line.items() if tag not in TIMES and not tag.startswith("speed/")}
            for line in lines
        ],
    }


def stop_at(step: int, number: signal.Signals = signal.SIGINT) -> Probe:
    """Return a probe that sends this process a signal during the evaluation at `step`."""

    def probe(at: int, model: GPT, metrics: Metrics) -> None:
        if at == step:
            signal.raise_signal(number)

    return probe


def disturb(monkeypatch: pytest.MonkeyPatch, kinds: dict[int, str]) -> None:
    """Make the loss or the gradient of these steps not finite."""
    mean_loss, step, current = Learner.mean_loss, Learner.step, [0]

    def remember(self: Learner, tokens: Ids, number: int, lr_factor: float) -> Tensor:
        current[0] = number + 1
        return step(self, tokens, number, lr_factor)

    def disturbed(self: Learner, x: Tensor, y: Tensor) -> Tensor:
        value = mean_loss(self, x, y)
        kind = kinds.get(current[0])
        if kind == "gradient":
            return value + (self.model.norm.weight * 0).sum().sqrt()  # the value is 0, the derivative infinite
        return value * {"nan": math.nan, "inf": math.inf}.get(str(kind), 1.0)

    monkeypatch.setattr(Learner, "step", remember)
    monkeypatch.setattr(Learner, "mean_loss", disturbed)
