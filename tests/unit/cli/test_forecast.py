"""What a run takes, before it starts."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_runs import make_config, make_data

from minigpt.cli import forecast
from minigpt.cli.forecast import make_plan, planned_sequence_bytes
from minigpt.config.schema import RunConfig
from minigpt.errors import ConfigError
from minigpt.model import device
from minigpt.model.device import Runtime
from minigpt.training import timing
from minigpt.training.learner import Learner, make_learner

V = 13
CPU = Runtime("cpu", "float32", False, 1, "cpu")
BASE: dict[str, Any] = {"model__n_layer": 4, "model__context": 80, "train__batch_size": 8}
LSTM = {"model__family": "lstm", "model__bias": True, "model__n_head": 1, "model__position": "none"}
CASES: dict[str, tuple[dict[str, Any], Runtime]] = {
    "modern": ({}, CPU),
    "classic": ({"model__family": "classic", "model__bias": True, "model__position": "learned"}, CPU),
    "swiglu": ({"model__activation": "swiglu"}, CPU),
    "dropout": ({"model__dropout": 0.2}, CPU),
    "bfloat16": ({}, replace(CPU, dtype="bfloat16")),
    "torch": ({"model__norm": "layernorm"}, replace(CPU, kernels="torch")),
    "one layer": ({"model__n_layer": 1}, CPU),
    "lstm": ({**LSTM, "model__n_embd": 64}, CPU),
}


@pytest.fixture(autouse=True)
def only_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan without this process's own memory, the free memory, and a measurement."""
    monkeypatch.setattr(forecast, "peak_memory", lambda: None)
    monkeypatch.setattr(forecast, "free_memory_bytes", lambda device: None)
    monkeypatch.setattr(forecast, "LIBRARIES", 0)
    monkeypatch.setattr(timing, "measure_step", lambda *_: (0.5, 2.0))


@pytest.mark.parametrize("name", CASES)
def test_activations_are_those_of_the_real_model(name: str) -> None:
    changes, runtime = CASES[name]
    config = make_config(**{**BASE, **changes})
    assert planned_sequence_bytes(config, V, runtime) == Learner(config, V, runtime).sequence_bytes()


def test_a_gpu_keeps_no_attention_weights() -> None:
    config, gpu = make_config(**BASE, model__dropout=0.1), Runtime("cuda:7", "bfloat16", False, 1)
    assert planned_sequence_bytes(config, V, gpu) < 0.8 * planned_sequence_bytes(config, V, CPU)


def test_a_smaller_micro_batch_makes_a_run_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(**BASE, runtime__device="cpu")

    def planned(config: RunConfig, free: int) -> forecast.PlannedMemory:
        monkeypatch.setattr(forecast, "free_memory_bytes", lambda device: free)
        return make_plan(config, V).memory

    plenty = planned(config, 1 << 40)
    monkeypatch.setattr(forecast, "peak_memory", lambda: 500)
    assert [planned(config, plenty.peak - 1 + more).fits for more in (0, 1)] == [False, True], "planning ends first"
    monkeypatch.setattr(forecast, "peak_memory", lambda: None)
    assert (plenty.fits, plenty.largest_micro_batch, plenty.settings) == (True, 8, ())
    found = planned(config, plenty.peak - 1)
    assert (found.fits, found.settings) == (False, (f"train.micro_batch_size={found.largest_micro_batch}",))
    none = planned(config, 1000)
    assert (none.fits, none.largest_micro_batch, none.settings) == (False, 0, ())


def test_time_is_that_of_all_sequences_and_one_update(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(**BASE, train__shards=4, runtime__device="cpu", runtime__threads=1)
    assert make_plan(config, V).seconds_per_step == 8 * 0.5 + 2
    monkeypatch.setattr(timing, "available_cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # as measuring one process leaves it
    crowded = make_config(**BASE, train__shards=4, runtime__device="cpu", runtime__threads=4)
    assert make_plan(crowded, V).seconds_per_step == 8 * 0.5 + 2, "the measurement had as many threads"
    assert make_plan(config, V, processes=2).seconds_per_step == 4 * 0.5 + 2
    assert make_plan(config, V, processes=4).seconds_per_step == 2 * (2 * 0.5 + 2)  # four processes on two cores
    monkeypatch.setattr(timing, "measure_step", lambda *_: None)
    monkeypatch.setattr(timing, "measure_matmul", lambda runtime: 3.0)
    found = make_plan(config, V)
    assert (found.seconds_per_step, found.is_measured) == (found.flops_per_step, False)
    with pytest.raises(ConfigError, match=r"5 processes cannot divide train\.shards=4"):
        make_plan(config, V, processes=5)


def test_a_plan_compiles_what_training_would_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "has_compiler", lambda: True)
    base: dict[str, Any] = {**BASE, "train__shards": 4, "runtime__device": "cpu", "runtime__compile": "auto"}
    per_step = make_plan(make_config(**base), V).flops_per_step
    monkeypatch.setattr(device, "COMPILE_FROM_FLOP", 200 * per_step)
    steps = make_config(**base, train__steps=1200)
    epochs = make_config(**base, train__epochs=60, train__steps=None)
    plans = [make_plan(config, V, processes).runtime.compile for config in (steps, epochs) for processes in (1, 4)]
    assert plans == [True, True, False, False]
    trained = [make_learner(make_config(**base, train__steps=steps), make_data()) for steps in (1200, 100)]
    assert [learner.runtime.compile for learner in trained] == [True, False]
