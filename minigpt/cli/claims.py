"""`minigpt claims`."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from minigpt.cli.excerpt import notice_checkpoint
from minigpt.cli.input import validation_tokens
from minigpt.cli.options import CheckpointOption, JsonOption
from minigpt.cli.output import json_text, wrapped, write
from minigpt.errors import UserError
from minigpt.paths import RUNS, is_run

if TYPE_CHECKING:
    from minigpt.claims.claim import Result

INDENT = 17
"""Columns before the text of a claim."""


def claims(
    run: Annotated[
        str | None,
        Argument(help="A trained run, to check claims about training, or a claim's number.", metavar="[RUN]"),
    ] = None,
    figures: Annotated[
        bool, Option("--figures", help="Print what the notes say and what each check measured.")
    ] = False,
    checkpoint: CheckpointOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check statements about attention, and correct lecture notes that are wrong.

    Examples:
      minigpt claims
      minigpt claims 9               one claim, with its figures
      minigpt claims mine            also claims about a trained model
    """
    from minigpt.claims.run import run_claims

    if checkpoint is not None and run is None:
        raise UserError("--checkpoint needs a run: minigpt claims RUN --checkpoint ...")
    number = int(run) if run is not None and run.isdecimal() and not is_run(RUNS / run) else None
    answers = _ask_run(run, checkpoint) if run is not None and number is None else []
    results = sorted(run_claims() + answers, key=lambda result: result.id)
    failed = [str(result.id) for result in results if result.verdict == "FAIL"]
    if number is not None:
        results = [result for result in results if result.id == number]
        if not results:
            raise UserError(f"there is no claim {number} without a run; to list the claims: minigpt claims")
    if as_json:
        write(json_text([asdict(result) for result in results]))
    else:
        _print_results(results, figures or number is not None)
    if failed:
        raise UserError(f"{len(failed)} claims do not hold: {', '.join(failed)}")


def _ask_run(run: str, checkpoint: str | None) -> "list[Result]":
    from tqdm import tqdm

    from minigpt.claims.trained import QUESTIONS, ask
    from minigpt.storage.checkpoint import load_checkpoint

    loaded = load_checkpoint(run, checkpoint)
    with tqdm(total=len(QUESTIONS), unit="question", disable=None, leave=False) as bar:
        answers = ask(loaded, validation_tokens(loaded), bar.update)
    notice_checkpoint(loaded)
    return answers


def _print_results(results: "Sequence[Result]", with_figures: bool) -> None:
    """Print the claims by part, with a summary at the end."""
    from minigpt.claims.claim import Result

    parts = defaultdict[str, list[Result]](list)
    for result in results:
        parts[result.part].append(result)
    for part, members in parts.items():
        print(part)
        for result in members:
            _print_result(result, with_figures)
        print()
    counts = Counter(result.verdict for result in results)
    print(", ".join(f"{count} {verdict.lower()}" for verdict, count in counts.items()))


def _print_result(result: "Result", with_figures: bool) -> None:
    """Print the title of a claim. Add what the notes say if that is wrong or if figures are wanted."""
    lines = {"notes": result.notes_say, "wrong": result.mistake} if result.mistake or with_figures else {}
    if with_figures:
        lines |= {"measured": result.measured, "trained": " ".join(result.trained)}
        lines |= {"source": f"{result.where}, notes {result.notes}"}
    wrapped(f"{result.id:>4}  {result.verdict:<9}  {result.title}", INDENT)
    for name, text in lines.items():
        if text:
            wrapped(f"      {name + ':':<10} {text}", INDENT)
