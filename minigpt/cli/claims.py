"""`minigpt claims`."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from minigpt.cli.options import (
    CheckpointOption,
    JsonOption,
)
from minigpt.cli.output import json_text, write
from minigpt.errors import UserError

if TYPE_CHECKING:
    from minigpt.claims import Result
from minigpt.cli.excerpt import notice_checkpoint


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
        notice_checkpoint(loaded)
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
