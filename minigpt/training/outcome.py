"""How a run ends: its result or error, the settings that resume it, and the check that it has not ended yet."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from minigpt.config.schema import RunConfig
from minigpt.errors import LostProcessError, RunFinishedError, TrainingError, escape, reason
from minigpt.model.memory import as_memory_error
from minigpt.storage.metadata import TrainState
from minigpt.storage.runs import newest_step
from minigpt.training.parallel import LOST_CONTACT, is_lost


@dataclass(frozen=True)
class Outcome:
    """The result of a call of `train`."""

    state: TrainState
    signal: int | None
    """The signal that interrupted the run, if any."""
    is_early: bool
    """Whether validation stopped improving before the run reached its last step."""


@contextmanager
def typed_errors(config: RunConfig, run: Path) -> Iterator[None]:
    """Raise errors of PyTorch and the system as errors of minigpt."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if problem := as_memory_error(error, config):
            raise problem from error
        if is_lost(error):
            raise LostProcessError(LOST_CONTACT, run, newest_step(run)) from error
        raise
    except OSError as error:
        place = f"cannot write to {run}" if error.filename is None else escape(os.fsdecode(error.filename))
        raise TrainingError(f"{place}: {reason(error)}", run, newest_step(run)) from error


def is_out_of_patience(config: RunConfig, state: TrainState) -> bool:
    """Return whether validation has not improved for `train.patience` evaluations."""
    return 0 < config.train.patience <= state.evaluations_since_best


def finished(config: RunConfig, run: Path, steps: int, state: TrainState) -> RunFinishedError | None:
    """Return the error for a run that has nothing left to do, or None."""
    if state.step > steps:
        problem = f"run {run.name} is at step {state.step}, past its last step, {steps}"
    elif state.step == steps:
        problem = f"run {run.name} is finished at step {state.step}"
    elif is_out_of_patience(config, state):
        problem = f"run {run.name} stopped early at step {state.step}, because validation no longer improved"
    else:
        return None
    return RunFinishedError(problem, run, resume_settings(config, steps, state))


def resume_settings(config: RunConfig, steps: int, state: TrainState) -> tuple[str, ...]:
    """Return settings, as KEY=VALUE, to resume a finished run: twice its steps if none is left, and no early stop."""
    settings = [f"train.steps={2 * state.step}"] if state.step >= steps else []
    if config.train.patience:  # a longer schedule starts at a higher learning rate, which raises the loss at first
        settings.append("train.patience=0")
    return tuple(settings)
