"""`minigpt attention`, `inspect` and `claims`: look into a trained model."""

import math
import os
import shutil
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from minigpt.cli.input import encode, read_text
from minigpt.cli.options import (
    CheckpointOption,
    EncodingOption,
    JsonOption,
    RunArgument,
    UnknownOption,
    checked_unknown,
)
from minigpt.cli.output import check_writable, json_text, notice, refuse_trained_on, table, write, write_bytes
from minigpt.errors import UserError, shown, visible

if TYPE_CHECKING:
    from minigpt.claims import Result
    from minigpt.interpret.extract import Extraction
    from minigpt.interpret.passage import Passage
    from minigpt.interpret.scores import Score
    from minigpt.storage.checkpoint import Checkpoint

ABLATED = 8192
"""Tokens of the validation split over which the loss without a head is measured."""

TextOption = Annotated[str | None, Option(help="Text to look at.", metavar="S")]
FileOption = Annotated[str | None, Option(help="File with the text to look at; '-' is standard input.", metavar="F")]
ValOption = Annotated[
    int | None, Option(help="Look at the validation split from this token on; the default is 0.", metavar="OFFSET")
]
MaxCharsOption = Annotated[
    int | None, Option(help="Look at N tokens at most (at most 512): the last N of --text or --file.", metavar="N")
]


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
    passage = _passage(loaded, text, file, val, unknown, encoding, max_chars)
    _check_chosen("--layer", layer, loaded.config.model.n_layer, "layers")
    _check_chosen("--head", head, loaded.config.model.n_head, "heads")
    _check_chosen("--query", query, len(passage.ids), "tokens of the text")
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


