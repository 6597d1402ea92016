"""Kill and interrupt training at random moments, and resume it."""

import itertools
import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM, Signals
from typing import Any

import processes
from checks import LONG, Report, arguments, compare, find_damage, lost_steps, newest_step, train_reference
from processes import EVALUATION, READY, SAVE, START, STEP, Event, Launcher, Result, send

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "Muon, dropout, accumulation": {"model.dropout": 0.1, "train.micro_batch_size": 2},
    "classic, AdamW, dropout": {"model.family": "classic", "optim.name": "adamw", "model.dropout": 0.2},
    "LSTM, dropout": {"model.family": "lstm", "model.dropout": 0.1},
    "Muon, dropout, wsd": {"model.dropout": 0.1, "optim.schedule": "wsd"},
}
PAIRS = ((SIGINT, SIGTERM), (SIGTERM, SIGTERM), (SIGINT, SIGINT), (SIGHUP, SIGTERM))
LONGEST_GAP = 0.9
"""Seconds between the signals of a pair. minigpt ignores a signal within a second of the first."""


class Kills:
    """Trials that kill runs of one configuration."""

    started = itertools.count()
    """Counts the processes of all configurations."""

    def __init__(self, launcher: Launcher, folder: Path, name: str, settings: dict[str, Any], seed: str) -> None:
        """Train without a kill, to learn the final state and how long each phase takes."""
        self.launcher, self.folder, self.name, self.settings = launcher, folder, name, settings
        self.random, began = random.Random(seed), time.perf_counter()
        self.expected, result = train_reference(launcher, folder, settings)
        self.progress, self.last = result.progress, settings["train.steps"]
        self.seconds = time.perf_counter() - began
        self.seconds_to_start = max(0.02, self.seconds - self.progress.mean_seconds(READY))

    def try_run(self, name: str, kills: int, report: Report) -> int:
        """Train a new run with at most `kills` kills. Return how often it was killed."""
        run, tried, words = self.folder / "runs" / name, list[str](), arguments(self.settings, name)
        while newest_step(run) < self.last:
            before, number = newest_step(run), self.random.choice((SIGKILL, SIGTERM, SIGINT))
            is_separate = next(self.started) % 10 == 0
            if len(tried) == kills:
                result, phase = self.launcher.run(self.folder, words), ""
            elif is_separate:
                moment = self.random.uniform(0, self.seconds + 4)
                result, phase = processes.run_separately(self.folder, words, moment, number), "in a separate process"
            else:
                result = self.launcher.run(self.folder, words, event=self._random_moment(send(number)))
                phase = processes.PHASES[result.progress.phase]
            if result.was_hit:
                tried.append(f"{number.name} {phase}")
                problem = self._find_problem(result, number, run, before, is_separate)
                report.add(f"{number.name} {phase}", problem, f"{self.name}, {name}", lost_steps(result, run))
            elif result.code:
                problem = f"exit code {result.code}: {result.last_line}"
                report.add("resumed after kills", problem, f"{self.name}, {tried}")
                return len(tried)
        problem = self._resume(name)  # completes the last save
        if tried:
            report.add("resumed after kills", problem, f"{self.name}, {name} after {', '.join(tried)}")
        return len(tried)

    def kill_early(self, name: str, report: Report) -> None:
        """Kill a new run before its first save returns, and then start or resume it."""
        run, words, phase = (
            self.folder / "runs" / name,
            arguments(self.settings, name),
            self.random.choice((START, SAVE)),
        )
        if next(self.started) % 5 == 0:
            result = processes.run_separately(self.folder, words, self.random.uniform(0, self.seconds + 2), SIGKILL)
        else:
            seconds = self.progress.mean_seconds(SAVE) if phase else self.seconds_to_start
            event = Event(phase, int(phase == SAVE), self.random.uniform(0, seconds), send(SIGKILL))
            result = self.launcher.run(self.folder, words, event=event)
        problem = None if result.code in {0, -SIGKILL} else f"exit code {result.code}: {result.last_line}"
        problem = problem or find_damage(run, result.progress.saved) or self._resume(name)
        report.add("SIGKILL before or in the first save", problem, f"{self.name}, {name}", lost_steps(result, run))

    def send_pair(self, name: str, report: Report) -> None:
        """Send two signals in quick succession. Training must save once, and the run must resume."""
        run, pair = self.folder / "runs" / name, self.random.choice(PAIRS)
        gap = math.exp(self.random.uniform(math.log(5e-5), math.log(LONGEST_GAP)))
        event = self._random_moment(send(*pair, gap=gap))
        result = self.launcher.run(self.folder, arguments(self.settings, name), event=event)
        progress, phase = result.progress, result.progress.phase
        endings = result.output.count(f"minigpt train --resume {name}")
        is_in_loop = phase in {STEP, EVALUATION} or (phase == SAVE and progress.entries[READY])
        codes = {0, *(128 + number for number in pair)} | ({-number for number in pair} if not is_in_loop else set())
        problem, lost = None, lost_steps(result, run)
        if result.code not in codes or "Traceback" in result.output:
            problem = f"exit code {result.code}: {result.last_line}"
        elif is_in_loop and endings != 1:
            problem = f"exit code {result.code}, and {endings} resume commands in the output"
        is_discarded = not progress.entries[READY] or "nothing was saved" in result.output  # before the loop handles it
        saved = -1 if is_discarded else progress.saved
        problem = problem or find_damage(run, progress.step if is_in_loop else saved) or self._resume(name)
        where = f"{self.name}, {name}, {processes.PHASES[phase]}, {gap * 1000:.2f} ms"
        report.add(" and ".join(number.name for number in pair), problem, where, lost)

    def _resume(self, name: str) -> str | None:
        """Train a run to its end, and return how it differs from the reference run."""
        result = self.launcher.run(self.folder, arguments(self.settings, name))
        problem = f"exit code {result.code}: {result.last_line}" if result.code else None
        return problem or compare(self.expected, self.folder / "runs" / name)

    def _random_moment(self, act: Callable[[int], None]) -> Event:
        """Choose a phase, one of the first times that it begins, and how long after that to act."""
        phase = self.random.choices(range(processes.END), weights=(1, 1, 2, 2, 4))[0]
        durations = {START: self.seconds_to_start, READY: 0.03}
        entry = self.random.randint(1, max(1, self.progress.entries[phase] // 3)) if phase else 0
        delay = self.random.uniform(0, durations.get(phase, self.progress.mean_seconds(phase)))
        return Event(phase, entry, delay, act)

    def _find_problem(self, result: Result, number: Signals, run: Path, before: int, is_separate: bool) -> str | None:
        """Return what is wrong with the way a process reacted to a signal."""
        if is_separate and number == SIGINT and result.output.startswith("Traceback"):
            return find_damage(run, before)  # Python itself was interrupted while it imported modules
        if result.code not in {0, -number, 128 + number} or "Traceback" in result.output:
            return f"exit code {result.code}: {result.last_line}"
        is_saved = result.code == 128 + number and result.progress.step > 0
        return find_damage(run, max(before, result.progress.step if is_saved else result.progress.saved))


def try_kills(
    launcher: Launcher, work: Path, counts: dict[str, int], seed: int, report: Report, changes: dict[str, Any]
) -> None:
    """Share the kills of each kind among the configurations."""
    for i, (name, settings) in enumerate(CONFIGURATIONS.items()):
        shares = {kind: len(range(i, count, len(CONFIGURATIONS))) for kind, count in counts.items()}
        if not any(shares.values()):
            continue
        folder = processes.write_text(work / str(i))
        trial, left = Kills(launcher, folder, name, LONG | settings | changes, f"{seed} {i}"), shares["kills"]
        for number in itertools.count(1):
            if left <= 0:
                break
            left -= trial.try_run(f"run-{number}", min(left, trial.random.randint(1, 4)), report)
        for kind, method in (("early", trial.kill_early), ("pairs", trial.send_pair)):
            for number in range(shares[kind]):
                method(f"{kind}-{number}", report)
