"""What chapters 6 to 11 measure: models that minigpt trains, in runs whose names start with `course-`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minigpt.course import letters
from minigpt.errors import RunFinishedError, UserError
from minigpt.interpret.descriptions import mean_scores
from minigpt.interpret.effects import probabilities_without
from minigpt.interpret.extract import ablate_heads, extract
from minigpt.interpret.gradient import gradient_by_distance, spread_windows
from minigpt.interpret.links import linked_windows
from minigpt.model.gpt import GPT
from minigpt.model.load import load_model, load_transformer
from minigpt.paths import RUNS, is_run
from minigpt.seeds import mix_seed
from minigpt.storage.checkpoint import Checkpoint, load_checkpoint
from minigpt.storage.runs import lock, new_run
from minigpt.text.dataset import load_dataset
from minigpt.text.tokenizer import Ids
from minigpt.training.loop import train
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
"""The layers of chapters 6 and 8."""
FAR = 32
"""The distance of chapter 11, in letters."""
EARLY = 200
"""The step at which chapter 11 compares its models for the first time."""
WINDOWS, LINKED_WINDOWS = 8, 32
"""How many windows chapter 10 evaluates without each head, and in how many it looks for links."""
HALVES = {"train.steps": 800, "train.eval_every": EARLY, "train.save_every": EARLY, "train.keep_last": 9}


def trained(name: str, seed: int, changes: Mapping[str, Any], preset: str = "stories") -> Checkpoint:
    """Train a model on the stories, or resume its training, and return its last checkpoint.

    Raises:
        UserError: There is a run of this name with other settings.
        KeyboardInterrupt: Ctrl-C stopped the training. What was trained is saved.
        SystemExit: Another signal did.
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
    """Measure chapter 8: what each part of a `classic` model adds."""
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
    """Return 64 windows (B, T + 1) spread over the validation split."""
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
    "train.steps": 2700,
}
"""The GPT of chapter 9, as the reader trains it."""


def yours(seed: int) -> dict[str, float]:
    """Measure chapter 9: what the reader's GPT reaches, and which head finds the name."""
    gpt = trained("9", seed, YOURS)
    model, ids = load_transformer(gpt), gpt.tokenizer.encode(letters.PROMPT)
    shares = extract(model, ids).weights[:, :, -1, letters.PROMPT.index("Anna")]  # (L, H)
    layer, head = divmod(int(shares.argmax()), shares.size(1))
    chance = letters.chance_of_name(model)
    with ablate_heads(model, {(layer, head)}):
        without = letters.chance_of_name(model)
    return {"gpt": loss(gpt), "A gpt": chance, "share": shares.max().item(), "without": without}


def learned(seed: int, keeps_curve: bool = False) -> dict[str, float]:
    """Measure chapter 10: a head that copies, what it is worth, and which heads are free to remove.

    `keeps_curve` keeps the checkpoints for the figure of the book. They change no number.
    """
    curve = {"train.eval_every": 100, "train.save_every": 100, "train.keep_last": 20} if keeps_curve else {}
    checkpoint = trained("10", seed, {"model.context": 128, "train.steps": 1200, **curve})
    tokenizer, context = checkpoint.tokenizer, checkpoint.config.model.context
    tokens = load_dataset(checkpoint.config.data, tokenizer).validation
    adjacent = [np.asarray(tokens[at : at + context]) for at in range(0, len(tokens) - context + 1, context)]
    linked = list(islice(linked_windows(adjacent, tokenizer), LINKED_WINDOWS))
    torch.manual_seed(mix_seed(seed, "weights"))
    untrained = GPT(checkpoint.config.model, tokenizer.vocab_size).eval()
    model = load_transformer(checkpoint)
    then, now = (mean_scores((), ((extract(m, ids).weights, text) for ids, text in linked)) for m in (untrained, model))
    best = int(now["copy"].values.argmax())
    costs = head_costs(model, adjacent[:WINDOWS])
    return {
        "uniform": now["copy"].uniform,
        "copy 0": then["copy"].values.flatten()[best].item(),
        "copy": now["copy"].values.flatten()[best].item(),
        "loss": loss(checkpoint),
        "without copy": costs.flatten()[best].item(),
        "most": costs.max().item(),
        "least": costs.min().item(),
        "pronoun": max(now[kind].values.max().item() for kind in ("he", "she")),
    }


def head_costs(model: GPT, windows: Sequence[Ids]) -> Tensor:
    """Return by how much the loss rises without each head, (L, H): the mean over the windows, in nats."""
    losses = torch.zeros(1 + model.config.n_layer * model.config.n_head)
    for ids in windows:
        chances = probabilities_without(model, ids[:-1], 0)[:, range(len(ids) - 1), ids[1:].tolist()]
        losses -= chances.log().mean(1) / len(windows)
    return (losses[1:] - losses[0]).view(model.config.n_layer, model.config.n_head)


def replaced(seed: int) -> dict[str, float]:
    """Measure chapter 11: an LSTM and a GPT of about the same number of parameters."""
    lstm = trained("11-lstm", seed, {**HALVES, "model.n_embd": 78}, "shakespeare-lstm")
    gpt = trained("11-gpt", seed, HALVES)
    numbers: dict[str, float] = {}
    for name, checkpoint in (("lstm", lstm), ("gpt", gpt)):
        gradient = gradient_by_distance(load_model(checkpoint), windows(checkpoint))
        numbers[name] = loss(checkpoint)
        numbers[f"{name} early"] = loss(load_checkpoint(checkpoint.run_name, EARLY))
        numbers[f"{name} far"] = (gradient[FAR] / gradient[1]).item()
    return numbers
