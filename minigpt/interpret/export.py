"""Scores of heads as JSON or table rows."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from minigpt.errors import escape
from minigpt.interpret.descriptions import Description
from minigpt.interpret.excerpt import Excerpt
from minigpt.interpret.extract import Activations
from minigpt.interpret.links import LINKS
from minigpt.interpret.scores import PATTERNS, Score
from minigpt.storage.checkpoint import Checkpoint

LEARNED = 0.05
"""A model has learned something if its loss is at least so many nats below the loss of a uniform guess."""


def untrained_warning(checkpoint: Checkpoint) -> str | None:
    """Return a warning if the model is no better than a uniform guess over the vocabulary, else None.

    In a text of one character, there is nothing to learn.
    """
    metadata = checkpoint.metadata
    if metadata.step == 0 and metadata.origin is None and not metadata.imported:
        return "This model is untrained (step 0)."
    uniform, loss = math.log(metadata.vocab_size), metadata.state.validation_loss
    if metadata.vocab_size == 1 or loss is None or min(loss, metadata.state.train_loss or math.inf) < uniform - LEARNED:
        return None
    return (
        f"This model has learned almost nothing: its validation loss is {loss:.3f}, "
        f"and that of a uniform guess is {uniform:.3f}."
    )


def head_entries(
    descriptions: Sequence[Sequence[Description]], scores: Mapping[str, Score], selected: Iterable[tuple[int, int]]
) -> list[dict[str, Any]]:
    """Return the phrase and all scores of the `selected` heads, each (layer, head). NaN becomes None."""
    return [
        {
            "layer": layer,
            "head": head,
            "attends_to": descriptions[layer][head].phrase,
            "scores": {name: _score(score, layer, head) for name, score in scores.items()},
        }
        for layer, head in selected
    ]


def _score(score: Score, layer: int, head: int) -> dict[str, float | None]:
    numbers = {"value": score.values[layer, head].item(), "uniform": score.uniform}
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}


def to_json(
    checkpoint: Checkpoint, activations: Activations, excerpt: Excerpt, heads: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the excerpt, and the `head_entries` of some heads. Include the weights of a single head."""
    document = {
        "checkpoint": escape(checkpoint.path),
        "step": checkpoint.metadata.step,
        "validation_loss": checkpoint.metadata.state.validation_loss,
        "text": checkpoint.tokenizer.decode(excerpt.ids),
        "characters": excerpt.characters,
        "source": excerpt.source,
        "skipped": excerpt.skipped,
        "heads": heads,
    }
    if len(heads) == 1:
        document["weights"] = activations.weights[heads[0]["layer"], heads[0]["head"]].tolist()
    return document


def summary_rows(heads: Iterable[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row for each of the `head_entries`: its strongest score, beside that of uniform attention."""
    rows = []
    for entry in heads:
        scores = {name: score for name, score in entry["scores"].items() if score["uniform"] is not None}
        leads = {name: scores[name]["value"] - scores[name]["uniform"] for name in scores if name in PATTERNS | LINKS}
        best = max(leads, key=leads.__getitem__, default="-")
        strongest = scores.get(best, {"value": None, "uniform": None})  # a text of one token has no scores
        numbers = (strongest["value"], strongest["uniform"], entry["scores"]["distance"]["value"])
        rows.append((f"{entry['layer']}.{entry['head']}", entry["attends_to"], best, *map(_number, numbers)))
    return rows


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 10 else f"{value:.1f}"
