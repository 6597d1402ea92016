"""Kill, interrupt and freeze processes that train together, and resume with another number of them."""

import contextlib
import itertools
import random
import time
from pathlib import Path
from signal import SIGKILL, SIGSTOP, SIGTERM, Signals
from typing import Any

import processes
from checks import LONG, Report, arguments, compare, find_damage, newest_step, train_reference
from jobs import Agent, Job, free_port, is_open, wait_for
from processes import END, EVALUATION, PHASES, READY, SAVE, START, STEP, Launcher, Progress

TIMEOUT, MARGIN, DEADLINE = 5, 15, 120
"""Seconds: `runtime.timeout`, how much later ranks may end on a busy machine, and the limit on a trial."""
SHARED = LONG | {"train.batch_size": 16, "train.shards": 8, "model.dropout": 0.1, "runtime.timeout": TIMEOUT}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "Muon, dropout, accumulation": {"train.micro_batch_size": 1},
    "AdamW, dropout": {"optim.name": "adamw"},
}
FAULTS = {"SIGKILL to one rank": 4, "SIGTERM to all ranks": 2, "SIGTERM to one rank": 2, "SIGSTOP to one rank": 2}
"""The faults, and how often to choose each."""
LONGER = SHARED | {"train.steps": 400, "train.eval_every": 50}
"""The settings of the run on two hosts."""


