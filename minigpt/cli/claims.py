"""`minigpt claims`."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from minigpt.cli.excerpt import notice_checkpoint
from minigpt.cli.input import validation_tokens
from minigpt.cli.options import CheckpointOption, JsonOption
from minigpt.cli.output import json_text, write
from minigpt.errors import UserError

if TYPE_CHECKING:
    from minigpt.claims.claim import Result


def claims(
    run: Annotated[
        str | None, Argument(help="A trained run. Also check the claims that depend on training.", metavar="[RUN]")
    ] = None,
    checkpoint: CheckpointOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check statements about attention from lecture notes, and correct the wrong ones."""
    from minigpt.claims.run import run_claims

    if checkpoint is not None and run is None:
        raise UserError("--checkpoint needs a run: minigpt claims RUN --checkpoint ...")
    results = run_claims()
    if run is not None:
        results += _ask_run(run, checkpoint)
    results.sort(key=lambda result: result.id)
    if as_json:
        write(json_text([asdict(result) for result in results]))
    else:
        for result in results:
            _print_result(result)
    failed = [str(result.id) for result in results if result.verdict == "FAIL"]
    if failed:
        raise UserError(f"{len(failed)} of {len(results)} claims do not hold: {', '.join(failed)}")


def _ask_run(run: str, checkpoint: str | None) -> "list[Result]":
    from tqdm import tqdm

    from minigpt.claims.trained import QUESTIONS, ask
    from minigpt.storage.checkpoint import load_checkpoint

    loaded = load_checkpoint(run, checkpoint)
    notice_checkpoint(loaded)
    with tqdm(total=len(QUESTIONS), unit="question", disable=None, leave=False) as bar:
        return ask(loaded, validation_tokens(loaded), bar.update)


def _print_result(result: "Result") -> None:
    print(f"{result.id:>3}  {result.verdict}  {result.claim}  (notes {result.note})")
    if result.correction:
        print(f"     correct: {result.correction}")
    print(f"     measured: {result.measured}  [{result.where}]")
