"""What chapters 6 to 10 and 12 measure, mostly on runs of minigpt whose names start with `course-`."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from minigpt.course import letters
from minigpt.course.small_models import small_config
from minigpt.errors import RunFinishedError, UserError
from minigpt.interpret.gradient import gradient_by_distance, spread_windows
from minigpt.model.gpt import GPT
from minigpt.model.load import load_model, load_transformer
from minigpt.paths import RUNS, is_run
from minigpt.storage.checkpoint import Checkpoint, load_checkpoint
from minigpt.storage.runs import lock, new_run
from minigpt.text.dataset import load_dataset
from minigpt.training.loop import train
from minigpt.training.optim import NS_COEFFICIENTS, orthogonalize
from minigpt.training.setup import prepare_resume, prepare_run
from minigpt.training.signals import interrupt

BASE: dict[str, Any] = {
    "data.val_fraction": 0.02,
    "model.n_layer": 2,
    "model.n_embd": 64,
    "model.context": 64,
    "runtime.compile": "false",
    "sample.preview": 0,
    "train.batch_size": 16,
    "train.steps": 300,
}
HEADS = (1, 2, 4, 8)
"""The numbers of heads of chapter 7."""
LAYERS = 4
"""The number of layers in chapter 8, and of the larger models in chapter 6."""
FAR = 32
"""The distance at which chapter 12 compares gradients, in letters."""
EARLY = 200
"""The step at which chapter 12 compares its models for the first time."""
HALVES = {"train.steps": 800, "train.eval_every": EARLY, "train.save_every": EARLY, "train.keep_last": 9}


def trained(name: str, seed: int, changes: Mapping[str, Any], preset: str = "stories") -> Checkpoint:
    """Train a model on the stories, or resume its training, and return its last checkpoint.

    Raises:
        UserError: There is a run of this name with other settings.
        KeyboardInterrupt: Ctrl-C stopped the training. What was trained is saved.
        SystemExit: Another signal stopped it.
    """
    name = f"course-{name}" + f"-seed-{seed}" * (seed != 1)
    settings: dict[str, Any] = {**BASE, "train.seed": seed, **changes}
    settings = {"train.eval_every": settings["train.steps"], "train.save_every": settings["train.steps"]} | settings
    assignments = [f"{key}={value}" for key, value in settings.items()]
    prepared = prepare_run(["builtin:stories"], preset, assignments)
    run, config = RUNS / name, prepared.config
    is_new = not is_run(run)
    with new_run(name, prepared.stem) if is_new else lock(run), suppress(RunFinishedError):
        if not is_new:
            prepared = prepare_resume(run, [])
        if prepared.config != config:
            raise UserError(f"runs/{name} has other settings than this chapter needs; rename it, then try again")
        outcome = train(config, run, prepared.data, resume=prepared.checkpoint)
        if outcome.signal:
            interrupt(outcome.signal, None)
    return load_checkpoint(name, "last")


def loss(checkpoint: Checkpoint) -> float:
    """Return the validation loss of a checkpoint, in nats per letter."""
    value = checkpoint.metadata.state.validation_loss
    assert value is not None, "each run ends with an evaluation"
    return value


def positions(seed: int) -> dict[str, float]:
    """Measure chapter 6: four layers and one layer, with and without positional encodings."""
    numbers: dict[str, float] = {}
    shapes = (("", "", LAYERS, ("rotary", "learned", "none")), (", one layer", "-one-layer", 1, ("rotary", "none")))
    for label, suffix, layers, kinds in shapes:
        for kind in kinds:
            changes = {"model.n_layer": layers, "model.position": kind, "train.steps": 250}
            numbers[kind + label] = loss(trained(f"6-{kind}{suffix}", seed, changes))
        numbers[f"cost{label}"] = numbers[f"none{label}"] - numbers[f"rotary{label}"]
    return numbers | letters.small("rope", seed)


def heads(seed: int) -> dict[str, float]:
    """Measure chapter 7: one wide head or several narrow ones, with the same width and number of weights."""
    numbers = {f"heads {n}": loss(trained(f"7-heads-{n}", seed, {"model.n_head": n})) for n in HEADS}
    return {**numbers, "gain": numbers["heads 1"] - numbers["heads 4"], **letters.small("heads", seed)}


def block(seed: int) -> dict[str, float]:
    """Measure chapter 8: the loss of a `classic` model after each layer, and without each part."""
    changes = {"model.family": "classic", "model.n_layer": LAYERS, "train.steps": 600}
    checkpoint = trained("8", seed, changes)
    model, spread = load_transformer(checkpoint), windows(checkpoint)
    blocks, whole = model.blocks, _loss_on(model, spread)
    numbers = {"whole": whole}
    for n, layer in enumerate(blocks):
        model.blocks = blocks[:n]
        numbers[f"after {n}"] = _loss_on(model, spread)
        model.blocks = blocks
        for part in ("attention", "mlp"):
            hook = layer.get_submodule(part).register_forward_hook(lambda part, inputs, output: 0 * output)
            numbers[f"{part} {n}"] = _loss_on(model, spread) - whole
            hook.remove()
    return numbers | letters.small("blocks", seed)


@torch.no_grad()
def _loss_on(model: GPT, windows: Tensor) -> float:
    return letters.loss_on(model, windows).item()


def windows(checkpoint: Checkpoint) -> Tensor:
    """Return up to 64 windows (B, T + 1) spread over the validation split."""
    tokens = load_dataset(checkpoint.config.data, checkpoint.tokenizer).validation
    return spread_windows(tokens, checkpoint.config.model.context, 64)


YOURS: dict[str, Any] = {
    "model.family": "classic",
    "model.position": "rotary",
    "model.n_layer": 3,
    "model.n_embd": 128,
    "model.context": 128,
    "optim.name": "adamw",
    "optim.lr": 0.003,
    "optim.warmup": 0.1,
    "train.steps": 800,
}
"""The GPT of chapter 9, as the reader trains it."""


def yours(seed: int) -> dict[str, float]:
    """Measure chapter 9: the reader's GPT with AdamW."""
    gpt = trained("9", seed, YOURS)
    return {"gpt": loss(gpt), "A gpt": letters.chance_of_name(load_transformer(gpt))}


