"""The table and the JSON document of `minigpt inspect`: what each attention head attends to."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from minigpt.cli.output import json_text, notice, table, write
from minigpt.errors import UserError, count, escape

if TYPE_CHECKING:
    from minigpt.interpret.excerpt import Excerpt
    from minigpt.interpret.scores import Score
    from minigpt.storage.checkpoint import Checkpoint

HEAD = ("head", "attends to", "strongest", "share", "if uniform", "distance")


def print_heads(
    loaded: "Checkpoint", excerpt: "Excerpt", layer: int | None, head: int | None, is_chosen: bool, as_json: bool
) -> None:
    """Print the chosen heads, or all, as a table or JSON, with statistics of the excerpt if the user chose it.

    The phrases come from the validation split, as on the page. The JSON of one head includes its attention weights.
    """
    from minigpt.interpret.descriptions import describe_heads, score_model, untrained_warning
    from minigpt.interpret.excerpt import characters, validation_split
    from minigpt.interpret.extract import extract
    from minigpt.model.load import load_transformer

    model = load_transformer(loaded)
    layers = _indices("--layer", layer, model.config.n_layer)
    heads = _indices("--head", head, model.config.n_head)
    measured = (model, loaded.tokenizer, loaded.config.data, excerpt.ids)
    scores = score_model(*measured, validation_split(loaded))
    descriptions = describe_heads(scores)
    if is_chosen:
        scores = score_model(*measured, None)
    chosen = list(product(layers, heads))
    phrases = [descriptions[layer][head].phrase for layer, head in chosen]
    if not as_json:
        about = f"{loaded.path}: {count(len(excerpt.ids), 'token')}, {excerpt.source}"
        notice(*filter(None, [untrained_warning(loaded)]), about)
        table(HEAD, [_row(scores, at, phrase) for at, phrase in zip(chosen, phrases, strict=True)])
        return
    document = {
        "checkpoint": escape(loaded.path),
        "step": loaded.metadata.step,
        "validation_loss": loaded.metadata.state.validation_loss,
        "text": loaded.tokenizer.decode(excerpt.ids),
        "characters": characters(loaded.tokenizer, excerpt.ids),
        "source": excerpt.source,
        "skipped": excerpt.skipped,
        "heads": [
            {
                "layer": at[0],
                "head": at[1],
                "attends_to": phrase,
                "statistics": {k: {"value": s.values[at].item(), "uniform": s.uniform} for k, s in scores.items()},
            }
            for at, phrase in zip(chosen, phrases, strict=True)
        ],
    }
    if len(chosen) == 1:
        document["weights"] = extract(model, excerpt.ids).weights[chosen[0]].tolist()
    write(json_text(document))


def _indices(option: str, index: int | None, size: int) -> Sequence[int]:
    """Return the chosen layer or head, or all of them. Raises UserError if the index is too large or negative."""
    if index is not None and not 0 <= index < size:
        raise UserError(f"{option} {index}: expected 0 to {size - 1}")
    return range(size) if index is None else [index]


def _row(scores: "Mapping[str, Score]", at: tuple[int, int], phrase: str) -> tuple[str, ...]:
    """Return the row of a head: its strongest statistic, beside that of uniform attention."""
    from minigpt.interpret.links import LINKS
    from minigpt.interpret.scores import PATTERNS

    known = {name: score for name, score in scores.items() if not math.isnan(score.uniform)}
    leads = {name: score.values[at].item() - score.uniform for name, score in known.items() if name in PATTERNS | LINKS}
    best = max(leads, key=leads.__getitem__, default="-")
    strongest = (known[best].values[at].item(), known[best].uniform) if leads else (None, None)
    distance = known["distance"].values[at].item() if leads else None  # a text of one token has no statistics
    return f"{at[0]}.{at[1]}", phrase, best, *map(_number, (*strongest, distance))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 10 else f"{value:.1f}"
