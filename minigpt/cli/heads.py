"""The table and the JSON document of `minigpt inspect`: what each attention head attends to."""

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from minigpt.cli.output import json_text, notice, table, write
from minigpt.errors import UserError, count

if TYPE_CHECKING:
    from minigpt.interpret.excerpt import Excerpt
    from minigpt.storage.checkpoint import Checkpoint

HEAD = ("head", "attends to", "strongest", "weight", "if uniform", "distance")


def print_heads(
    loaded: "Checkpoint", excerpt: "Excerpt", layer: int | None, head: int | None, is_chosen: bool, as_json: bool
) -> None:
    """Print the heads of a layer, or of all, as a table or as JSON. Scores are of the excerpt if the user chose it.

    The phrases come from the validation split, as on the page.
    """
    from minigpt.interpret import export
    from minigpt.interpret.descriptions import describe_heads, score_model
    from minigpt.interpret.excerpt import validation_split
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
    entries = export.head_entries(descriptions, scores, product(layers, heads))
    if as_json:
        write(json_text(export.to_json(loaded, extract(model, excerpt.ids), excerpt, entries)))
        return
    about = f"{loaded.path}: {count(len(excerpt.ids), 'token')}, {excerpt.source}"
    notice(*filter(None, [export.untrained_warning(loaded)]), about)
    table(HEAD, export.summary_rows(entries))


def _indices(option: str, index: int | None, size: int) -> Sequence[int]:
    """Return the chosen layer or head, or all of them. Raises UserError if there is none of this index."""
    if index is not None and not 0 <= index < size:
        raise UserError(f"{option} {index}: expected 0 to {size - 1}")
    return range(size) if index is None else [index]