def inspect(
    run: RunArgument = "last",
    text: TextOption = None,
    file: FileOption = None,
    val: ValOption = None,
    compare: Annotated[str | None, Option(help="Another run, to see the same text beside.", metavar="RUN")] = None,
    steps: Annotated[
        str | None, Option(help="Show how heads formed, over these checkpoints of the run.", metavar="all|N,...")
    ] = None,
    ablate: Annotated[bool, Option("--ablate", help="Measure what the loss is without each head.")] = False,
    detail: Annotated[
        bool, Option("--detail", help="Add a worked example with all numbers, for 64 tokens at most.")
    ] = False,
    layers: Annotated[str | None, Option(help="Only these layers, counted from 0.", metavar="N,...")] = None,
    out: Annotated[Path, Option("--out", "-o", help="File to write.", metavar="F")] = Path("inspect.html"),
    open_: Annotated[bool, Option("--open", help="Show the page in the browser.")] = False,
    force: Annotated[bool, Option("--force", help="Write a page of more than 16 MB.")] = False,
    checkpoint: CheckpointOption = None,
    unknown: UnknownOption = "error",
    encoding: EncodingOption = "utf-8",
    max_chars: MaxCharsOption = None,
) -> None:
    """Write one web page, complete in itself, to explore what a model does with a text."""
    from tqdm import tqdm

    from minigpt.storage.checkpoint import load_checkpoint
    from minigpt.viewer import inspect_page
    from minigpt.viewer.views import STAGED

    check_writable(out, read=file)
    loaded = load_checkpoint(run, checkpoint)
    refuse_trained_on(loaded.config.data, out)
    if detail and max_chars is None:
        max_chars = STAGED
    passage = _passage(loaded, text, file, val, unknown, encoding, max_chars)
    _notice_left_out(passage)
    other = load_checkpoint(compare) if compare else None
    with tqdm(unit="head", disable=None if ablate else True, leave=False) as bar:

        def tell(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        page = inspect_page(
            loaded, passage,
            layers=_numbers("--layers", layers) if layers is not None else None,
            detail=detail,
            ablate=loaded.validation[:ABLATED] if ablate else None,
            steps=(load_checkpoint(path) for path in _film(loaded, steps)),  # one at a time
            compare=other, force=force, say=notice,
            progress=tell,
        )  # fmt: skip
    write_bytes(page.encode(), out)
    notice(f"wrote {shown(out)}, {len(page.encode()) / 1e6:.2f} MB; it needs no network and can be mailed")
    if open_:
        webbrowser.open(out.absolute().as_uri())


def claims(
    run: Annotated[
        str | None, Argument(help="Also ask this trained run what no formula decides.", metavar="[RUN]")
    ] = None,
    checkpoint: CheckpointOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check what lecture notes say about attention: each claim computed, and corrected where it is wrong."""
    from minigpt.claims import run_claims

    if checkpoint is not None and run is None:
        raise UserError("--checkpoint is one of a run: minigpt claims RUN --checkpoint ...")
    asked: list[Result] = []
    if run is not None:
        from tqdm import tqdm

        from minigpt.claims import trained
        from minigpt.storage.checkpoint import load_checkpoint

        loaded = load_checkpoint(run, checkpoint)
        _notice_checkpoint(loaded)
        with tqdm(total=len(trained.QUESTIONS), unit="question", disable=None, leave=False) as bar:
            asked = trained.ask(loaded, loaded.validation, bar.update)
    found = sorted([*run_claims(), *asked], key=lambda result: result.id)
    if as_json:
        write(json_text([asdict(result) for result in found]))
    else:
        for result in found:
            _print_claim(result)
    failed = [result.id for result in found if result.verdict == "FAIL"]
    if failed:
        raise UserError(f"{len(failed)} of {len(found)} claims do not hold: {', '.join(map(str, failed))}")


def _print_claim(result: "Result") -> None:
    print(f"{result.id:>3}  {result.verdict}  {result.claim}  (notes {result.note})")
    if result.correction:
        print(f"     right is: {result.correction}")
    print(f"     measured: {result.measured}  [{result.where}]")


def _film(loaded: "Checkpoint", steps: str | None) -> list[Path]:
    """Return the checkpoints of the run that a film is made of. Raises UserError for a step that is not there."""
    from minigpt.storage.runs import checkpoint_steps, step_folder

    if steps is None:
        return []
    folder = loaded.path.parent.parent
    there = checkpoint_steps(folder)
    if not there:
        raise UserError("--steps: a checkpoint folder by itself has no others; name the run")
    chosen = _spread(there) if steps == "all" else _numbers("--steps", steps)
    if steps == "all" and len(chosen) < len(there):
        notice(f"a film has {len(chosen)} checkpoints at most: these are spread over the {len(there)} there are")
    for step in chosen:
        if step not in there:
            raise UserError(f"--steps: there is no checkpoint of step {step}, only {', '.join(map(str, there))}")
    if len(chosen) == 1:
        notice("a film of one step: --set train.keep_last=20 makes a run keep more of its checkpoints")
    return [step_folder(folder, step) for step in sorted(set(chosen))]


def _spread(steps: list[int]) -> list[int]:
    """Return as many of the steps as a film can have, from the first to the last."""
    from minigpt.viewer.views import MOST_STEPS

    count = min(MOST_STEPS, len(steps))
    return sorted({steps[round(at * (len(steps) - 1) / max(1, count - 1))] for at in range(count)})


def _numbers(option: str, given: str) -> list[int]:
    try:
        return [int(part) for part in given.split(",")]
    except ValueError as error:
        raise UserError(f"{option} {given}: expected whole numbers separated by commas") from error


def _passage(
    loaded: "Checkpoint",
    text: str | None,
    file: str | None,
    val: int | None,
    unknown: str,
    encoding: str,
    max_chars: int | None,
) -> "Passage":
    """Return the text to look at: the one given, or else a part of the validation split, or of the model's own."""
    from minigpt.interpret import passage

    if sum(choice is not None for choice in (text, file, val)) > 1:
        raise UserError("--text, --file and --val exclude each other")
    if max_chars is not None and not 1 <= max_chars <= passage.MOST:
        raise UserError(f"--max-chars {max_chars}: expected 1 to {passage.MOST}")
    on_unknown = checked_unknown(unknown)
    if text is not None:
        return passage.given(loaded, encode(loaded.tokenizer, text, on_unknown), "the text given", max_chars)
    if file is not None:
        content = read_text(file, encoding)
        name = "standard input" if file == "-" else Path(file).name
        return passage.given(loaded, encode(loaded.tokenizer, content, on_unknown), name, max_chars)
    try:
        tokens = loaded.validation
    except UserError as error:
        if val is not None:
            raise
        notice(f"{error}; looking at a text that the model draws itself")
        return passage.of_the_model(loaded, max_chars)
    return passage.of_validation(loaded, tokens, val or 0, max_chars)


def _check_chosen(option: str, value: int | None, count: int, what: str) -> None:
    if value is not None and not 0 <= value < count:
        raise UserError(f"{option} {value}: there are {count} {what}, counted from 0")


def _notice_checkpoint(loaded: "Checkpoint") -> None:
    from minigpt.interpret.record import doubt

    loss = loaded.meta.validation_loss
    measured = "" if loss is None else f", validation loss measured last {loss:.4f}"
    notice(f"{loaded.path}: step {loaded.meta.step}{measured}")
    if problem := doubt(loaded):
        notice(problem)


def _notice_left_out(passage: "Passage") -> None:
    if passage.left_out:
        notice(f"looking at the last {len(passage.ids)} of {len(passage.ids) + passage.left_out:,} tokens")


def _notice_passage(loaded: "Checkpoint", passage: "Passage", seen: "Extraction") -> None:
    _notice_left_out(passage)
    _notice_checkpoint(loaded)
    notice(f"{len(passage.ids)} tokens, {passage.source}; fast path and formula agree to {seen.disagreement:.1e}")


def _probe(loaded: "Checkpoint", passage: "Passage", seen: "Extraction", spans: tuple[str, str]) -> "Score":
    """Return the score of --probe. Raises UserError when the text has no such places."""
    from minigpt.interpret.scores import span_probe

    if not all(spans):
        raise UserError("--probe: expected two strings that stand in the text")
    asking, asked = (loaded.tokenizer.encode(span, "error").tolist() for span in spans)
    score = span_probe(seen.weights, passage.ids.tolist(), asking, asked)
    if math.isnan(score.uniform):
        raise UserError(f"--probe: in the text looked at, no '{shown(spans[1])}' comes before a '{shown(spans[0])}'")
    return score


def _show_query(
    seen: "Extraction", passage: "Passage", chosen: list[tuple[int, int]], query: int, coloured: bool
) -> None:
    """Print where one query looks: the text in colours if that was asked for, and the keys that it looks at most."""
    import torch

    from minigpt.interpret import terminal
    from minigpt.interpret.passage import glyph

    row = torch.stack([seen.weights[layer, head, query] for layer, head in chosen]).mean(0)  # (S,)
    whose = "layer {} head {}".format(*chosen[0]) if len(chosen) == 1 else f"mean of {len(chosen)} heads"
    print(f"query {query} {visible(glyph(passage.characters[query]))}, {whose}")
    if coloured:
        if os.environ.get("NO_COLOR"):
            print(terminal.shaded(passage.characters, row, query, shutil.get_terminal_size().columns))
        else:
            print(terminal.coloured(passage.characters, row, query))
    strongest = row[: query + 1].topk(min(10, query + 1))
    rows = [
        (str(place), visible(glyph(passage.characters[place])), f"{weight:.4f}")
        for weight, place in zip(strongest.values.tolist(), strongest.indices.tolist(), strict=True)
    ]
    table(("key", "", "weight"), rows)
