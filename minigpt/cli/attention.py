"""`minigpt attention`."""

import math
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from minigpt.cli.options import (
    CheckpointOption,
    EncodingOption,
    JsonOption,
    RunArgument,
    UnknownOption,
)
from minigpt.cli.output import check_writable, json_text, notice, refuse_trained_on, table, write, write_bytes
from minigpt.errors import UserError, escape, sanitize_terminal

if TYPE_CHECKING:
    from minigpt.interpret.extract import Extraction
    from minigpt.interpret.passage import Excerpt
    from minigpt.interpret.scores import Score
    from minigpt.storage.checkpoint import Checkpoint
from minigpt.cli.excerpt import (
    FileOption,
    MaxCharsOption,
    TextOption,
    ValOption,
    check_index,
    chosen_excerpt,
    notice_checkpoint,
    notice_left_out,
)


def attention(
    run: RunArgument = "last",
    text: TextOption = None,
    file: FileOption = None,
    val: ValOption = None,
    layer: Annotated[int | None, Option(help="Only this layer, counted from 0.")] = None,
    head: Annotated[int | None, Option(help="Only this head, counted from 0.")] = None,
    query: Annotated[int | None, Option(help="The token that looks, counted from 0; by default the last.")] = None,
    probe: Annotated[
        tuple[str, str] | None,
        Option(help="How much the places of one string look at those of another before them.", metavar="FROM TO"),
    ] = None,
    tty: Annotated[bool, Option("--tty", help="Show the text coloured by where the query looks.")] = False,
    png: Annotated[Path | None, Option(help="Write a picture of the weights.", metavar="F")] = None,
    npz: Annotated[Path | None, Option(help="Write all numbers, in float32, for numpy.", metavar="F")] = None,
    as_json: JsonOption = False,
    checkpoint: CheckpointOption = None,
    unknown: UnknownOption = "error",
    encoding: EncodingOption = "utf-8",
    max_chars: MaxCharsOption = None,
) -> None:
    """Show what each head looks at in a text: scores beside what uniform attention gets, pictures, numbers."""
    from minigpt.interpret import picture, record
    from minigpt.interpret.extract import extract
    from minigpt.interpret.scores import head_scores
    from minigpt.storage.checkpoint import load_checkpoint

    check_writable(npz, png, read=file)
    if probe and (tty or query is not None):
        raise UserError("--probe excludes --tty and --query, which ask of one place")
    if as_json and (tty or query is not None):
        raise UserError("--json tells of all places; it excludes --tty and --query, which ask of one")
    loaded = load_checkpoint(run, checkpoint)
    refuse_trained_on(loaded.config.data, npz, png)
    passage = chosen_excerpt(loaded, text, file, val, unknown, encoding, max_chars)
    check_index("--layer", layer, loaded.config.model.n_layer, "layers")
    check_index("--head", head, loaded.config.model.n_head, "heads")
    check_index("--query", query, len(passage.ids), "tokens of the text")
    seen = extract(loaded.model, passage.ids)
    scores = head_scores(seen.weights, passage.characters)
    if probe:
        scores["probe"] = _probe(loaded, passage, seen, probe)
    chosen = [
        (at, which)
        for at in range(loaded.config.model.n_layer)
        for which in range(loaded.config.model.n_head)
        if layer in (None, at) and head in (None, which)
    ]
    if npz:
        write_bytes(record.npz(seen, passage, scores), npz)
    if png:
        layers, heads = (sorted({pair[axis] for pair in chosen}) for axis in (0, 1))
        part = seen.weights[layers][:, heads]
        image = picture.head(part[0, 0]) if len(chosen) == 1 else picture.grid(part, layers, heads)
        write_bytes(picture.png(image), png)
    if as_json:
        write(json_text(record.document(loaded, seen, passage, scores, chosen)))
        return
    _notice_passage(loaded, passage, seen)
    if tty or query is not None:
        _show_query(seen, passage, chosen, len(passage.ids) - 1 if query is None else query, tty)
    else:
        table(*record.rows(scores, chosen))


def _notice_passage(loaded: "Checkpoint", passage: "Excerpt", seen: "Extraction") -> None:
    notice_left_out(passage)
    notice_checkpoint(loaded)
    notice(f"{len(passage.ids)} tokens, {passage.source}; fast path and formula agree to {seen.disagreement:.1e}")


def _probe(loaded: "Checkpoint", passage: "Excerpt", seen: "Extraction", spans: tuple[str, str]) -> "Score":
    """Return the score of --probe. Raises UserError when the text has no such places."""
    from minigpt.interpret.scores import span_probe

    if not all(spans):
        raise UserError("--probe: expected two strings that stand in the text")
    asking, asked = (loaded.tokenizer.encode(span, "error").tolist() for span in spans)
    score = span_probe(seen.weights, passage.ids.tolist(), asking, asked)
    if math.isnan(score.uniform):
        raise UserError(f"--probe: in the text looked at, no '{escape(spans[1])}' comes before a '{escape(spans[0])}'")
    return score


def _show_query(
    seen: "Extraction", passage: "Excerpt", chosen: list[tuple[int, int]], query: int, coloured: bool
) -> None:
    """Print where one query looks: the text in colours if that was asked for, and the keys that it looks at most."""
    import torch

    from minigpt.interpret import terminal
    from minigpt.interpret.passage import glyph

    row = torch.stack([seen.weights[layer, head, query] for layer, head in chosen]).mean(0)  # (S,)
    whose = "layer {} head {}".format(*chosen[0]) if len(chosen) == 1 else f"mean of {len(chosen)} heads"
    print(f"query {query} {sanitize_terminal(glyph(passage.characters[query]))}, {whose}")
    if coloured:
        if os.environ.get("NO_COLOR"):
            print(terminal.shaded(passage.characters, row, query, shutil.get_terminal_size().columns))
        else:
            print(terminal.coloured(passage.characters, row, query))
    strongest = row[: query + 1].topk(min(10, query + 1))
    rows = [
        (str(place), sanitize_terminal(glyph(passage.characters[place])), f"{weight:.4f}")
        for weight, place in zip(strongest.values.tolist(), strongest.indices.tolist(), strict=True)
    ]
    table(("key", "", "weight"), rows)
