"""The film that the reader keeps in chapter 10. Chapter 11 measures it, and turns it into a run.

film.pt is a dictionary with `letters` (the vocabulary), `prompt`, `shape` (the arguments of the reader's `GPT`), and
`moments`: for each kept step, the `weights` of the reader's model, and its `logits` for the prompt, (T, V).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minigpt.config.resolve import resolve
from minigpt.config.schema import RuntimeConfig
from minigpt.config.shapes import parameter_shapes
from minigpt.course import letters, networks
from minigpt.errors import FilmError, UserError, escape
from minigpt.interop.imported import write_run
from minigpt.interop.saved import read_saved
from minigpt.interpret.descriptions import mean_scores
from minigpt.interpret.effects import probabilities_without
from minigpt.interpret.extract import extract
from minigpt.interpret.links import linked_windows
from minigpt.model.device import choose_runtime
from minigpt.model.gpt import GPT
from minigpt.model.load import load_transformer
from minigpt.storage.checkpoint import Checkpoint, load_checkpoint
from minigpt.storage.metadata import Metadata, TrainState
from minigpt.text.dataset import load_dataset
from minigpt.text.tokenizer import Ids

FILM, RUN = Path("film.pt"), "course-11"
SHAPE = {"context": "context", "n_layer": "n_layer", "n_head": "n_head", "C": "n_embd"}
"""Our setting for each argument of the reader's `GPT` in `shape`."""
AGAIN = "train it again: python try10.py"
TOLERANCE = 1e-3
"""The largest allowed difference between the reader's logits and minigpt's."""
WINDOWS, LINKED_WINDOWS = 8, 32
"""How many windows chapter 11 evaluates without each head, and in how many `linked_windows` it measures copying."""


def read_film(path: Path = FILM) -> list[Checkpoint]:
    """Return the moments of a film as checkpoints, in the order of their steps.

    Raises:
        UserError: The film is missing, damaged or of another model, or its logits are not those of minigpt's model.
    """
    if not path.is_file():
        raise UserError(f"no {path} here; chapter 10 trains your GPT and writes it: python try10.py")
    return read_saved(path, lambda film: list(_checkpoints(film, path)))


def _checkpoints(film: Any, path: Path) -> Iterator[Checkpoint]:
    """Yield the moments in the content of film.pt as checkpoints."""
    if not isinstance(film, dict) or not {"letters", "prompt", "shape", "moments"} <= {*film} or not film["moments"]:
        raise UserError(f"{path} is not a film of chapter 10; {AGAIN}")
    moments = dict(sorted(film["moments"].items()))
    shape = {f"model.{ours}": film["shape"][theirs] for theirs, ours in SHAPE.items()}
    model = {key: value for key, value in networks.YOURS.items() if key.startswith("model.")} | shape
    text = {"data.source": ["builtin:stories"], "data.val_fraction": networks.BASE["data.val_fraction"]}
    config = resolve((path.name, {**model, **text, "train.steps": max(1, *moments)})).config
    data = load_dataset(config.data)
    if list(film["letters"]) != list(data.tokenizer.decode(range(data.tokenizer.vocab_size))):
        raise UserError(f"{path} has a different vocabulary from the course's stories.txt; {AGAIN}")
    shapes = parameter_shapes(config.model, data.tokenizer.vocab_size)
    runtime = choose_runtime(RuntimeConfig(dtype="float32", compile=False))
    ids = data.tokenizer.encode(film["prompt"])[: config.model.context]
    for step, moment in moments.items():
        weights = {name: tensor.float().numpy() for name, tensor in moment["weights"].items()}
        for name in sorted({*shapes, *weights}):
            has, needs = (found.get(name) for found in ({n: w.shape for n, w in weights.items()}, shapes))
            if has != needs:
                problem = f"{path} has a different shape from the GPT of chapter 9: {escape(name)[:80]}"
                raise UserError(f"{problem} has {has or 'no weights'}, expected {needs or 'none'}; {AGAIN}")
        metadata = Metadata(
            corpus="builtin:stories",
            fingerprint=data.fingerprint,
            characters=data.characters_read,
            imported="mygpt.py",
            vocab_size=data.tokenizer.vocab_size,
            parameters=sum(array.size for array in weights.values()),
            runtime=runtime.environment(),
            state=TrainState(step=step),
        )
        checkpoint = Checkpoint(config, data.tokenizer, metadata, weights, path)
        ours, theirs = _logits(load_transformer(checkpoint), ids), moment["logits"][: len(ids)]
        if ours.shape != theirs.shape or not torch.allclose(ours, theirs, rtol=0, atol=TOLERANCE):
            problem = f"{path}: at step {step}, your GPT computes other logits than minigpt's"
            raise FilmError(problem)
        yield checkpoint


