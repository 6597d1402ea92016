"""Settings that fit a text and an amount of time."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from minigpt.cli.report import forecast
from minigpt.config.resolve import flatten, resolve
from minigpt.config.schema import ModelConfig, RunConfig
from minigpt.errors import ConfigError, DeviceError, UserError
from minigpt.model.size import training_flops
from minigpt.training import dial
from minigpt.training.dial import fit_time, steps_within, total_seconds
from minigpt.training.fit import WORK, Shape, fit, most_steps
from minigpt.training.setup import PreparedRun, prepare_run
from minigpt.training.timing import StepTime

RECORD = Path(__file__).resolve().parents[3] / "docs/project/lab/time.jsonl"


@given(
    family=st.sampled_from(["classic", "modern", "lstm"]),
    size=st.sampled_from([300, 20_000, 200_000, 10**7]),
    work=st.sampled_from([1e9, WORK["cpu"], WORK["gpu"]]),
    user=st.fixed_dictionaries(
        {},
        optional={
            "model.n_embd": st.integers(1, 1000),
            "model.n_head": st.integers(1, 50),
            "model.position": st.sampled_from(["rotary", "sinusoidal"]),
            "model.n_layer": st.integers(1, 10),
            "model.context": st.integers(1, 2000),
            "train.batch_size": st.integers(1, 100),
        },
    ),
)
@example("modern", 200_000, WORK["cpu"], {"model.n_embd": 90})
@example("modern", 300, WORK["cpu"], {"model.n_embd": 66})
@example("modern", 300, WORK["cpu"], {"model.n_head": 3})
def test_fitted_settings_agree_with_any_of_the_user(family: str, size: int, work: float, user: dict[str, Any]) -> None:
    """Or the error names a setting that does."""
    if family == "lstm":
        user = {key: value for key, value in user.items() if key not in ("model.n_head", "model.position")}
    user |= {"model.family": family}
    is_free = "model.n_embd" not in user or ("model.n_head" not in user and user["model.n_embd"] % 2 == 0)

    def fitted() -> RunConfig:
        return resolve(("fitted", fit(size, 65, work, ("user", user))), ("user", user)).config

    try:
        config = fitted()
    except ConfigError as error:
        assert not is_free
        (width,) = re.findall(r"try model\.n_embd=(\d+)$", str(error))
        user["model.n_embd"] = int(width)
        config = fitted()
    assert user.items() <= flatten(config).items()


@pytest.mark.parametrize("characters", [20_000, 200_000, 1_000_000, 20_000_000])
def test_more_work_makes_a_longer_run_of_a_larger_model(characters: int) -> None:
    configs = [resolve(("fitted", fit(characters, 65, 10.0**power))).config for power in range(9, 17)]
    sizes = [config.model.n_layer * config.model.n_embd**2 for config in configs]
    assert sizes == sorted(sizes)


def flops(line: dict[str, Any]) -> int:
    """Return the work of a recorded run."""
    shape = Shape(*line["shape"])
    model = ModelConfig(n_layer=shape.n_layer, n_head=shape.n_head, n_embd=shape.n_embd, context=shape.context)
    return line["steps"] * shape.batch_size * shape.context * training_flops(model, 65)


CHOICES = [(characters, work) for characters in (20_000, 200_000, 1_003_854, 10_583_935) for work in (4e12, 2e13)]
CHOICES += [(300_000, 2e13), (600_000, 2e13)]


@pytest.mark.parametrize(("characters", "work"), CHOICES)
def test_the_choice_was_measured_and_is_close_to_the_best(characters: int, work: float) -> None:
    """The lab has the losses of several settings for a minute (4 TFLOP) and five minutes (20 TFLOP) of slow cores."""
    lines = [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]
    measured = [line for line in lines if line["characters"] == characters]
    affordable = [line for line in measured if flops(line) <= 1.25 * work]
    chosen = fit(characters, 65, work)
    keys = [f"model.{key}" for key in Shape._fields[:-1]] + ["train.batch_size"]
    same = {
        "shape": [chosen[key] for key in keys],
        "dropout": chosen["model.dropout"],
        "weight_decay": chosen["optim.weight_decay"],
        "momentum": chosen["optim.momentum"],
    }
    losses = [line["loss"] for line in affordable if same.items() <= line.items()]
    assert min(losses) <= min(line["loss"] for line in affordable) + 0.02


@pytest.mark.parametrize(("characters", "longest"), [(200_000, 2830), (1_003_854, 857), (10_583_935, 750)])
def test_the_forecast_for_five_times_the_time_was_measured(characters: int, longest: int) -> None:
    lines = [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]
    losses = {
        steps: min(line["loss"] for line in lines if (line["characters"], line["steps"]) == (characters, steps))
        for steps in (690, longest)
    }
    assert forecast(losses[690], characters, 2048, 690) == pytest.approx(losses[longest], abs=0.015)


def test_the_forecast_is_for_runs_that_more_time_would_help() -> None:
    assert forecast(0.2, 10**6, 2048, 690) is None, "a simple text may have no lower loss"
    assert forecast(2.0, 20_000, 1024, most_steps(20_000, 1024)) is None
    gains = [2.0 - (forecast(2.0, characters, 2048, 690) or 0.0) for characters in (10**5, 10**6, 10**8, 10**9)]
    assert 0 < gains[0] < gains[1] < gains[2] == gains[3] < 0.25


def time(step: float = 0.1, token: float = 1e-5) -> StepTime:
    return StepTime(step, token, is_measured=True)


@pytest.mark.parametrize("every", ["auto", 7])
def test_the_steps_fill_the_time_with_their_evaluations(every: int | str) -> None:
    settings = {"train.batch_size": 16, "model.context": 64, "train.eval_every": every}
    config = resolve(("test", settings)).config
    for seconds in (10.0, 60.0, 600.0, 86_400.0):
        steps = steps_within(seconds, time(), config, 20_000)
        assert (
            total_seconds(steps, time(), config, 20_000) <= seconds < total_seconds(steps + 1, time(), config, 20_000)
        )
        assert seconds == 10.0 or total_seconds(steps, time(), config, 20_000) > 0.9 * seconds
    assert total_seconds(1000, time(), config, 20_000) > 1.05 * 1000 * 0.1, "a step takes longer in a run"
    assert steps_within(1.0, time(), config, 20_000) == 0
    assert steps_within(60.0, time(0.2), config, 20_000) < steps_within(60.0, time(), config, 20_000)


@given(
    seconds=st.floats(-10.0, 1e6),
    step=st.floats(1e-5, 100.0),
    token=st.floats(0.0, 1e-3),
    validation=st.integers(1, 50_000),
    batch_size=st.integers(1, 64),
    every=st.sampled_from(["auto", "auto", 1, 10, 500]),
    most=st.integers(1, 10**9),
)
@example(30.0, 0.005, 0.0, 50_000, 32, "auto", 2500)  # 2111 steps take less time than 1301
@example(60.0, 0.01, 0.0, 15_360, 8, "auto", 2500)  # evaluations every 100 steps take exactly 5% of the time
def test_the_chosen_steps_never_take_more_time(
    seconds: float, step: float, token: float, validation: int, batch_size: int, every: int | str, most: int
) -> None:
    settings = {"train.batch_size": batch_size, "model.context": 128, "train.eval_every": every}
    config, speed = resolve(("test", settings)).config, time(step, token)
    steps = steps_within(seconds, speed, config, validation, most)
    assert 0 <= steps <= most
    assert not steps or total_seconds(steps, speed, config, validation) <= seconds


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(dial, "time_step", lambda *given: time())
    monkeypatch.setattr(dial, "measure_matmul", lambda *given: 1e11)
    text = tmp_path / "my.txt"
    text.write_text("To be, or not to be: that is the question.\n" * 3000, encoding="utf-8")

    def prepare(*assignments: str, preset: str | None = None, source: str = str(text)) -> PreparedRun:
        return prepare_run([source], preset, ["runtime.device=cpu", *assignments])

    return prepare


def test_the_dial_is_a_pure_function_of_text_time_and_speeds(prepared: Any) -> None:
    first, second = (fit_time(prepared(), 60.0) for _ in range(2))
    assert first.config == second.config
    assert fit_time(prepared(), 120.0).config.train.steps > 1.5 * first.config.train.steps
    assert first.notices[-1] == "because a step takes 0.1 s here, and matrix multiplications run at 100 GFLOP/s"


@pytest.mark.parametrize(
    "change", ["model.n_embd=512", "model.context=1024", "train.batch_size=1", "model.family=lstm"]
)
def test_the_default_length_fits_the_model_and_batches_of_the_user(prepared: Any, change: str) -> None:
    run = prepared(change)
    config, size = run.config, run.data.size
    work = config.train.steps * config.tokens_per_step * training_flops(config.model, run.data.tokenizer.vocab_size)
    is_longest = config.train.steps == most_steps(size, config.tokens_per_step)
    assert work == pytest.approx(WORK["cpu"], rel=0.1) or (is_longest and work < WORK["cpu"])
    assert change == "train.batch_size=1" or 1024 <= config.tokens_per_step <= 2048, "a longer context, fewer sequences"


def test_weight_decay_fits_the_rate_and_the_batches_of_the_user(prepared: Any) -> None:
    def decay(*assignments: str) -> float:
        return float(prepared("model.context=64", *assignments).config.optim.weight_decay)

    assert decay("optim.lr=0.04") == decay() / 2
    assert decay("optim.name=adamw", "optim.lr=0.04") == decay(), "AdamW has the same decay and its own rate"
    assert decay("train.batch_size=128") == 1.0
    assert decay("train.batch_size=4") == 0.3
    assert decay("optim.weight_decay=0.2", "optim.lr=0.04") == 0.2


def test_the_batch_can_be_divided_into_the_micro_batches_of_the_user(prepared: Any) -> None:
    assert prepared("model.context=100", "train.micro_batch_size=4").config.train.batch_size == 12
    assert prepared("train.micro_batch_size=10", "train.shards=2").config.train.batch_size == 20


def test_the_length_fits_a_context_that_had_to_shrink(prepared: Any, tmp_path: Path) -> None:
    (tmp_path / "tiny.txt").write_text("abcdef" * 50, encoding="utf-8")
    config = prepared("model.context=20000", source=str(tmp_path / "tiny.txt")).config
    assert config.model.context == 269
    assert (config.train.batch_size, config.train.steps) == (4, most_steps(300, 4 * 269))


def test_epochs_are_counted_in_bytes_if_these_are_the_tokens(prepared: Any, tmp_path: Path) -> None:
    text = tmp_path / "greek.txt"
    text.write_text("\u03b1\u03b2\u03b3" * 4000, encoding="utf-8")
    chars, as_bytes = (prepared(f"data.tokenizer={kind}", source=str(text)) for kind in ("char", "byte"))
    for run in (chars, as_bytes):
        assert run.config.train.steps == most_steps(len(run.data.encoded[0]), run.config.tokens_per_step)
    assert as_bytes.config.train.steps == pytest.approx(2 * chars.config.train.steps, abs=1)


def test_a_preset_keeps_everything_but_its_steps(prepared: Any) -> None:
    run = prepared(preset="nanogpt-cpu")
    changed = fit_time(run, 30.0).config
    same = changed.train.model_copy(update={"steps": run.config.train.steps})
    assert changed.model_copy(update={"train": same}) == run.config
    assert 180 < changed.train.steps < 300


def test_the_dial_respects_settings_of_the_user(prepared: Any) -> None:
    config = fit_time(prepared("model.n_embd=32", "train.batch_size=4", "train.eval_every=7"), 60.0).config
    assert (config.model.n_embd, config.train.batch_size, config.train.eval_every) == (32, 4, 7)


def test_the_settings_fit_the_steps_that_were_found(prepared: Any) -> None:
    few, many = (fit_time(prepared(), seconds) for seconds in (30.0, 1e6))
    assert (few.config.model.dropout, many.config.model.dropout) == (0.0, 0.1)
    assert few.config.train.save_every < many.config.train.save_every
    assert "dropout 0.1, weight decay 0.8" in many.notices[-2]


def test_several_processes_have_the_computation_for_a_larger_model(prepared: Any) -> None:
    one, four = (fit_time(prepared("train.shards=4"), 120.0, processes).config.model for processes in (1, 4))
    assert one.n_layer < four.n_layer


def test_a_validation_text_does_not_count_as_training_text(prepared: Any, tmp_path: Path) -> None:
    (tmp_path / "tiny.txt").write_text("abcd" * 1000, encoding="utf-8")
    config = prepared(f"data.val_source={tmp_path / 'my.txt'}", "data.unknown=skip", source=str(tmp_path / "tiny.txt"))
    assert config.config.model.n_embd == 64


def test_a_device_that_is_not_there_is_an_error(prepared: Any) -> None:
    run = prepared(preset="nanogpt-cpu")
    absent = replace(run, config=resolve(("test", {"runtime.device": "cuda"})).config)
    with pytest.raises(DeviceError):
        fit_time(absent, 60.0)


def test_the_error_counts_the_time_of_compiling(prepared: Any) -> None:
    with pytest.raises(UserError, match=r"a step, two evaluations and compiling take 2\d s here"):
        fit_time(prepared("runtime.compile=true"), 18.0)


def test_more_time_than_the_text_needs_is_not_used(prepared: Any) -> None:
    run = fit_time(prepared(), 1e6)
    assert run.config.train.steps == most_steps(
        run.data.characters, run.config.train.batch_size * run.config.model.context
    )
    assert "more epochs would not lower the loss" in run.notices[-1]


def test_too_little_time_is_refused_with_what_it_takes(prepared: Any) -> None:
    with pytest.raises(UserError, match=r"a step and two evaluations take \d+ s here: give at least 1 more minute"):
        fit_time(prepared(), 1.0)
    with pytest.raises(UserError, match="give at least 2 more minutes"):  # after a text that took long to read
        fit_time(prepared(), -70.0)


def test_a_text_shorter_than_a_context_shrinks_it(prepared: Any, tmp_path: Path) -> None:
    (tmp_path / "tiny.txt").write_text("abcd" * 6, encoding="utf-8")
    run = fit_time(prepared(source=str(tmp_path / "tiny.txt")), 60.0)
    assert run.config.model.context < 24


def test_a_compiled_run_leaves_time_for_compiling(prepared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = fit_time(prepared("runtime.compile=false"), 100.0).config.train.steps
    compiled = fit_time(prepared("runtime.compile=true"), 100.0).config.train.steps
    assert 0.7 < compiled / plain < 0.95