def spectrum(seed: int) -> dict[str, float]:
    """Measure chapter 10: how many directions have 90% of a gradient, before and after Muon's rounds."""
    tokenizer, ids, _ = letters.text()
    config = small_config(n_layer=3, n_embd=128, context=128, position="rotary", bias=True)
    torch.manual_seed(seed)
    model = GPT(config, tokenizer.vocab_size)
    letters.loss_on(model, ids[torch.randint(len(ids) - 128, (16, 1)) + torch.arange(129)]).backward()
    gradient = model.get_parameter("blocks.1.mlp.up.weight").grad
    assert gradient is not None
    update = orthogonalize(gradient.T[None], NS_COEFFICIENTS)[0]
    return {"before": directions(gradient), "after": directions(update)}


def directions(matrix: Tensor) -> float:
    """Return how many singular values, from the largest, have 90% of the sum of all squares."""
    squares = torch.linalg.svdvals(matrix).square()
    return 1 + int((squares.cumsum(0) < 0.9 * squares.sum()).sum())


def replaced(seed: int) -> dict[str, float]:
    """Measure chapter 12: an LSTM and a GPT of about the same number of parameters."""
    lstm = trained("12-lstm", seed, {**HALVES, "model.n_embd": 78}, "shakespeare-lstm")
    gpt = trained("12-gpt", seed, HALVES)
    numbers: dict[str, float] = {}
    for name, checkpoint in (("lstm", lstm), ("gpt", gpt)):
        gradient = gradient_by_distance(load_model(checkpoint), windows(checkpoint))
        numbers[name] = loss(checkpoint)
        numbers[f"{name} early"] = loss(load_checkpoint(checkpoint.run_name, EARLY))
        numbers[f"{name} far"] = (gradient[FAR] / gradient[1]).item()
    return numbers
