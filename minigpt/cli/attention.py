"""`minigpt attention`."""

import math
import os
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from minigpt.cli.excerpt import (
    FileOption,
    MaxTokensOption,
    TextOption,
    ValOption,
    check_index,
    choose_excerpt,
    notice_checkpoint,
    notice_skipped,
)
from minigpt.cli.options import (
    CheckpointOption,
    EncodingOption,
    ForceOption,
    JsonOption,
    RunArgument,
    UnknownOption,
)
from minigpt.cli.output import check_writable, json_text, notice, refuse_trained_on, table, write, write_bytes
from minigpt.errors import UnknownCharacterError, UserError, count, escape, sanitize_terminal

if TYPE_CHECKING:
    from minigpt.interpret.excerpt import Excerpt
    from minigpt.interpret.extract import Activations
    from minigpt.interpret.scores import Score
    from minigpt.text.tokenizer import Tokenizer


def attention(
    run: RunArgument = "last",
    text: TextOption = None,
    file: FileOption = None,
    val: ValOption = None,
    layer: Annotated[int | None, Option(help="Show only this layer. The first is 0.", metavar="N")] = None,
    head: Annotated[int | None, Option(help="Show only this head. The first is 0.", metavar="N")] = None,
    query: Annotated[
        int | None,
        Option(help="List what this position attends to most. The first is 0.", metavar="N"),
    ] = None,
    probe: Annotated[
        tuple[str, str] | None,
        Option(help="Measure the attention from one string to earlier occurrences of another.", metavar="FROM TO"),
    ] = None,
    tty: Annotated[
        bool, Option("--tty", help="Shade the text by the attention of --query (default: the last).")
    ] = False,
    all_scores: Annotated[bool, Option("--scores", help="Print every score of every head.")] = False,
    png: Annotated[Path | None, Option(help="Save the weights as an image.", metavar="FILE")] = None,
    npz: Annotated[Path | None, Option(help="Save all activations as float32 NumPy arrays.", metavar="FILE")] = None,
    as_json: JsonOption = False,
    checkpoint: CheckpointOption = None,
    unknown: UnknownOption = "error",
    encoding: EncodingOption = "utf-8",
    max_tokens: MaxTokensOption = None,
    force: ForceOption = False,
) -> None:
    """Show what each attention head attends to.

    Each score comes with its baseline: the score of uniform attention.

    Examples:
      minigpt attention
      minigpt attention mine --text "the cat and the dog" --tty --layer 0
      minigpt attention mine --probe ")" "(" --json
    """
    from minigpt.interpret import export, images
    from minigpt.interpret.extract import extract
    from minigpt.interpret.scores import head_scores
    from minigpt.model.load import load_transformer
    from minigpt.storage.checkpoint import load_checkpoint

    check_writable(npz, png, read=file, force=force)
    if (probe or as_json) and (tty or query is not None):
        raise UserError(f"{'--probe' if probe else '--json'} covers all queries; remove --tty and --query")
    loaded = load_checkpoint(run, checkpoint)
    refuse_trained_on(loaded.config.data, npz, png)
    excerpt = choose_excerpt(loaded, text, file, val, unknown, encoding, max_tokens)
    config = loaded.config.model
    check_index("--layer", layer, config.n_layer, "layers")
    check_index("--head", head, config.n_head, "heads")
    check_index("--query", query, len(excerpt.ids), "tokens")
    activations = extract(load_transformer(loaded), excerpt.ids)
    scores = head_scores(activations.weights, excerpt.characters)
    if probe:
        scores["probe"] = _probe_score(loaded.tokenizer, activations, *probe)
    layers = range(config.n_layer) if layer is None else [layer]
    heads = range(config.n_head) if head is None else [head]
    selected = list(product(layers, heads))
    if npz:
        write_bytes(export.to_npz(activations, excerpt, scores), npz)
    if png:
        weights = activations.weights[list(layers)][:, list(heads)]
        title = (
            f"{loaded.run_name}, step {loaded.metadata.step:,}: {count(len(excerpt.ids), 'token')}, {excerpt.source}"
        )
        write_bytes(images.to_png(images.draw(weights, layers, heads, excerpt.characters, title)), png)
    if as_json:
        write(json_text(export.to_json(loaded, activations, excerpt, scores, selected)))
        return
    notice_skipped(excerpt)
    notice_checkpoint(loaded)
    notice(f"{count(len(excerpt.ids), 'token')}, {excerpt.source}")
    if tty or query is not None:
        _show_query(activations, excerpt, selected, len(excerpt.ids) - 1 if query is None else query, tty)
    else:
        rows = export.table_rows if probe or all_scores else export.summary_rows
        table(*rows(scores, selected))


def _probe_score(tokenizer: "Tokenizer", activations: "Activations", source: str, target: str) -> "Score":
    """Return the score of --probe. Raises UserError if the text has no such pair."""
    from minigpt.interpret.scores import span_score

    if not source or not target:
        raise UserError("--probe: expected two strings that occur in the text")
    missing = f"--probe: the excerpt has no '{escape(target)}' before a '{escape(source)}'"
    try:
        query, key = (tokenizer.encode(span).tolist() for span in (source, target))
    except UnknownCharacterError:
        raise UserError(missing) from None
    score = span_score(activations.weights, activations.ids.tolist(), query, key)
    if math.isnan(score.uniform):
        raise UserError(missing)
    return score


def _show_query(
    activations: "Activations", excerpt: "Excerpt", selected: list[tuple[int, int]], query: int, as_text: bool
) -> None:
    """Print the strongest keys of a query. If `as_text`, also print the text shaded by its attention."""
    import torch

    from minigpt.interpret import terminal
    from minigpt.interpret.excerpt import glyph

    row = torch.stack([activations.weights[layer, head, query] for layer, head in selected]).mean(0)  # (S,)
    name = "layer {} head {}".format(*selected[0]) if len(selected) == 1 else f"mean of {len(selected)} heads"
    print(f"query {query} {sanitize_terminal(glyph(excerpt.characters[query]))}, {name}")
    if as_text and not os.environ.get("NO_COLOR"):
        print(terminal.colored_text(excerpt.characters, row, query))
    strongest = row[: query + 1].topk(min(10, query + 1))
    rows = [
        (str(key), sanitize_terminal(glyph(excerpt.characters[key])), f"{weight:.4f}")
        for weight, key in zip(strongest.values.tolist(), strongest.indices.tolist(), strict=True)
    ]
    table(("key", "", "weight"), rows)
