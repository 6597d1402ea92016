"""`minigpt attention`."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated

from typer import Option

from minigpt.cli.excerpt import FileOption, TextOption, ValOption, choose_excerpt
from minigpt.cli.options import (
    CheckpointOption,
    EncodingOption,
    ForceOption,
    JsonOption,
    RunArgument,
    UnknownOption,
)
from minigpt.cli.output import check_writable, json_text, notice, table, write, write_bytes
from minigpt.errors import UserError, count


def attention(
    run: RunArgument = "last",
    text: TextOption = None,
    file: FileOption = None,
    val: ValOption = None,
    layer: Annotated[int | None, Option(help="Show only this layer. The first is 0.", metavar="N")] = None,
    head: Annotated[int | None, Option(help="Show only this head. The first is 0.", metavar="N")] = None,
    png: Annotated[Path | None, Option(help="Save the weights as an image.", metavar="FILE")] = None,
    npz: Annotated[Path | None, Option(help="Save all activations as float32 NumPy arrays.", metavar="FILE")] = None,
    as_json: JsonOption = False,
    checkpoint: CheckpointOption = None,
    unknown: UnknownOption = "error",
    encoding: EncodingOption = "utf-8",
    force: ForceOption = False,
) -> None:
    """Show what each attention head attends to.

    Each score comes with its baseline: the score of uniform attention. The names of the heads are those
    of the page of `minigpt inspect`: they come from scores over windows of the validation split. The
    table shows these scores, or with --text, --file or --val, those of the chosen text.

    Examples:
      minigpt attention
      minigpt attention mine --text "the cat and the dog"
      minigpt attention mine --layer 2 --head 1 --json
    """
    from minigpt.interpret import export, images
    from minigpt.interpret.descriptions import describe_heads, score_model
    from minigpt.interpret.excerpt import validation_split
    from minigpt.interpret.extract import extract
    from minigpt.model.load import load_transformer
    from minigpt.storage.checkpoint import load_checkpoint

    check_writable(npz, png, read=file, force=force)
    loaded = load_checkpoint(run, checkpoint)
    excerpt = choose_excerpt(loaded, text, file, val, unknown, encoding)
    layers = _indices("--layer", layer, loaded.config.model.n_layer)
    heads = _indices("--head", head, loaded.config.model.n_head)
    model = load_transformer(loaded)
    activations = extract(model, excerpt.ids)
    measured = (model, loaded.tokenizer, loaded.config.data, excerpt.ids)
    scores = score_model(*measured, validation_split(loaded))
    descriptions = describe_heads(scores)
    if (text, file, val) != (None, None, None):
        scores = score_model(*measured, None)
    about = f"{count(len(excerpt.ids), 'token')}, {excerpt.source}"
    if npz:
        write_bytes(export.to_npz(activations, excerpt), npz)
    if png:
        weights = activations.weights[list(layers)][:, list(heads)]
        title = f"{loaded.run_name}, step {loaded.metadata.step:,}: {about}"
        write_bytes(images.to_png(images.draw(weights, layers, heads, excerpt.characters, title)), png)
    entries = export.head_entries(descriptions, scores, product(layers, heads))
    if as_json:
        write(json_text(export.to_json(loaded, activations, excerpt, entries)))
        return
    notice(*filter(None, [export.untrained_warning(loaded)]), f"{loaded.path}: {about}")
    table(("head", "attends to", "strongest", "weight", "if uniform", "distance"), export.summary_rows(entries))


def _indices(option: str, index: int | None, size: int) -> Sequence[int]:
    """Return the chosen layer or head, or all of them. Raises UserError if there is none of this index."""
    if index is not None and not 0 <= index < size:
        raise UserError(f"{option} {index}: expected 0 to {size - 1}")
    return range(size) if index is None else [index]
