"""Settings that fit a text and an amount of time."""

import json
from pathlib import Path
from typing import Any

import pytest

from minigpt.config.resolve import resolve
from minigpt.errors import UserError
from minigpt.training import dial
from minigpt.training.dial import fit_time, steps_within, total_seconds
from minigpt.training.fit import SHAPES, WORK, fit, most_epochs
from minigpt.training.plan import StepTime
from minigpt.training.setup import PreparedRun, prepare_run

SIZES = sorted({int(base * 10**power) for power in range(1, 10) for base in (1, 1.999, 2, 5)} | {10**9})


@pytest.mark.parametrize("work", [1e9, WORK["cpu"], 1e14, WORK["gpu"]])
def test_fitted_settings_are_valid_and_grow_with_the_text(work: float) -> None:
    flops = []
    for characters in SIZES:
        config = resolve(("fitted", fit(characters, 65, work))).config
        tokens = config.train.batch_size * config.model.context
        assert config.train.steps
        assert config.train.steps == 1 or config.train.steps * tokens <= most_epochs(characters) * characters
        flops.append(config.train.steps * tokens * config.model.n_layer * config.model.n_embd**2)
    assert flops[0] < flops[-1]


@pytest.mark.parametrize("characters", [20_000, 200_000, 1_000_000, 20_000_000])
def test_more_work_makes_a_longer_run_of_a_larger_model(characters: int) -> None:
    configs = [resolve(("fitted", fit(characters, 65, 10.0**power))).config for power in range(9, 17)]
    sizes = [config.model.n_layer * config.model.n_embd**2 for config in configs]
    assert sizes == sorted(sizes)


def test_chosen_shapes_were_measured() -> None:
    """The record has the loss of each, except those of shakespeare-hour, another record, and of a GPU."""
    path = Path(__file__).resolve().parents[3] / "docs/project/lab/time.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    measured = {(6, 4, 256, 256, 16), *(tuple(line["shape"]) for line in lines)}
    assert {shape for _, fewest, shape in SHAPES if fewest >= 9_000} - measured == {SHAPES[-1][2]}


def time(step: float = 0.1, token: float = 1e-5) -> StepTime:
    return StepTime(step, token, is_measured=True)


def test_the_steps_fill_the_time_with_their_evaluations() -> None:
    config = resolve(("test", {"train.batch_size": 16, "model.context": 64})).config
    for seconds in (10.0, 60.0, 600.0, 86_400.0):
        steps = steps_within(seconds, time(), config, 20_000)
        assert 0.8 * seconds <= total_seconds(steps, time(), config, 20_000) <= seconds
    assert steps_within(1.0, time(), config, 20_000) == 0
    assert steps_within(60.0, time(0.2), config, 20_000) < steps_within(60.0, time(), config, 20_000)


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(dial, "time_step", lambda *given: time())
    monkeypatch.setattr(dial, "measure_matmul", lambda runtime: 1e11)
    text = tmp_path / "my.txt"
    text.write_text("To be, or not to be: that is the question.\n" * 3000, encoding="utf-8")

    def prepare(*assignments: str, preset: str | None = None, source: str = str(text)) -> PreparedRun:
        return prepare_run([source], preset, ["runtime.device=cpu", *assignments])

    return prepare


def test_the_dial_is_a_pure_function_of_text_time_and_speeds(prepared: Any) -> None:
    first, second = (fit_time(prepared(), 60.0) for _ in range(2))
    assert first.config == second.config
    assert fit_time(prepared(), 120.0).config.train.steps > 1.5 * first.config.train.steps
    assert first.notices[-1].endswith("a step takes 0.1 s here")


def test_a_preset_keeps_everything_but_its_steps(prepared: Any) -> None:
    run = prepared(preset="shakespeare-cpu")
    changed = fit_time(run, 30.0).config
    same = changed.train.model_copy(update={"steps": run.config.train.steps})
    assert changed.model_copy(update={"train": same}) == run.config
    assert 180 < changed.train.steps < 300


def test_the_dial_respects_settings_of_the_user(prepared: Any) -> None:
    config = fit_time(prepared("model.n_embd=32", "train.batch_size=4", "train.eval_every=7"), 60.0).config
    assert (config.model.n_embd, config.train.batch_size, config.train.eval_every) == (32, 4, 7)


def test_more_time_than_the_text_needs_is_not_used(prepared: Any) -> None:
    run = fit_time(prepared(), 1e6)
    tokens = run.config.train.steps * run.config.train.batch_size * run.config.model.context
    assert tokens <= most_epochs(run.data.characters) * run.data.characters
    assert "more would not lower the loss" in run.notices[-1]


def test_too_little_time_is_refused_with_what_it_takes(prepared: Any) -> None:
    with pytest.raises(UserError, match=r"a step and two evaluations take \d+ s here, longer than the time given"):
        fit_time(prepared(), 1.0)


def test_a_text_shorter_than_a_context_shrinks_it(prepared: Any, tmp_path: Path) -> None:
    (tmp_path / "tiny.txt").write_text("abcd" * 6, encoding="utf-8")
    run = fit_time(prepared(source=str(tmp_path / "tiny.txt")), 60.0)
    assert run.config.model.context < 24
    assert sum("shrinks" in line for line in run.notices) == 1


def test_a_compiled_run_leaves_time_for_compiling(prepared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = fit_time(prepared("runtime.compile=false"), 100.0).config.train.steps
    compiled = fit_time(prepared("runtime.compile=true"), 100.0).config.train.steps
    assert 0.5 < compiled / plain < 0.8