class Ranks:
    """Trials with runs of one configuration."""

    def __init__(self, launcher: Launcher, folder: Path, name: str, settings: dict[str, Any], seed: str) -> None:
        """Train in one process without a fault, to learn the final state and how long each phase takes."""
        self.launcher, self.folder, self.name, self.settings = launcher, folder, name, settings
        self.random, began = random.Random(seed), time.perf_counter()
        self.expected, result = train_reference(launcher, folder, settings)
        self.progress, self.last = result.progress, settings["train.steps"]
        self.seconds_to_start = max(0.02, time.perf_counter() - began - self.progress.mean_seconds(READY))

    def try_run(self, name: str, faults: int, report: Report) -> int:
        """Train a new run with at most `faults` faults, then resume it to its end. Return how many faults it had."""
        run, tried, size = self.folder / "runs" / name, list[str](), 0
        while len(tried) < faults and newest_step(run) < self.last:
            size = self.random.choice([count for count in (1, 2, 4, 4) if count != size])
            with Job.start(self.launcher, self.folder, arguments(self.settings, name), size) as job:
                kind, before = self.random.choices(list(FAULTS), list(FAULTS.values()))[0], newest_step(run)
                problem = self._break(job, run, kind)
                if job.phase is not None:
                    tried.append(f"{kind} of {size} {PHASES[job.phase]}")
                problem = problem or find_damage(run, max(before, job.children[0][1].saved))
                done = max(progress.step for _, progress, _ in job.children)
            if job.phase is not None or problem:
                lost = max(0, done - newest_step(run)) if done else None
                report.add(f"{kind} {PHASES[job.phase or START]}", problem, f"{self.name}, {name}, {tried}", lost)
        size = self.random.choice([count for count in (1, 2, 4) if count != size])
        with Job.start(self.launcher, self.folder, arguments(self.settings, name), size) as job:
            is_complete = job.wait(DEADLINE) and not any(job.codes.values())
            problem = compare(self.expected, run) if is_complete else f"codes {job.codes}, {job.left} still run"
        if tried:
            report.add("resumed with another number of ranks", problem, f"{self.name}, {name}, {tried}, {size}")
        return len(tried)

    def _break(self, job: Job, run: Path, kind: str) -> str | None:
        """Make a fault at a random moment of rank 0, unless the ranks end before. Return what is wrong then."""
        phase = self.random.choices(range(END), weights=(3, 1, 2, 2, 3))[0]
        seconds = {START: self.seconds_to_start, READY: 0.03}.get(phase, self.progress.mean_seconds(phase))
        entry = self.random.randint(1, max(1, self.progress.entries[phase] // 3)) if phase else 0
        ranks = self.random.sample(range(len(job.children)), len(job.children))
        main = job.children[0][1]
        if not wait_for(lambda: main.entries[phase] >= entry or len(job.left) < len(ranks), DEADLINE):
            return f"hangs after {[progress.step for _, progress, _ in job.children]} steps"
        time.sleep(self.random.uniform(0, seconds))
        ranks, number = ranks if kind.endswith("all ranks") else ranks[:1], Signals[kind.split()[0]]
        pause = self.random.uniform(0, 0.1) / len(ranks)
        for rank in ranks:
            job.send(number, [rank])
            time.sleep(pause if len(ranks) > 1 else 0)
        if not job.hit:
            is_complete = job.wait(MARGIN) and not any(job.codes.values())
            return None if is_complete else f"codes {job.codes} without a fault"
        frozen, problem = ranks if number == SIGSTOP else [], None
        is_early = START in [progress.phase for _, progress, _ in job.children]
        if not job.wait(TIMEOUT + (3 if is_early else MARGIN), but=frozen):
            problem = None if is_early else f"{job.left} of {len(job.children)} ranks still run"
            job.send(SIGTERM, job.left)  # as torchrun does: before ranks have met, they wait long
        job.send(SIGKILL, frozen)
        if not job.wait(MARGIN):
            return problem or f"{job.left} of {len(job.children)} ranks do not end"
        return problem or self._find_problem(job, run, number)

    def _find_problem(self, job: Job, run: Path, number: Signals) -> str | None:
        """Return what is wrong with the way the ranks ended."""
        is_done, codes = newest_step(run) == self.last, set(job.codes.values())
        steps = {progress.step for _, progress, _ in job.children}
        is_stopped = codes == {128 + SIGTERM} and steps == {newest_step(run)}
        if number == SIGTERM and all(map(is_training, job.hit.values())) and not (is_done or is_stopped):
            return f"codes {job.codes}, steps {steps}, saved step {newest_step(run)}"
        for rank in job.codes:
            result, prefix = job.result(rank), f"minigpt: process {rank}: " if rank else "minigpt: "
            allowed = ({0} if is_done else set()) | ({128 + SIGTERM} if number == SIGTERM else set())
            allowed |= {-SIGTERM, 128 + SIGTERM, -SIGKILL} if rank in job.hit else set()
            if result.code not in allowed or "Traceback" in result.output:
                problem = result.problem_with_error()
                if problem or f"\n{prefix}" not in f"\n{result.output}":
                    return f"rank {rank}: {problem or 'no prefix'}: {result.output[-300:]}"
        return None


def is_training(progress: Progress) -> bool:
    """Return whether a rank was in its training loop, where SIGTERM saves the run."""
    return progress.phase in {STEP, EVALUATION} or (progress.phase == SAVE and progress.entries[READY] > 0)


def try_ranks(launcher: Launcher, work: Path, faults: int, seed: int, report: Report) -> None:
    """Share the faults among the configurations."""
    for i, (name, settings) in enumerate(CONFIGURATIONS.items()):
        if left := len(range(i, faults, len(CONFIGURATIONS))):
            trial = Ranks(launcher, processes.write_text(work / str(i)), name, SHARED | settings, f"{seed} {i}")
        for number in itertools.count(1):
            if left <= 0:
                break
            left -= trial.try_run(f"run-{number}", min(left, trial.random.randint(1, 4)), report)


def try_hosts(launcher: Launcher, work: Path, report: Report) -> None:
    """Train on two hosts with torchrun. Kill one of them in mid-run, and start it again."""
    folder = processes.write_text(work)
    expected, _ = train_reference(launcher, folder, LONGER)
    run, port = folder / "runs/run", free_port()
    with contextlib.ExitStack() as stack:

        def start(name: str) -> Agent:
            agent = Agent(folder, arguments(LONGER), port, folder / f"{name}.txt")
            stack.callback(agent.kill)
            return agent

        first = start("first")
        wait_for(lambda: is_open(port), DEADLINE)
        second = start("second")
        wait_for(lambda: newest_step(run) >= LONGER["train.steps"] // 4, DEADLINE)
        killed = newest_step(run)
        second.kill()
        second = start("second")
        wait_for(lambda: None not in (first.process.poll(), second.process.poll()), DEADLINE)
        codes = first.process.poll(), second.process.poll()
    problem = None if codes == (0, 0) else f"exit codes {codes}"
    report.add("SIGKILL to one of two hosts", problem or compare(expected, run), f"after step {killed}")
