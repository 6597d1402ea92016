"""The time of a run's steps on this machine."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import make_config

from minigpt.config.schema import RunConfig
from minigpt.model import memory
from minigpt.model.device import Runtime
from minigpt.model.memory import Memory, training_memory
from minigpt.model.size import training_flops
from minigpt.text.tokenizer import Ids
from minigpt.training import compilation, timing
from minigpt.training import learner as learning
from minigpt.training.learner import Learner
from minigpt.training.timing import measure_step

V = 13
CPU = Runtime("cpu", "float32", False, 1, "cpu")
BASE: dict[str, Any] = {"model__n_layer": 4, "model__context": 80, "train__batch_size": 8}


@pytest.mark.parametrize("is_resumed", [False, True])
def test_only_what_is_not_allocated_yet_must_be_free(monkeypatch: pytest.MonkeyPatch, is_resumed: bool) -> None:
    checked: list[Memory] = []
    monkeypatch.setattr(learning, "check_memory", lambda _, needed, *__: checked.append(needed))
    config = make_config(**BASE, train__micro_batch_size=2)
    learner = Learner(config, V, CPU)
    if is_resumed:
        timing.timed_step(learner, np.arange(900) % V, 0)
    learner.check_fit()
    needed = training_memory(config, V, "cpu", learner.sequence_bytes())
    assert checked == [replace(needed, weights=0, optimizer=0 if is_resumed else needed.optimizer)]


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_plan_measures_the_loss_that_training_uses(monkeypatch: pytest.MonkeyPatch, is_recorded: bool) -> None:
    calls = []

    def is_recordable(config: RunConfig, runtime: Runtime) -> bool:
        return is_recorded and config.runtime.compile == "auto" and not runtime.compile

    for module in (timing, compilation):
        monkeypatch.setattr(module, "is_recordable", is_recordable)
    monkeypatch.setattr(compilation, "record_loss", lambda loss, *_: lambda x, y: (calls.append(1), loss(x, y))[1])
    monkeypatch.setattr(compilation, "compile_loss", lambda *_, **__: pytest.fail("compiled"))
    config = make_config(**BASE, runtime__compile="auto")
    for compiles in (True, False):  # the plan of a compiled run measures plain steps
        assert measure_step(config, V, replace(CPU, compile=compiles), 0.1, 1)
        assert bool(calls) is (is_recorded and not compiles)


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

    step_once = timing.timed_step
    monkeypatch.setattr(timing, "timed_step", timed_step)
    clock = itertools.count()
    monkeypatch.setattr(timing, "perf_counter", lambda: next(clock))
    config = make_config(**BASE)
    flops = training_flops(config.model, V) * config.model.context
    for affordable, expected in {1000.0: 8, 2.5: 2, 0.1: 1, 0.04: None}.items():
        monkeypatch.setattr(timing, "measure_matmul", lambda runtime, speed=affordable * 3 * flops / 8: speed)
        time = timing.time_step(config, V, CPU, 1, 32.0)
        assert sizes == ({expected} if expected else set())
        assert time.is_measured is (expected is not None)
        assert not expected or time.step == 8 * 10 / expected + 3
        sizes.clear()


def test_a_step_that_does_not_fit_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory_bytes", lambda device: 1000)
    assert measure_step(make_config(**BASE), V, CPU, 0.05, 1) is None
