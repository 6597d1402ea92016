"""Values that must not change without a decision: batches, initial weights, dropout, losses and samples.

A test compares them with `tests/golden.json`. To renew the file, and say why in the commit:

    .venv/bin/python tests/support/golden.py
"""

import json
from pathlib import Path
from typing import Any

import minigpt.model.device as device  # isort: skip - sets OpenMP's variables before PyTorch is imported
import numpy as np
from numpy.typing import NDArray

from minigpt.config.resolve import resolve
from minigpt.config.schema import RunConfig, SampleConfig
from minigpt.sampling.generate import generate_ids
from minigpt.text.batches import batch_at
from minigpt.training.learner import Learner

FILE = Path(__file__).resolve().parents[1] / "golden.json"
VOCAB_SIZE = 11
FAMILIES = ("classic", "modern", "lstm")
SETTINGS: dict[str, Any] = {
    "model.n_layer": 2,
    "model.n_embd": 16,
    "model.context": 16,
    "model.dropout": 0.2,
    "train.batch_size": 4,
    "runtime.device": "cpu",
    "runtime.dtype": "float32",
    "runtime.compile": False,
    "runtime.threads": 1,
    "runtime.kernels": "cpu",
}


class FixedLogits:
    """A model whose logits depend on the last token only."""

    context = 8

    def start(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the logits after sequences (B, T)."""
        return self.step(ids[:, -1])

    def step(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the logits (B, V) after one token of each sequence (B)."""
        tokens = np.arange(VOCAB_SIZE)
        return ((3 * ids[:, None] + 5 * tokens) % 7 / 2).astype(np.float32)


def batch_starts() -> list[list[int]]:
    """Return where the sequences of the first three batches begin. They reach into the third epoch."""
    tokens = np.arange(150, dtype=np.uint16)
    return [batch_at(tokens, 16, 6, 1, step)[0][:, 0].tolist() for step in range(3)]


def sampled() -> list[list[int]]:
    """Return 40 tokens: two samples with and two without filters."""
    found = []
    for settings in (SampleConfig(length=10, seed=1), SampleConfig(length=10, seed=2, top_k=8, top_p=0.9, min_p=0.02)):
        steps = generate_ids(FixedLogits(), np.array([1]), settings, num_samples=2)
        found += np.stack([tokens for tokens, _ in steps], axis=1).tolist()
    return found


def learner(family: str, seed: int = 1337) -> Learner:
    """Return a new learner of a small model."""
    config: RunConfig = resolve(("golden", SETTINGS | {"model.family": family, "train.seed": seed})).config
    return Learner(config, VOCAB_SIZE, device.choose_runtime(config.runtime))


def initial_weights(seed: int) -> list[float]:
    """Return the first four weights of the embedding."""
    weights: list[float] = next(learner("modern", seed).model.parameters()).flatten()[:4].tolist()
    return weights


def losses(family: str) -> list[float]:
    """Return the losses of five steps with dropout."""
    tokens = np.random.default_rng(1).integers(VOCAB_SIZE, size=300).astype(np.uint16)
    trained = learner(family)
    return [trained.step(tokens, number, 1.0)[0].item() for number in range(5)]


def values() -> dict[str, Any]:
    """Return everything that `tests/golden.json` holds. Sets torch's number of threads."""
    return {
        "batch starts": batch_starts(),
        "sampled": sampled(),
        "initial weights": {str(seed): initial_weights(seed) for seed in (1, 2)},
        "losses": {family: losses(family) for family in FAMILIES},
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(values(), indent=1) + "\n", encoding="utf-8")
