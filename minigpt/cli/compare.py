"""`minigpt compare`."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from minigpt.cli.options import RUN, DeviceOption, JsonOption, complete_run, runtime_settings
from minigpt.cli.output import json_text, load_torch, table, write
from minigpt.errors import escape

if TYPE_CHECKING:
    from minigpt.interpret.comparison import Comparison, Group, Measured


def compare(
    runs: Annotated[list[str], Argument(help=RUN, metavar="RUN RUN...", autocompletion=complete_run)],
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Compare runs: size, time, loss, throughput, and the settings that differ.

    Runs that differ only in their seed share a row: the means, and the standard error of the losses.

    Examples:
      minigpt compare gpt-1 lstm-1
      minigpt compare gpt-1@best gpt-1@last
    """
    load_torch()
    from tqdm import tqdm

    from minigpt.interpret.comparison import compare as compare_runs
    from minigpt.interpret.comparison import measure
    from minigpt.model.device import choose_runtime
    from minigpt.storage.checkpoint import load_checkpoint

    loaded = {name: load_checkpoint(name) for name in runs}
    settings, measured = runtime_settings(device), []
    for name, checkpoint in tqdm(loaded.items(), unit="run", disable=None, leave=False):
        measured.append(measure(name, checkpoint, choose_runtime(settings, checkpoint.metadata.runtime)))
    comparison = compare_runs(measured)
    if as_json:
        write(json_text(_document(comparison)))
        return
    for note in comparison.notes:
        print(escape(note))
    table(HEAD, _rows(comparison))
    if different := _different_settings(comparison):
        print()
        table(("setting", *(group.name for group in comparison.groups)), different)


HEAD = ("run", "family", "parameters", "steps", "seconds", "loss", "bits/char", "chars/s trained")


def _rows(comparison: "Comparison") -> list[Sequence[str]]:
    return [
        (
            group.name,
            str(group.runs[0].settings["model.family"]),
            f"{group.runs[0].metadata.parameters:,}",
            _number(group.mean(lambda run: run.metadata.step)),
            _number(group.mean(lambda run: run.metadata.state.seconds)),
            _loss(group, lambda run: run.result.loss),
            _loss(group, lambda run: run.result.bits_per_character),
            _number(group.characters_per_second),
        )
        for group in comparison.groups
    ]


def _different_settings(comparison: "Comparison") -> list[Sequence[str]]:
    """Return a row for each setting that differs between the groups, except the seed."""
    from minigpt.config.resolve import show

    settings = [group.runs[0].settings for group in comparison.groups]
    rows = [(key, *(show(values[key]) for values in settings)) for key in settings[0] if key != "train.seed"]
    return [row for row in rows if len(set(row[1:])) > 1]


def _number(value: float | None) -> str:
    return f"{value:,.0f}" if value else ""


def _loss(group: "Group", value: "Callable[[Measured], float]") -> str:
    error = f" ± {group.error(value):.4f}" if len(group.runs) > 1 else ""
    return f"{group.mean(value):.4f}{error}"


def _document(comparison: "Comparison") -> dict[str, Any]:
    """Return a comparison as a JSON document, with an entry for each run."""
    return {
        "ranked_by": comparison.unit if comparison.is_ranked else None,
        "notes": comparison.notes,
        "runs": [
            {
                "name": run.name,
                "group": group.name,
                "checkpoint": escape(run.checkpoint),
                "family": run.settings["model.family"],
                "seed": run.settings["train.seed"],
                "text": run.metadata.corpus,
                "parameters": run.metadata.parameters,
                "steps": run.metadata.step,
                "seconds": run.metadata.state.seconds,
                "machine": run.machine,
                "loss": run.result.loss,
                "bits_per_character": run.result.bits_per_character,
                "curve": run.curve._asdict(),
            }
            for group in comparison.groups
            for run in group.runs
        ],
    }
