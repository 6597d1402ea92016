"""`minigpt claims`."""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from minigpt.cli.excerpt import notice_checkpoint
from minigpt.cli.hints import checkpoint_argument, shell_quote
from minigpt.cli.input import run_dataset
from minigpt.cli.options import CheckpointOption, JsonOption, complete_run
from minigpt.cli.output import json_text, notice, wrapped, write
from minigpt.errors import UserError, escape

if TYPE_CHECKING:
    from minigpt.course.claims.claim import Head, Result
    from minigpt.storage.checkpoint import Checkpoint

INDENT = 17
"""Columns before the text of a claim."""


def claims(
    which: Annotated[
        list[str] | None,
        Argument(
            help="Numbers of claims, and a trained run for claims about training, in any order. If the name of a run "
            "is a number, give its folder: runs/37.",
            metavar="N|RUN",
            autocompletion=complete_run,
        ),
    ] = None,
    figures: Annotated[
        bool, Option("--figures", help="Print what each check measured, and what is often said.")
    ] = False,
    checkpoint: CheckpointOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check statements about attention, and correct common mistakes.

    Examples:
      minigpt claims
      minigpt claims 9               one claim, with its figures
      minigpt claims mine            also claims about a trained model
      minigpt claims 37 mine         one of these, and how to see it
    """
    from minigpt.course.claims.run import run_claims
    from minigpt.storage.checkpoint import load_checkpoint

    numbers = {word for word in which or [] if word.isdecimal()}
    names = [word for word in which or [] if word not in numbers]
    if len(names) > 1:
        raise UserError(f"expected one run, got {', '.join(map(escape, names))}")
    if checkpoint is not None and not names:
        raise UserError("--checkpoint needs a run: minigpt claims last --checkpoint ...")
    _check_numbers(numbers, bool(names))
    results, run = run_claims(numbers), ""
    for name in names:
        loaded = load_checkpoint(name, checkpoint)
        results += _ask(loaded, numbers)
        run = checkpoint_argument(loaded.path)
    if as_json:
        write(json_text([asdict(result) for result in results]))
    else:
        _print_results(results, figures or bool(numbers), run)
    if failed := sorted(result.id for result in results if result.verdict == "FAIL"):
        raise UserError(f"{len(failed)} claims do not hold: {', '.join(map(str, failed))}")


def _check_numbers(numbers: set[str], has_run: bool) -> None:
    """Raise UserError if there is no such claim, or if it needs a run."""
    from minigpt.course.claims.run import CLAIMS
    from minigpt.course.claims.trained import QUESTIONS

    for number in numbers - {str(claim.id) for claim in CLAIMS}:
        if number not in {str(question.id) for question in QUESTIONS}:
            raise UserError(f"there is no claim {number}; to list the claims: minigpt claims last")
        if not has_run:
            raise UserError(f"claim {number} is about a trained run; to check the newest: minigpt claims {number} last")


def _ask(loaded: "Checkpoint", numbers: Collection[str]) -> "list[Result]":
    from tqdm import tqdm

    from minigpt.course.claims.trained import QUESTIONS, ask

    data, metadata = run_dataset(loaded), loaded.metadata
    with tqdm(total=len(QUESTIONS), unit="question", disable=None, leave=False) as bar:
        answers = ask(loaded, data.validation, bar.update, numbers)
    notice_checkpoint(loaded)
    seen, is_new = metadata.state.tokens_seen, metadata.origin is None and not metadata.imported
    if is_new and seen < min(metadata.parameters, len(data.train)):
        few = f"it has trained on {seen:,} tokens, fewer than its text and its {metadata.parameters:,} weights"
        notice(f"This model needs more training, and verdicts can still change: {few}.")
    return answers


def _print_results(results: "Sequence[Result]", with_figures: bool, run: str) -> None:
    """Print the claims by part, with a summary at the end. `run` is the argument that names the run, if any."""
    from minigpt.course.claims.claim import Result

    parts = defaultdict[str, list[Result]](list)
    for result in results:
        parts[result.part].append(result)
    for part, members in parts.items():
        print(part)
        for result in members:
            _print_result(result, with_figures, run)
        print()
    counts = Counter(result.verdict for result in results)
    print(", ".join(f"{count} {verdict.lower()}" for verdict, count in counts.items()))


def _print_result(result: "Result", with_figures: bool, run: str) -> None:
    """Print a claim. Add what corrects a mistake, what a question about a run measured, or all figures."""
    is_question = result.title.endswith("?")
    lines: list[tuple[str, str | None]] = []
    if not is_question and (result.mistake or with_figures):
        lines += [("said", result.said), ("wrong", result.mistake)]
    if is_question or with_figures:
        for measured, head in zip_longest(result.measured.splitlines(), result.heads):
            lines += [("measured", measured), ("look", _look(run, head) if head else None)]
    if with_figures:
        lines += [("trained", " ".join(result.trained)), ("source", result.where)]
    wrapped(f"{result.id:>4}  {result.verdict:<9}  {result.title}", INDENT)
    for name, text in lines:
        line = f"      {name + ':':<10} {text}"
        if name == "look" and text:
            print(line)  # a wrapped command could not be copied
        elif text:
            wrapped(line, INDENT)


def _look(run: str, head: "Head") -> str:
    """Return the command that opens the page on a head."""
    text = "" if head.text is None else f"--text {shell_quote(head.text)} "
    return f"minigpt inspect {run} {text}--layer {head.layer} --head {head.head} --open"
