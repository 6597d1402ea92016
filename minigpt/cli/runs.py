"""`minigpt runs`."""

import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from minigpt.cli.options import LIST, JsonOption, RunArgument, RunsArgument, RunsFolderOption, complete_run, only_list
from minigpt.cli.output import duration, json_text, notice, size, table, write
from minigpt.errors import RunNotFoundError, UserError, count, escape
from minigpt.paths import RUNS
from minigpt.training.signals import STDERR

runs_app = typer.Typer(**LIST)
CORPUS_WIDTH = 40


@runs_app.callback(invoke_without_command=True)
def runs(context: typer.Context, folder: RunsFolderOption = RUNS, as_json: JsonOption = False) -> None:
    """List the runs, the most recently trained last, or manage them.

    Examples:
      minigpt runs
      minigpt runs show mine
      minigpt runs rm old-1 old-2
    """
    if only_list(context):
        return
    from minigpt.storage.runs import all_runs

    if folder != RUNS and not folder.is_dir():
        raise RunNotFoundError(f"folder {escape(folder.absolute())} does not exist", name=str(folder))
    summaries = [_summary(run) for run in all_runs(folder)]
    if as_json:
        write(json_text(summaries))
    elif summaries:
        rows = [_cells(summary) for summary in summaries]
        table(list(rows[0]), [list(row.values()) for row in rows])
    else:
        raise RunNotFoundError(f"there are no runs in {escape(folder.absolute())}", name=str(folder))


@runs_app.command("show")
def runs_show(run: RunArgument = "last", as_json: JsonOption = False) -> None:
    """Print the losses, commands, sizes and settings of a run.

    Examples:
      minigpt runs show mine
      minigpt runs show mine@400
    """
    from minigpt.config.resolve import flatten, show
    from minigpt.config.schema import RunConfig
    from minigpt.storage.checkpoint import read_without_weights
    from minigpt.storage.records import read_starts
    from minigpt.storage.runs import checkpoint_steps, find_checkpoint, split_step

    name, which = split_step(run)
    checkpoint = read_without_weights(find_checkpoint(name, which or "last"))
    folder, state = checkpoint.path.absolute().parents[1], checkpoint.metadata.state
    settings, defaults = flatten(checkpoint.config), flatten(RunConfig())
    commands = [start.get("command") for start in read_starts(folder)]
    facts = {
        **_summary(folder),
        **state.summary,
        "checkpoints": checkpoint_steps(folder),
        "commands": [command for command in commands if isinstance(command, list)],
        "bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        "settings": settings,
    }
    if as_json:
        write(json_text(facts))
        return
    losses = [
        f"{loss:.4f} {what}"
        for what, loss in (("training", state.train_loss), ("validation", state.validation_loss))
        if loss is not None
    ]
    best = "" if state.best_loss is None else f", best {state.best_loss:.4f} at step {state.best_step}"
    print(f"run          {escape(folder)}")
    print(f"text         {escape(checkpoint.metadata.corpus)}")
    print(f"parameters   {checkpoint.metadata.parameters:,}")
    print(f"step         {state.step:,} after {duration(state.seconds)}")
    print(f"loss         {', '.join(losses) or 'not measured yet'}{best}")
    print(f"checkpoints  {', '.join(map(str, facts['checkpoints']))}")
    print(f"size         {size(facts['bytes'])}")
    for command in facts["commands"]:
        print(f"command      {escape(shlex.join(['minigpt', *map(str, command[1:])]))}")
    changed = [(key, show(value), show(defaults[key])) for key, value in settings.items() if value != defaults[key]]
    print()
    table(("setting", "value", "default"), changed)


@runs_app.command("rm")
def runs_rm(runs: RunsArgument, force: Annotated[bool, Option("--force", help="Do not ask.")] = False) -> None:
    """Delete runs. A run that is training, or has files that minigpt did not write, is kept.

    Examples:
      minigpt runs rm old-1 old-2
    """
    from minigpt.storage.runs import find_run, remove_run

    folders = [find_run(name) for name in runs]
    names = ", ".join(escape(folder) for folder in folders)
    if not force and not sys.stdin.isatty():
        raise UserError(f"this deletes {names} for good; to delete without a question, add --force")
    if not force:
        STDERR.write(f"delete {names}? [y/N] ")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UserError("nothing was deleted")
    for folder in folders:
        remove_run(folder)
        notice(f"deleted {escape(folder)}")


