"""`minigpt compare`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from minigpt.cli.options import DeviceOption, ForceOption, JsonOption, checked_device, complete_run
from minigpt.cli.output import check_writable, json_text, notice, refuse_trained_on, table, write, write_bytes
from minigpt.errors import escape

if TYPE_CHECKING:
    from minigpt.interpret.comparison import Comparison, Group
    from minigpt.interpret.measured import Measured
    from minigpt.storage.checkpoint import Checkpoint

PICTURES = ("steps", "time", "position", "distance")


def compare(
    runs: Annotated[
        list[str],
        Argument(
            help="Names or folders of runs, or folders of checkpoints.", metavar="RUN", autocompletion=complete_run
        ),
    ],
    png: Annotated[
        Path | None,
        Option(help="Save the curves as an image, or as four if FILE is an existing folder.", metavar="FILE"),
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    force: ForceOption = False,
) -> None:
    """Compare runs: size, time, loss and speed in a table, and their curves in pictures.

    Runs that differ only in their seed share a row: the mean, and its standard error.

    Examples:
      minigpt compare gpt-1 lstm-1
      minigpt compare gpt-1 lstm-1 --png curves.png
      minigpt compare gpt-1 gpt-2 lstm-1 lstm-2
    """
    pictures = [png] if png else []
    is_folder = png is not None and png.is_dir()
    if png and is_folder:
        pictures = [png / f"{name}.png" for name in PICTURES]
    check_writable(*pictures, force=force)
    from minigpt.interpret.charts import draw
    from minigpt.interpret.comparison import document
    from minigpt.interpret.curves import panels
    from minigpt.interpret.images import to_png
    from minigpt.interpret.measured import load_runs

    loaded = load_runs(runs)
    for checkpoint in loaded.values():
        refuse_trained_on(checkpoint.config.data, *pictures)
    if len(loaded) < len(runs):
        notice("comparing each run once")
    comparison = _measured(loaded, checked_device(device), with_gradient=bool(png or as_json))
    if pictures:
        charts, labels = panels(comparison), [group.label for group in comparison.groups]
        shown_in = [[chart] for chart in charts] if is_folder else [charts]
        for picture, shown in zip(pictures, shown_in, strict=True):
            write_bytes(to_png(draw(shown, labels)), picture)
    if as_json:
        write(json_text(document(comparison)))
        return
    for note in comparison.notes:
        print(escape(note))
    table(HEAD, _rows(comparison))
    if png:
        notice(f"curves: {escape(png)}")


def _measured(loaded: "dict[str, Checkpoint]", device: str, with_gradient: bool) -> "Comparison":
    from tqdm import tqdm

    from minigpt.config.schema import RuntimeConfig
    from minigpt.interpret.comparison import compare
    from minigpt.interpret.measured import measure
    from minigpt.model.device import choose_runtime

    config, measured = RuntimeConfig(device=device, compile=False), []
    for name, checkpoint in tqdm(loaded.items(), unit="run", disable=None, leave=False):
        measured.append(measure(name, checkpoint, choose_runtime(config, checkpoint.metadata.runtime), with_gradient))
    return compare(measured)


HEAD = (
    "run", "family", "parameters", "steps", "time", "loss", "bits/char", "chars/s trained", "chars/s sampled",
)  # fmt: skip


def _rows(comparison: "Comparison") -> list[Sequence[str]]:
    """Return the rows of the table. `*`: timed on another machine than the first row."""
    groups = comparison.groups
    rows: list[Sequence[str]] = []
    for group in groups:
        mark = "*" if group.machines != groups[0].machines else ""
        one, seconds = group.runs[0], group.mean(lambda run: run.metadata.state.seconds)
        rows.append(
            (
                group.label,
                str(one.settings["model.family"]),
                f"{one.metadata.parameters:,}",
                _number(group.mean(lambda run: run.metadata.step)),
                f"{_number(seconds)} s{mark}" if seconds else "",
                _loss(group, lambda run: run.result.loss),
                _loss(group, lambda run: run.result.bits_per_character),
                _number(group.mean(lambda run: run.curve.characters_per_second)) + mark,
                _number(group.mean(lambda run: run.sampled_per_second)),
            )
        )
    return rows


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _loss(group: "Group", value: "Callable[[Measured], float]") -> str:
    error = group.error(value)
    return f"{group.mean(value):.4f}" + (f" ± {error:.4f}" if error is not None else "")
