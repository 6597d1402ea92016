"""What a run takes, before it starts."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import make_config, make_data

from minigpt.config.schema import RunConfig
from minigpt.errors import ConfigError
from minigpt.model import device, memory
from minigpt.model.device import Runtime
from minigpt.model.memory import Memory, training_memory
from minigpt.model.size import training_flops
from minigpt.text.tokenizer import Ids
from minigpt.training import compilation
from minigpt.training import learner as learning
from minigpt.training import plan as planning
from minigpt.training.learner import Learner, make_learner
from minigpt.training.plan import make_plan, measure_step, planned_sequence_bytes

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
    monkeypatch.setattr(planning, "peak_memory", lambda: None)
    monkeypatch.setattr(planning, "free_memory_bytes", lambda device: None)
    monkeypatch.setattr(planning, "LIBRARIES", 0)
    monkeypatch.setattr(planning, "measure_step", lambda *_: (0.5, 2.0))


@pytest.mark.parametrize("name", CASES)
def test_activations_are_those_of_the_real_model(name: str) -> None:
    changes, runtime = CASES[name]
    config = make_config(**{**BASE, **changes})
    assert planned_sequence_bytes(config, V, runtime) == Learner(config, V, runtime).sequence_bytes()


@pytest.mark.parametrize("is_resumed", [False, True])
def test_only_what_is_not_allocated_yet_must_be_free(monkeypatch: pytest.MonkeyPatch, is_resumed: bool) -> None:
    checked: list[Memory] = []
    monkeypatch.setattr(learning, "check_memory", lambda _, needed, *__: checked.append(needed))
    config = make_config(**BASE, train__micro_batch_size=2)
    learner = Learner(config, V, CPU)
    if is_resumed:
        planning.timed_step(learner, np.arange(900) % V, 0)
    learner.check_fit()
    needed = training_memory(config, V, "cpu", learner.sequence_bytes())
    assert checked == [replace(needed, weights=0, optimizer=0 if is_resumed else needed.optimizer)]


def test_a_gpu_keeps_no_attention_weights() -> None:
    config, gpu = make_config(**BASE, model__dropout=0.1), Runtime("cuda:7", "bfloat16", False, 1)
    assert planned_sequence_bytes(config, V, gpu) < 0.8 * planned_sequence_bytes(config, V, CPU)


def test_a_smaller_micro_batch_makes_a_run_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(**BASE, runtime__device="cpu")

    def planned(config: RunConfig, free: int) -> planning.PlannedMemory:
        monkeypatch.setattr(planning, "free_memory_bytes", lambda device: free)
        return make_plan(config, V).memory

    plenty = planned(config, 1 << 40)
    monkeypatch.setattr(planning, "peak_memory", lambda: 500)
    assert [planned(config, plenty.peak - 1 + more).fits for more in (0, 1)] == [False, True], "planning ends first"
    monkeypatch.setattr(planning, "peak_memory", lambda: None)
    assert (plenty.fits, plenty.largest_micro_batch, plenty.settings) == (True, 8, ())
    found = planned(config, plenty.peak - 1)
    assert (found.fits, found.settings) == (False, (f"train.micro_batch_size={found.largest_micro_batch}",))
    none = planned(config, 1000)
    assert (none.fits, none.largest_micro_batch, none.settings) == (False, 0, ())


def test_time_is_that_of_all_sequences_and_one_update(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(**BASE, train__shards=4, runtime__device="cpu", runtime__threads=1)
    assert make_plan(config, V).seconds_per_step == 8 * 0.5 + 2
    monkeypatch.setattr(planning, "available_cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # as measuring one process leaves it
    crowded = make_config(**BASE, train__shards=4, runtime__device="cpu", runtime__threads=4)
    assert make_plan(crowded, V).seconds_per_step == 8 * 0.5 + 2, "the measurement had as many threads"
    assert make_plan(config, V, processes=2).seconds_per_step == 4 * 0.5 + 2
    assert make_plan(config, V, processes=4).seconds_per_step == 2 * (2 * 0.5 + 2)  # four processes on two cores
    monkeypatch.setattr(planning, "measure_step", lambda *_: None)
    monkeypatch.setattr(planning, "measure_matmul", lambda runtime: 3.0)
    found = make_plan(config, V)
    assert (found.seconds_per_step, found.is_measured) == (found.flops_per_step, False)
    with pytest.raises(ConfigError, match=r"5 processes cannot divide train\.shards=4"):
        make_plan(config, V, processes=5)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_plan_measures_the_loss_that_training_uses(monkeypatch: pytest.MonkeyPatch, is_recorded: bool) -> None:
    calls = []

    def is_recordable(config: RunConfig, runtime: Runtime) -> bool:
        return is_recorded and config.runtime.compile == "auto" and not runtime.compile

    for module in (planning, compilation):
        monkeypatch.setattr(module, "is_recordable", is_recordable)
    monkeypatch.setattr(compilation, "record_loss", lambda loss, *_: lambda x, y: (calls.append(1), loss(x, y))[1])
    monkeypatch.setattr(compilation, "compile_loss", lambda *_, **__: pytest.fail("compiled"))
    config = make_config(**BASE, runtime__compile="auto")
    for compiles in (True, False):  # the plan of a compiled run measures plain steps
        assert measure_step(config, V, replace(CPU, compile=compiles), 0.1, 1)
        assert bool(calls) is (is_recorded and not compiles)


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


@pytest.mark.usefixtures("torch_settings")
def test_a_measurement_is_the_median_of_steps_with_as_many_sequences_as_there_is_time_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = set()

    def timed_step(learner: Learner, tokens: Ids, step: int) -> tuple[float, float]:
        before = [weight.clone() for weight in learner.model.parameters()]
        passes, update = step_once(learner, tokens, step)
        assert passes > 0 < update
        assert not all(map(torch.equal, before, learner.model.parameters())), "updated"
        sizes.add(learner.config.train.batch_size)
        noise = 100.0 if step in (0, 1, 3) else 0.0  # the first steps allocate memory
        return 10.0 + noise, 3.0 + noise

    step_once = planning.timed_step
    monkeypatch.setattr(planning, "measure_step", measure_step)
    monkeypatch.setattr(planning, "timed_step", timed_step)
    clock = itertools.count()
    monkeypatch.setattr(planning, "perf_counter", lambda: next(clock))
    config = make_config(**BASE)
    flops = training_flops(config.model, V) * config.model.context
    for affordable, expected in {1000.0: 8, 2.5: 2, 0.1: 1, 0.04: None}.items():
        monkeypatch.setattr(planning, "measure_matmul", lambda runtime, speed=affordable * 3 * flops / 8: speed)
        time = planning.time_step(config, V, CPU, 1, 32.0)
        assert sizes == ({expected} if expected else set())
        assert time.is_measured is (expected is not None)
        assert not expected or time.step == 8 * 10 / expected + 3
        sizes.clear()


def test_a_step_that_does_not_fit_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory_bytes", lambda device: 1000)
    assert measure_step(make_config(**BASE), V, CPU, 0.05, 1) is None
