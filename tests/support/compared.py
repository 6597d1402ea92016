"""Runs with made-up measurements, to compare."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from small_runs import make_config

from minigpt.config.resolve import flatten
from minigpt.interpret.comparison import Curve, Measured, decisive
from minigpt.storage.metadata import Environment, Metadata, TrainState
from minigpt.training.evaluate import EvalResult


def measured(
    name: str, *, loss: float = 1.5, bits: float | None = None, seed: int = 1, tokenizer: str = "char",
    val_fraction: float = 0.1, context: int = 16, n_layer: int = 2, fingerprint: str = "text", corpus: str = "a.txt",
    threads: int = 1, dtype: str = "float32", characters: int = 100, step: int = 8, steps: Sequence[float] = (0, 4, 8),
    parameters: int = 1000,
) -> Measured:  # fmt: skip
    """Return a run whose loss falls to `loss`, at a step per second."""
    settings: dict[str, Any] = {
        "train__seed": seed,
        "data__tokenizer": tokenizer,
        "data__val_fraction": val_fraction,
        "model__context": context,
        "model__n_layer": n_layer,
    }
    metadata = Metadata(
        corpus=corpus,
        fingerprint=fingerprint,
        vocab_size=30,
        parameters=parameters,
        runtime=Environment(device="cpu", dtype=dtype, compile=False, threads=threads, processor="Z80"),
        state=TrainState(step=step, seconds=8.0),
    )
    bits = loss / math.log(2) if bits is None else bits
    return Measured(
        name=name,
        checkpoint=Path(f"runs/{name}/checkpoints/step-00000008"),
        metadata=metadata,
        settings=decisive(flatten(make_config(**settings))),
        result=EvalResult(loss, bits, math.exp(loss), characters),
        curve=Curve(steps, steps, [loss + 8 - step for step in steps], 1000.0),
    )
