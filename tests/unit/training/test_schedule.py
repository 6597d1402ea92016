"""How long a run is, and how a finished run can be resumed."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from small_runs import make_config

from minigpt.storage.metadata import TrainState
from minigpt.training import schedule
from minigpt.training.outcome import finished, resume_settings
from minigpt.training.schedule import Clock, eval_steps, run_steps


@pytest.mark.parametrize(
    ("epochs", "tokens", "steps"),
    [(1, 640, 10), (1, 641, 11), (1, 639, 10), (2.5, 640, 25), (0.001, 640, 1), (3, 64, 3)],
)
def test_epochs_become_steps(epochs: float, tokens: int, steps: int) -> None:
    """A batch here has 4 x 16 = 64 tokens. A part of a step counts as a step."""
    assert run_steps(make_config(train__epochs=epochs), tokens) == steps


@pytest.mark.parametrize(
    ("steps", "validation", "every"),
    [
        (2000, 1000, 100),  # 20 evaluations
        (2000, 100_000, 200),  # 12 would take 5% of the time
        (2000, 1_000_000, 500),  # 5 take more
        (500, 60_392, 100),
        (10**12, 1000, 5 * 10**10),
        (11, 1000, 2),
        (3, 10**9, 1),
    ],
)
def test_evaluations_are_few_enough_and_at_round_steps(steps: int, validation: int, every: int) -> None:
    config = make_config(train__eval_every="auto", train__batch_size=32, model__context=128)
    assert eval_steps(config, steps, validation) == every
    assert eval_steps(make_config(train__eval_every=7), steps, validation) == 7


CASES = {
    "steps": ({}, {"step": 12}, ("train.steps=24",)),
    "early": ({"train__patience": 2}, {"step": 6, "evaluations_since_best": 2}, ("train.patience=0",)),
    # The learning rate rises again, and with it the loss.
    "patience": ({"train__patience": 3}, {"step": 12}, ("train.steps=24", "train.patience=0")),
}


@pytest.mark.parametrize("name", CASES)
def test_a_finished_run_says_how_to_resume_it(name: str) -> None:
    changes, facts, settings = CASES[name]
    config, state = make_config(**changes), TrainState(**facts)
    steps = run_steps(config, 1000)
    assert resume_settings(config, steps, state) == settings
    error = finished(config, Path("runs/r"), steps, state)
    assert error is not None
    assert error.settings == settings
    new = dict(setting.replace(".", "__").split("=") for setting in settings)
    changed = make_config(**{**changes, **{key: int(value) for key, value in new.items()}})
    assert finished(changed, Path("runs/r"), run_steps(changed, 1000), state) is None


def test_a_clock_tells_training_from_evaluating(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(schedule, "time", SimpleNamespace(perf_counter=lambda: now))
    clock = Clock(before=7.0)
    now = 107.0
    clock.evaluating += 1.0
    assert (clock.session, clock.total, clock.training) == (7.0, 14.0, 6.0)
