"""Move, remove or replace the folder of a run while it trains."""

import os
import random
import shutil
import signal
from pathlib import Path

import processes
from checks import LONG, Report, arguments, compare, find_damage, lost_steps, train_reference
from processes import EVALUATION, READY, SAVE, STEP, Event, Launcher, Result

OTHER = LONG | {"train.seed": 2}
"""The settings of the run that replaces the first."""
KINDS = ("moved", "removed and replaced", "removed", "moved and replaced")


class Moves:
    """Trials in which the folder of a run is moved, removed or replaced during training."""

    def __init__(self, launcher: Launcher, work: Path, seed: int, report: Report) -> None:
        """Train both runs without a fault."""
        self.launcher, self.work, self.random, self.report = launcher, work, random.Random(seed), report
        self.start = processes.write_text(work / "text")
        self.expected, result = train_reference(launcher, processes.copy(self.start, work / "reference"), LONG)
        self.other_expected, _ = train_reference(launcher, processes.copy(self.start, work / "other"), OTHER)
        self.progress = result.progress

    def try_one(self, kind: str) -> None:
        """Train, move or remove the run folder, resume the run where it was saved, and check its replacement.

        Replace a run only between its saves: after the last check of a save, minigpt cannot notice it.
        """
        folder, others = processes.copy(self.start, self.work / "trial"), list[Result]()
        run, old, moved = (folder / "runs" / name for name in ("run", "old", "run-moved"))

        def act(process: int) -> None:
            if kind.startswith("moved"):
                run.rename(old)
            else:
                shutil.rmtree(run)
            if "replaced" in kind:  # continue the first process at a random step of the second
                step = self.random.randint(1, self.progress.entries[STEP])
                go_on = Event(STEP, step, 0, lambda other: os.kill(process, signal.SIGCONT))
                others.append(self.launcher.run(folder, arguments(OTHER), event=go_on, output=folder / "other.txt"))

        phase = self.random.choice((READY, STEP, STEP, EVALUATION) + (() if "replaced" in kind else (SAVE, SAVE)))
        entry = self.random.randint(1, self.progress.entries[phase])
        delay = self.random.uniform(0, 0.03 if phase == READY else self.progress.mean_seconds(phase))
        result = self.launcher.run(folder, arguments(LONG), event=Event(phase, entry, delay, act))
        lost, problem = lost_steps(result, moved), self._find_problem(result, old, moved)
        for other in others:
            problem = problem or (f"the other run: {other.last_line}" if other.code else None)
            problem = problem or compare(self.other_expected, run)
        where = f"{processes.PHASES[result.progress.phase]}, step {result.progress.step}"
        self.report.add(f"run folder {kind} while training", problem, where, lost)

    def _find_problem(self, result: Result, old: Path, moved: Path) -> str | None:
        """Return what is wrong with the first process and what it saved."""
        folder = old.parents[1]
        if result.code == 0 and result.progress.step == LONG["train.steps"]:  # moved after the last check
            if not old.exists():
                return None
            saved = old
        else:
            problem = result.problem_with_error() or find_damage(moved, result.progress.step)
            if problem:
                return problem
            saved = moved
        resume = self.launcher.run(folder, arguments(LONG, saved.name))
        return f"exit code {resume.code}: {resume.last_line}" if resume.code else compare(self.expected, saved)