@torch.no_grad()
def _logits(model: GPT, ids: Ids) -> Tensor:
    logits: Tensor = model(torch.from_numpy(ids)[None])[0]
    return logits


def make_run(moments: Sequence[Checkpoint]) -> None:
    """Write the run of a film, unless the run has the film's last weights. Raises RunExistsError if it has others."""
    *earlier, last = moments
    with suppress(UserError):
        there = load_checkpoint(RUN, "last").weights
        if there.keys() == last.weights.keys() and all(
            np.array_equal(there[name], last.weights[name]) for name in there
        ):
            return
    write_run(last, RUN, RUN, lambda line: None, earlier)


def learned(seed: int) -> dict[str, float]:
    """Measure chapter 11: the reader's film, its heads, and the head that copies. `seed` has no effect."""
    moments = read_film()
    first, last = moments[0], moments[-1]
    make_run(moments)
    model, tokenizer, context = load_transformer(last), last.tokenizer, last.config.model.context
    ids, anna = tokenizer.encode(letters.PROMPT), letters.PROMPT.index("Anna")
    (A,) = tokenizer.encode("A")
    chances = probabilities_without(model, ids, len(ids) - 1)[:, 0, A]  # (1 + L H)
    tokens = load_dataset(last.config.data, tokenizer).validation
    adjacent = [np.asarray(tokens[at : at + context]) for at in range(0, len(tokens) - context + 1, context)]
    linked = list(islice(linked_windows(adjacent, tokenizer), LINKED_WINDOWS))
    if not linked:
        problem = f"{FILM} is now the run {RUN}, but a context of {context} is too short to measure how heads copy"
        raise FilmError(problem, run=Path(RUN))
    then, now = (
        mean_scores((), ((extract(m, window).weights, text) for window, text in linked))["copy"]
        for m in (load_transformer(first), model)
    )
    best = int(now.values.argmax())
    costs = head_costs(model, adjacent[:WINDOWS])
    return {
        "loss": letters.loss_on(model, torch.from_numpy(tokens.astype("int64")).unfold(0, context + 1, context)).item(),
        "A": chances[0].item(),
        "share": extract(model, ids).weights[:, :, -1, anna : anna + 4].sum(-1).max().item(),
        "without": chances[1:].min().item(),
        "uniform": now.uniform,
        "copy 0": then.values.flatten()[best].item(),
        "copy": now.values.flatten()[best].item(),
        "without copy": costs.flatten()[best].item(),
        "most": costs.max().item(),
        "least": costs.min().item(),
    }


def head_costs(model: GPT, windows: Sequence[Ids]) -> Tensor:
    """Return by how much the loss rises without each head, (L, H): the mean over the windows, in nats."""
    losses = torch.zeros(1 + model.config.n_layer * model.config.n_head)
    for ids in windows:
        chances = probabilities_without(model, ids[:-1], 0)[:, range(len(ids) - 1), ids[1:].tolist()]
        losses -= chances.log().mean(1) / len(windows)
    return (losses[1:] - losses[0]).view(model.config.n_layer, model.config.n_head)
