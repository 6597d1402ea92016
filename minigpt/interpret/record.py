"""Extracted numbers as files and tables: `.npz`, JSON, rows for a terminal."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigpt.errors import escape
from minigpt.interpret.extract import Extraction
from minigpt.interpret.passage import Excerpt
from minigpt.interpret.scores import MEASURES, Score, kinds
from minigpt.storage.checkpoint import Checkpoint

LEARNED = 0.05
"""How far below that of guessing a loss lies, in nats, once a model has learned anything."""


def doubt(loaded: Checkpoint) -> str | None:
    """Return a sentence that says why a model is as good as untrained, or None where it is not."""
    meta = loaded.meta
    if meta.step == 0:
        return "This model is untrained (step 0)."
    guessing, loss = math.log(meta.vocab_size), meta.validation_loss
    if loss is None or min(loss, meta.state.train_loss or math.inf) < guessing - LEARNED:
        return None
    return (
        f"This model has learned next to nothing: its validation loss of {loss:.3f} is less than {LEARNED} below that "
        f"of guessing, {guessing:.3f}."
    )


def npz(seen: Extraction, passage: Excerpt, scores: Mapping[str, Score]) -> bytes:
    """Return the bytes of an `.npz` file with all tensors of an extraction in float32, the tokens, and the scores.

    Read it with `numpy.load(path)`; `weights` is (L, H, T, S), and `score/previous` (L, H) like the other scores. Of a
    NUL among `characters` numpy keeps nothing: `ids` decide.
    """
    arrays: dict[str, Any] = {
        name: getattr(seen, name).numpy()
        for name in ("ids", "weights", "q", "k", "v", "heads", "stream", "logits", "written")
    }
    arrays["characters"] = np.array(passage.characters)
    for name, score in scores.items():
        arrays[f"score/{name}"], arrays[f"uniform/{name}"] = score.values.numpy(), np.float64(score.uniform)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def document(
    loaded: Checkpoint,
    seen: Extraction,
    passage: Excerpt,
    scores: Mapping[str, Score],
    chosen: Sequence[tuple[int, int]],
) -> dict[str, Any]:
    """Return what JSON tells of the chosen heads, (layer, head) each; of a single one also its weights."""
    names = kinds(scores)
    heads = [
        {
            "layer": layer,
            "head": head,
            "kind": names[layer][head],
            "scores": {name: _score(score, layer, head) for name, score in scores.items()},
        }
        for layer, head in chosen
    ]
    found = {
        "checkpoint": escape(loaded.path),
        "step": loaded.meta.state.step,
        "validation_loss": loaded.meta.state.validation_loss,
        "text": loaded.tokenizer.decode(passage.ids),
        "characters": passage.characters,
        "source": passage.source,
        "left_out": passage.left_out,
        "disagreement": seen.disagreement,
        "heads": heads,
    }
    if len(chosen) == 1:
        found["weights"] = seen.weights[chosen[0]].tolist()
    return found


def _score(score: Score, layer: int, head: int) -> dict[str, float | None]:
    found = {
        "value": score.values[layer, head].item(),
        "uniform": score.uniform,
        "lift": score.lift[layer, head].item(),
    }
    return {name: number if math.isfinite(number) else None for name, number in found.items()}


def rows(
    scores: Mapping[str, Score], chosen: Sequence[tuple[int, int]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return a table of the chosen heads, as its head and its rows; the first row is what uniform attention gets.

    Behind a share stands its lift, how many times the uniform one it is. A probe stands alone.
    """
    names = kinds(scores)
    columns = ["probe"] if "probe" in scores else [name for name in scores if name != "next"]
    lines = [("uniform", "", *(_number(scores[name].uniform) for name in columns))]
    for layer, head in chosen:
        values = (_with_lift(name, scores[name], layer, head) for name in columns)
        lines.append((f"{layer}.{head}", names[layer][head], *values))
    return ("head", "kind", *columns), lines


def _with_lift(name: str, score: Score, layer: int, head: int) -> str:
    value, lift = score.values[layer, head].item(), score.lift[layer, head].item()
    return _number(value) + (f" ×{lift:.1f}" if name not in MEASURES and math.isfinite(lift) else "")


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}" if value < 10 else f"{value:.1f}"
