"""Export activations and scores as NPZ, JSON or table rows."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigpt.errors import escape
from minigpt.interpret.descriptions import LINK_PHRASES, PHRASES, Description
from minigpt.interpret.excerpt import Excerpt
from minigpt.interpret.extract import Activations
from minigpt.interpret.scores import MEASURES, Score
from minigpt.storage.checkpoint import Checkpoint

LEARNED = 0.05
"""A model has learned something if its loss is at least so many nats below the loss of a uniform guess."""


def untrained_warning(checkpoint: Checkpoint) -> str | None:
    """Return a warning if the model is no better than a uniform guess over the vocabulary, else None."""
    metadata = checkpoint.metadata
    if metadata.step == 0 and metadata.origin is None and not metadata.imported:
        return "This model is untrained (step 0)."
    uniform, loss = math.log(metadata.vocab_size), metadata.state.validation_loss
    if loss is None or min(loss, metadata.state.train_loss or math.inf) < uniform - LEARNED:
        return None
    return (
        f"This model has learned almost nothing: its validation loss is {loss:.3f}, "
        f"and that of a uniform guess is {uniform:.3f}."
    )


def to_npz(activations: Activations, excerpt: Excerpt, scores: Mapping[str, Score]) -> bytes:
    """Return an NPZ file with all activations in float32, the tokens, and the scores of each head (L, H).

    NumPy drops NUL characters from `characters`; use `ids` if the text may contain them.
    """
    names = ("ids", "weights", "q", "k", "v", "head_outputs", "residual", "logits", "output_norms")
    arrays: dict[str, Any] = {name: getattr(activations, name).numpy() for name in names}
    arrays["characters"] = np.array(excerpt.characters)
    for name, score in scores.items():
        arrays[f"score/{name}"], arrays[f"uniform/{name}"] = score.values.numpy(), np.float64(score.uniform)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def to_json(
    checkpoint: Checkpoint,
    activations: Activations,
    excerpt: Excerpt,
    descriptions: Sequence[Sequence[Description]],
    scores: Mapping[str, Score],
    selected: Sequence[tuple[int, int]],
) -> dict[str, Any]:
    """Return the excerpt and the scores of the `selected` (layer, head) pairs. Include the weights of a single head."""
    document = {
        "checkpoint": escape(checkpoint.path),
        "step": checkpoint.metadata.step,
        "validation_loss": checkpoint.metadata.state.validation_loss,
        "text": checkpoint.tokenizer.decode(excerpt.ids),
        "characters": excerpt.characters,
        "source": excerpt.source,
        "skipped": excerpt.skipped,
        "max_error": activations.max_error,
        "heads": [
            {
                "layer": layer,
                "head": head,
                "attends_to": descriptions[layer][head].phrase,
                "scores": {name: _score(score, layer, head) for name, score in scores.items()},
            }
            for layer, head in selected
        ],
    }
    if len(selected) == 1:
        document["weights"] = activations.weights[selected[0]].tolist()
    return document


def _score(score: Score, layer: int, head: int) -> dict[str, float | None]:
    numbers = {
        "value": score.values[layer, head].item(),
        "uniform": score.uniform,
        "lift": score.lift[layer, head].item(),
    }
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}


def summary_rows(
    descriptions: Sequence[Sequence[Description]], scores: Mapping[str, Score], selected: Sequence[tuple[int, int]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and rows of a table with the strongest score of each head, beside its uniform baseline."""
    rows = []
    shares = [name for name in scores if name in PHRASES | LINK_PHRASES and not math.isnan(scores[name].uniform)]
    for layer, head in selected:
        candidates = [(scores[name].values[layer, head].item(), scores[name].uniform, name) for name in shares]
        nothing = (math.nan, math.nan, "-")  # a text of one token
        weight, uniform, best = max(candidates, key=lambda candidate: candidate[0] - candidate[1], default=nothing)
        numbers = (weight, uniform, scores["distance"].values[layer, head].item())
        rows.append((f"{layer}.{head}", descriptions[layer][head].phrase, best, *map(_number, numbers)))
    return ("head", "attends to", "strongest", "weight", "if uniform", "distance"), rows


def table_rows(
    descriptions: Sequence[Sequence[Description]], scores: Mapping[str, Score], selected: Sequence[tuple[int, int]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and rows of a table of the selected heads. The first row is the uniform baseline.

    Pattern scores show their lift, such as ×1.5.
    """
    rows = [("uniform", "", *(_number(score.uniform) for score in scores.values()))]
    for layer, head in selected:
        values = (_with_lift(name, scores[name], layer, head) for name in scores)
        rows.append((f"{layer}.{head}", descriptions[layer][head].phrase, *values))
    return ("head", "attends to", *scores), rows


def _with_lift(name: str, score: Score, layer: int, head: int) -> str:
    value, lift = score.values[layer, head].item(), score.lift[layer, head].item()
    return _number(value) + (f" ×{lift:.1f}" if name not in MEASURES and math.isfinite(lift) else "")


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}" if value < 10 else f"{value:.1f}"
