"""`minigpt claims`."""

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from minigpt.cli.options import JsonOption
from minigpt.cli.output import json_text, wrapped, write
from minigpt.errors import UserError, escape

if TYPE_CHECKING:
    from minigpt.course.claims.claim import Result

INDENT = 12
"""Columns before the text of a claim."""


def claims(
    numbers: Annotated[list[str] | None, Argument(help="Numbers of claims. Default: all.", metavar="N")] = None,
    as_json: JsonOption = False,
) -> None:
    """Correct common mistakes about attention, and test each correction.

    Examples:
      minigpt claims
      minigpt claims 9               one claim, and what its test measured
    """
    from minigpt.course.claims.run import CLAIMS, run_claims

    numbers_of_claims = {str(claim.id) for claim in CLAIMS}
    for number in numbers or []:
        if number not in numbers_of_claims:
            raise UserError(f"there is no claim {escape(number)}; to list the claims: minigpt claims")
    results = run_claims(numbers or ())
    if as_json:
        from dataclasses import asdict

        write(json_text([asdict(result) for result in results]))
    else:
        for part, members in groupby(results, key=lambda result: result.part):
            print(part)
            for result in members:
                _print_result(result, bool(numbers))
            print()
        counts = Counter(result.verdict for result in results)
        print(", ".join(f"{count} {verdict.lower()}" for verdict, count in counts.items()))
    if failed := sorted(result.id for result in results if result.verdict == "FAIL"):
        raise UserError(f"{len(failed)} of {len(results)} claims failed: {', '.join(map(str, failed))}")


def _print_result(result: "Result", with_figures: bool) -> None:
    """Print a claim, and what corrects a mistake. `with_figures` adds what its test and recorded runs measured."""
    lines = [("said", result.said), ("wrong", result.mistake)] if result.mistake else []
    if with_figures:
        lines += [("measured", result.measured), ("trained", " ".join(result.trained)), ("source", result.where)]
    wrapped(f"{result.id:>4}  {result.verdict}  {result.title}", INDENT)
    for name, text in lines:
        if text:
            wrapped(f"      {name + ':':<10} {text}", INDENT + 5)
