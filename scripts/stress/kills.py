"""Kill and interrupt training at random moments, and resume it."""

import itertools
import random
import time
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, Signals
from typing import Any

import processes
from checks import (
    LONG,
    Report,
    arguments,
    compare,
    find_damage,
    is_name_free,
    lost_steps,
    newest_step,
    train_reference,
)
from processes import Kill, Launcher, Result

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "Muon, dropout, accumulation": {"model.dropout": 0.1, "train.micro_batch_size": 2},
    "classic, AdamW, dropout": {"model.family": "classic", "optim.name": "adamw", "model.dropout": 0.2},
    "Muon, dropout, EMA": {"train.ema": 0.99, "model.dropout": 0.1, "optim.schedule": "wsd"},
}


class Kills:
    """Trials that kill runs of one configuration."""

    started = itertools.count()
    """Counts the processes of all configurations."""

    def __init__(
        self, launcher: Launcher, folder: Path, name: str, settings: dict[str, Any], generator: random.Random
    ) -> None:
        """Train without a kill, to learn the final state and how long each phase takes."""
        self.launcher, self.folder, self.name, self.settings = launcher, folder, name, settings
        self.random, began = generator, time.perf_counter()
        self.expected, result = train_reference(launcher, folder, settings)
        self.seconds, self.progress = time.perf_counter() - began, result.progress

    def try_run(self, name: str, kills: int, report: Report) -> int:
        """Train a new run with at most `kills` kills. Return how often it was killed."""
        run, tried = self.folder / "runs" / name, list[str]()
        while newest_step(run) < self.settings["train.steps"]:
            if not newest_step(run) and not is_name_free(run):
                run = run.with_name(f"{run.name}-again")
            words = ["--resume", run.name] if newest_step(run) else arguments(self.settings, run.name)
            before, number = newest_step(run), self.random.choice((SIGKILL, SIGTERM, SIGINT))
            is_separate = next(self.started) % 10 == 0
            if len(tried) == kills:
                result, phase = self.launcher.run(self.folder, words), ""
            elif is_separate:
                moment = self.random.uniform(0, self.seconds + 4)
                result, phase = processes.run_separately(self.folder, words, moment, number), "in a separate process"
            else:
                result = self.launcher.run(self.folder, words, kill=self._random_moment(number))
                phase = processes.PHASES[result.progress.phase]
            if result.was_killed:
                tried.append(f"{number.name} {phase}")
                problem = self._find_problem(result, number, run, before, is_separate)
                report.add(f"{number.name} {phase}", problem, f"{self.name}, {run.name}", lost_steps(result, run))
            elif result.code:
                problem = f"exit code {result.code}: {result.last_line}"
                report.add("resumed after kills", problem, f"{self.name}, {tried}")
                return len(tried)
        self.launcher.run(self.folder, ["--resume", run.name])  # fails, but completes the last save
        if tried:
            where = f"{self.name}, {run.name} after {', '.join(tried)}"
            report.add("resumed after kills", compare(self.expected, run), where)
        return len(tried)

    def _random_moment(self, number: Signals) -> Kill:
        """Choose a phase, one of the first times that it begins, and how long after that to kill."""
        phase = self.random.choices(range(processes.END), weights=(1, 1, 2, 2, 4))[0]
        start = max(0.02, self.seconds - self.progress.mean_seconds(processes.READY))
        duration = {processes.START: start, processes.READY: 0.03}.get(phase, self.progress.mean_seconds(phase))
        entry = self.random.randint(1, max(1, self.progress.entries[phase] // 3)) if phase else 0
        return Kill(phase, entry, self.random.uniform(0, duration), number)

    def _find_problem(self, result: Result, number: Signals, run: Path, before: int, is_separate: bool) -> str | None:
        """Return what is wrong with the way a process reacted to a signal."""
        if is_separate and number == SIGINT and result.output.startswith("Traceback"):
            return find_damage(run, before)  # Python itself was interrupted while it imported modules
        if result.code not in {0, -number, 128 + number} or "Traceback" in result.output:
            return f"exit code {result.code}: {result.last_line}"
        is_saved = result.code == 128 + number and newest_step(run) > 0 and not is_separate
        saved = result.progress.step if is_saved else result.progress.saved
        return find_damage(run, max(before, saved))


def try_kills(launcher: Launcher, work: Path, kills: int, seed: int, report: Report, changes: dict[str, Any]) -> None:
    """Share the kills among the configurations."""
    for i, (name, settings) in enumerate(CONFIGURATIONS.items()):
        left, generator = len(range(i, kills, len(CONFIGURATIONS))), random.Random(f"{seed} {i}")
        if left:
            folder = processes.write_text(work / str(i))
            trial = Kills(launcher, folder, name, LONG | settings | changes, generator)
        for number in itertools.count(1):
            if left <= 0:
                break
            left -= trial.try_run(f"run-{number}", min(left, generator.randint(1, 4)), report)
