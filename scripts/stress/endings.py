"""What a run must come to whatever is done to it: whole checkpoints, and the ending of an untouched run."""

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from victims import Ended, Stable

Item = TypeVar("Item")

TIMED = ("time", "memory/bytes", "speed/")
SMALL: dict[str, Any] = {
    "model.n_layer": 1,
    "model.n_embd": 16,
    "model.context": 16,
    "train.batch_size": 4,
    "train.keep_last": 2,
    "sample.preview": 10,
    "runtime.dtype": "float32",
    "runtime.threads": 1,
    "runtime.compile": "false",
}
LONGER = SMALL | {"train.steps": 60, "train.log_every": 7, "train.eval_every": 10, "train.save_every": 9}
SHORTER = SMALL | {"train.steps": 12, "train.log_every": 3, "train.eval_every": 8, "train.save_every": 4}


def arguments(settings: dict[str, Any], name: str = "run") -> list[str]:
    """Return the command line of a new run with these settings."""
    words = (word for key, value in settings.items() for word in ("-s", f"{key}={value}"))
    return ["text.txt", "-c", "tiny", *words, "--name", name]


def newest(run: Path) -> int:
    """Return the step of the newest checkpoint that is seen, 0 without one."""
    from minigpt.storage.runs import checkpoint_steps

    return max(checkpoint_steps(run), default=0)


def lost_steps(ended: Ended, run: Path) -> int | None:
    """Return how many of the steps made have to be made again; None when there were none."""
    return max(0, ended.board.step - newest(run)) if ended.board.step else None


# --- what is seen is whole ---------------------------------------------------------------------------


def damage(run: Path, saved: int = 0) -> str | None:
    """Return what is wrong with the checkpoints that are seen, of which `saved` or a later one must be one."""
    from minigpt.errors import UserError
    from minigpt.storage.metadata import verify
    from minigpt.storage.runs import checkpoint_steps, step_folder

    if newest(run) < saved:
        return f"the checkpoint of step {saved} is lost; there are {checkpoint_steps(run) or 'none'}"
    try:
        for step in checkpoint_steps(run):
            verify(step_folder(run, step))
    except UserError as error:
        return str(error)
    return None


def damage_after_cut(run: Path, saved: int) -> str | None:
    """Return what is wrong with a run on a disk after a power cut, when the save of step `saved` was done."""
    from minigpt.config import presets
    from minigpt.errors import UserError
    from minigpt.storage.runs import pointed_step

    problem = damage(run, saved)
    if problem or not saved:
        return problem
    try:
        presets.read_layer(str(run / "config.yaml"))
    except UserError as error:
        return str(error)
    lost = [name for name in ("last", "best") if pointed_step(run, name) is None]
    return f"pointers that name no checkpoint: {', '.join(lost)}" if lost else None


# --- the ending is the same --------------------------------------------------------------------------


def ending(run: Path) -> dict[str, Any]:
    """Return all of a run that must be the same to the last bit: its newest checkpoint, pointers and curves."""
    folder = run / f"checkpoints/step-{newest(run):08d}"
    state = json.loads((folder / "meta.json").read_bytes())["state"]
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    whole = [json.loads(line) for line in lines if line.endswith("\n")]
    return {
        "weights": (folder / "model.safetensors").read_bytes(),
        "optimizer": (folder / "optimizer.safetensors").read_bytes(),
        "state": {key: value for key, value in state.items() if key != "seconds"},
        "pointers": [(run / "checkpoints" / name).read_text(encoding="utf-8") for name in ("last", "best")],
        "curves": [{tag: value for tag, value in line.items() if not tag.startswith(TIMED)} for line in whole],
        "half a line": "".join(lines[len(whole) :]),
        "TensorBoard": escape(run),
        "leftovers": sorted(path.name for path in (run / "checkpoints").glob(".*")),
    }


def escape(run: Path) -> list[tuple[str, int, bytes]]:
    """Return what TensorBoard shows of a run: each tag, step and value as often as it shows it."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells of each resume
    events = EventAccumulator(str(run / "tensorboard"), tensor_size_guidance=dict.fromkeys(("scalars", "text"), 0))
    events.Reload()
    return sorted(
        (tag, event.step, event.tensor_proto.SerializeToString())
        for tag in events.Tags()["tensors"]
        if not tag.startswith(TIMED)
        for event in events.Tensors(tag)
    )


def difference(expected: dict[str, Any], run: Path, ignore: Sequence[str] = ()) -> str | None:
    """Return in what a run's ending differs from the expected one."""
    try:
        found = ending(run)
    except (OSError, ValueError, KeyError) as error:
        return f"cannot be read: {error}"
    different = [part for part in found if part not in ignore and found[part] != expected[part]]
    return f"other {', '.join(different)}" if different else None


def untouched(stable: Stable, folder: Path, settings: dict[str, Any]) -> tuple[dict[str, Any], Ended]:
    """Train without a fault; return the ending that every other run must have."""
    ended = stable.run(folder, arguments(settings, "untouched"))
    if ended.code:
        raise RuntimeError(f"the untouched run failed:\n{ended.output}")
    return ending(folder / "runs/untouched"), ended


def name_is_free(run: Path) -> bool:
    """Return whether a process that was killed left so little of a run that its name must be free again."""
    return not run.exists() or {path.name for path in run.iterdir()} <= {".lock"}


def go_on(
    stable: Stable, folder: Path, settings: dict[str, Any], expected: dict[str, Any], ignore: Sequence[str] = ()
) -> str | None:
    """Resume runs/run, or start it anew where nothing was saved; return how it differs from the expected ending."""
    run = folder / "runs/run"
    if there := newest(run):
        ended = stable.run(folder, ["--resume", "run"])
    else:
        run = run if name_is_free(run) else run.with_name("anew")
        ended = stable.run(folder, arguments(settings, run.name))
    if there == settings["train.steps"]:  # the refusal to go on finishes what was left undone of the last save
        problem = None if "is finished" in ended.output else ended.refusal
    else:
        problem = f"exit code {ended.code}: {ended.last_line}" if ended.code else None
    return problem or difference(expected, run, ignore)


# --- the table ---------------------------------------------------------------------------------------


@dataclass
class Row:
    """A line of the table."""

    fault: str
    tried: int = 0
    survived: int = 0
    lost: int | None = None
    """The most steps that had to be made again; None where that could not be seen."""
    problems: list[str] = field(default_factory=list)


class Report:
    """The table, filled as faults are tried."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def add(self, fault: str, problem: str | None, where: str, lost: int | None = None) -> None:
        """Count a fault that was tried; `problem` says why it was not survived."""
        row = self.rows.setdefault(fault, Row(fault))
        row.tried += 1
        row.survived += problem is None
        if lost is not None:
            row.lost = max(lost, row.lost or 0)
        if problem is not None:
            row.problems.append(f"{where}: {problem}")
            print(f"{fault}: {where}: {problem}", file=sys.stderr, flush=True)

    @property
    def failed(self) -> int:
        """Return how many faults were not survived."""
        return sum(row.tried - row.survived for row in self.rows.values())

    def __str__(self) -> str:
        head = f"{'fault':56}{'tried':>8}{'survived':>10}{'most lost steps':>17}"
        lines = (
            f"{row.fault:56}{row.tried:8,}{row.survived:10,}{'-' if row.lost is None else row.lost:>17}"
            for row in self.rows.values()
        )
        return "\n".join((head, *lines))


def spread(items: Sequence[Item], most: int | None) -> list[Item]:
    """Return at most so many of the items, evenly spread."""
    if most is None or len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / max(1, most - 1))] for i in range(most)]