@runs_app.command("verify")
def runs_verify(
    runs: Annotated[
        list[str] | None, Argument(help="Runs. Default: all of them.", metavar="[RUN]...", autocompletion=complete_run)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that no checkpoint or frame has changed since it was saved.

    Examples:
      minigpt runs verify
      minigpt runs verify mine
    """
    from minigpt.cli.verify import verify_runs
    from minigpt.storage.runs import find_run

    checked = list(verify_runs([find_run(name) for name in runs or ()]))
    problems = [[str(cell) for cell in item.values()] for item in checked if item["problem"]]
    if as_json:
        write(json_text(checked))
    elif not checked:
        notice(f"there are no runs in {escape(RUNS.absolute())}")
    elif problems:
        table(("run", "checkpoint", "problem"), problems)
    else:
        names = {item["run"] for item in checked}
        print(f"{count(len(checked), 'checkpoint')} of {count(len(names), 'run')} are intact")
    if problems:
        have = "has" if len(problems) == 1 else "have"
        raise UserError(f"{len(problems)} of {count(len(checked), 'checkpoint')} {have} a problem")


@runs_app.command("replay")
def runs_replay(run: RunArgument = "last", as_json: JsonOption = False) -> None:
    """Train a run again, up to its newest checkpoint or to STEP, and compare the weights bit by bit.

    Examples:
      minigpt runs replay mine
      minigpt runs replay mine@400
    """
    from tqdm import tqdm

    from minigpt.cli.output import load_torch
    from minigpt.storage.checkpoint import load_checkpoint
    from minigpt.storage.runs import split_step

    load_torch()
    from minigpt.cli.replay import replay

    name, which = split_step(run)
    checkpoint = load_checkpoint(name, which or "last")
    name, step = checkpoint.run_name, checkpoint.metadata.step
    different = replay(checkpoint, lambda steps: tqdm(steps, unit="step", file=STDERR, disable=None))
    if as_json:
        write(json_text({"run": name, "step": step, "different": different}))
    if different:
        others = "; a run that changed its machine or train.micro_batch_size cannot be replayed"
        raise UserError(f"{count(len(different), 'tensor')} of run {name} differ up to step {step:,}{others}")
    if not as_json:
        print(f"run {name}: training again gives the same weights at step {step:,}, bit for bit")


def _summary(run: Path) -> dict[str, Any]:
    """Return a summary of a run. Unknown values are None, as with a damaged checkpoint."""
    from minigpt.storage.metadata import read_metadata
    from minigpt.storage.runs import checkpoint_steps, is_training, last_trained, step_folder

    steps, metadata = checkpoint_steps(run), None
    with suppress(UserError):
        metadata = read_metadata(step_folder(run, steps[-1])) if steps else None
    state = "training" if is_training(run) else "damaged" if steps and metadata is None else ""
    return {
        "name": run.name,
        "state": state,
        "text": metadata.corpus if metadata else None,
        "parameters": metadata.parameters if metadata else None,
        "step": steps[-1] if steps else None,
        "best_loss": metadata.state.best_loss if metadata else None,
        "last_trained": last_trained(run),
        "fingerprint": metadata.fingerprint if metadata else None,
        "origin": metadata.origin.model_dump() if metadata and metadata.origin else None,
    }


def _cells(summary: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a run, by the names of their columns."""
    parameters, step, best_loss = summary["parameters"], summary["step"], summary["best_loss"]
    return {
        "run": summary["name"],
        "text": _shorten(summary["text"] or ""),
        "parameters": "" if parameters is None else f"{parameters:,}",
        "step": "no checkpoint" if step is None else f"{step:,}",
        "best loss": "" if best_loss is None else f"{best_loss:.4f}",
        "trained": f"{duration(max(0.0, time.time() - summary['last_trained']))} ago",
        "": summary["state"],
    }


def _shorten(name: str) -> str:
    """Shorten a name to fit a column."""
    return name if len(name) <= CORPUS_WIDTH else f"{name[: CORPUS_WIDTH // 2 - 2]}...{name[-CORPUS_WIDTH // 2 + 1 :]}"
