"""`minigpt runs`."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from minigpt.cli.options import JsonOption, complete_run
from minigpt.cli.output import duration, json_text, notice, table, write
from minigpt.errors import RunNotFoundError, UserError, count, escape
from minigpt.paths import RUNS
from minigpt.training.signals import STDERR

CORPUS_WIDTH = 40


def runs(
    folder: Annotated[Path, Argument(help="Folder that contains the runs.", metavar="FOLDER")] = RUNS,
    diff: Annotated[bool, Option("--diff", help="Show the settings that differ between the runs.")] = False,
    verify: Annotated[bool, Option("--verify", help="Check every checkpoint and frame of every run.")] = False,
    again: Annotated[
        str | None,
        Option("--replay", help="Train RUN again and compare its weights.", metavar="RUN", autocompletion=complete_run),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the runs, the most recently trained last.

    Examples:
      minigpt runs
      minigpt runs --diff
      minigpt runs --verify
      minigpt runs --replay shakespeare-cpu-1
    """
    from minigpt.storage.runs import all_runs, find_checkpoint

    if folder != RUNS and not folder.is_dir():
        raise RunNotFoundError(f"folder {escape(folder.absolute())} does not exist", name=str(folder))
    if again is not None:
        if diff or verify:
            raise UserError("--replay cannot be combined with --diff or --verify")
        _replay(find_checkpoint(again, "last", folder), as_json)
        return
    if verify:
        _verify_runs(folder, as_json)
        return
    summaries = [_summary(run, with_settings=diff or as_json) for run in all_runs(folder)]
    if as_json:
        write(json_text(summaries))
        return
    if not summaries:
        raise RunNotFoundError(f"there are no runs in {escape(folder.absolute())}", name=str(folder))
    _print_table(summaries, with_settings=diff)


def _print_table(summaries: list[dict[str, Any]], with_settings: bool) -> None:
    """Print a row per run. If `with_settings`, show the settings that differ, and leave out most of the rest."""
    from minigpt.config.resolve import show

    settings = [_compared_settings(summary) for summary in summaries]
    readable = [values for values in settings if values]
    keys = [key for key in (readable or [{}])[0] if len({str(values[key]) for values in readable}) > 1]
    names = [key.split(".")[1] for key in keys]
    rows = []
    for summary, values in zip(summaries, settings, strict=True):
        cells = _cells(summary)
        columns = {name: cells[name] for name in ("run", "step", "best loss")} if with_settings else cells
        rows.append([*columns.values(), *(_shorten(show(values[key])) if values else "" for key in keys)])
    table([*columns, *(key if names.count(name) > 1 else name for key, name in zip(keys, names, strict=True))], rows)


def _summary(run: Path, with_settings: bool) -> dict[str, Any]:
    """Return a summary of a run. Values are None if the newest checkpoint is missing or damaged."""
    from minigpt.config.resolve import flatten
    from minigpt.storage.checkpoint import read_settings
    from minigpt.storage.metadata import read_metadata
    from minigpt.storage.runs import checkpoint_steps, is_training, last_trained, step_folder

    steps, metadata, settings = checkpoint_steps(run), None, None
    with suppress(UserError):
        if steps:
            metadata = read_metadata(step_folder(run, steps[-1]))
            settings = flatten(read_settings(step_folder(run, steps[-1]), metadata)) if with_settings else None
    state = "damaged" if steps and metadata is None else ""
    if is_training(run):
        state = "training"
    return {
        "name": run.name,
        "state": state,
        "corpus": metadata.corpus if metadata else None,
        "parameters": metadata.parameters if metadata else None,
        "step": steps[-1] if steps else None,
        "best_loss": metadata.state.best_loss if metadata else None,
        "last_trained": last_trained(run),
        "fingerprint": metadata.fingerprint if metadata else None,
        "origin": metadata.origin.model_dump() if metadata and metadata.origin else None,
        "settings": settings,
    }


def _compared_settings(summary: dict[str, Any]) -> dict[str, Any]:
    """Return what may differ between runs: the settings, the text and the origin. Empty if they are unknown."""
    if not summary["settings"]:
        return {}
    origin = summary["origin"]
    start = f"{origin['run']} step {origin['step']}" if origin else "none"
    return {"data.text hash": (summary["fingerprint"] or "")[:6], "run.from": start, **summary["settings"]}


def _cells(summary: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a run, by the names of their columns."""
    parameters, step, best_loss = summary["parameters"], summary["step"], summary["best_loss"]
    return {
        "run": summary["name"],
        "text": _shorten(summary["corpus"] or ""),
        "parameters": "" if parameters is None else f"{parameters:,}",
        "step": "no checkpoint" if step is None else f"{step:,}",
        "best loss": "" if best_loss is None else f"{best_loss:.4f}",
        "trained": f"{duration(max(0.0, time.time() - summary['last_trained']))} ago",
        "": summary["state"],
    }


def _verify_runs(folder: Path, as_json: bool) -> None:
    from minigpt.cli.verify import verify_runs

    checked = list(verify_runs(folder))
    if as_json:
        write(json_text(checked))
    elif not checked:
        notice(f"there are no runs in {escape(folder.absolute())}")
    problems = [[str(cell) for cell in item.values()] for item in checked if item["problem"]]
    if problems and not as_json:
        table(("run", "checkpoint", "problem"), problems)
    if problems:
        have = "has" if len(problems) == 1 else "have"
        raise UserError(f"{len(problems)} of {count(len(checked), 'checkpoint')} {have} a problem")
    if checked and not as_json:
        runs = {item["run"] for item in checked}
        print(f"{count(len(checked), 'checkpoint')} of {count(len(runs), 'run')} are intact")


def _replay(path: Path, as_json: bool) -> None:
    from tqdm import tqdm

    from minigpt.cli.replay import replay
    from minigpt.storage.checkpoint import load_checkpoint

    checkpoint = load_checkpoint(path)
    run, step = checkpoint.run_name, checkpoint.metadata.step
    different = replay(checkpoint, lambda steps: tqdm(steps, unit="step", file=STDERR, disable=None))
    if as_json:
        write(json_text({"run": run, "step": step, "different": different}))
    if different:
        others = "; a run that changed its machine or train.micro_batch_size cannot be replayed"
        raise UserError(f"{count(len(different), 'tensor')} of run {run} differ up to step {step:,}{others}")
    if not as_json:
        print(f"run {run}: training again gives the same weights at step {step:,}, bit for bit")


def _shorten(name: str) -> str:
    """Shorten a name to fit a column."""
    return name if len(name) <= CORPUS_WIDTH else f"{name[: CORPUS_WIDTH // 2 - 2]}...{name[-CORPUS_WIDTH // 2 + 1 :]}"
