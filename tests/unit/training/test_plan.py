"""What a run takes, before it starts."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_runs import make_config

from minigpt.errors import ConfigError
from minigpt.model import device
from minigpt.model.device import Runtime
from minigpt.model.gpt import use_kernels
from minigpt.model.load import build_model
from minigpt.model.memory import backward_bytes
from minigpt.training import plan as planning
from minigpt.training import step_cost
from minigpt.training.plan import make_plan, process_memory
from minigpt.training.step_cost import LiveMemory, count_step, measure_step

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
    model = build_model(config.model, V)
    use_kernels(model, runtime.model_kernels)
    x, y = torch.randint(V, (2, 3, config.model.context))

    def loss() -> torch.Tensor:
        with runtime.autocast():
            logits = model(x)
        return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())

    own = [*model.parameters(), *model.buffers()]
    counted = count_step(config, V, runtime, 3, config.model.n_layer)
    tolerance = {"rel": 0.05} if name == "lstm" else {"rel": 0, "abs": 3 * 4}  # scalars of the loss
    assert counted["activations"] == pytest.approx(backward_bytes(loss, own), **tolerance)
    assert counted["gradients"] == sum(p.nbytes for p in model.parameters())
    assert counted["weights"] == sum(tensor.nbytes for tensor in own)


@pytest.mark.parametrize("changes", [{}, {"optim__name": "adamw"}, {"runtime__activation_checkpointing": True}])
def test_peaks_are_those_of_a_real_step(changes: dict[str, Any]) -> None:
    config = make_config(**{**BASE, **changes})
    with LiveMemory() as memory:
        step = step_cost._Step(config, V, CPU, 3, 4)
        before = memory.peak = memory.live
        step.loss(*step.batch()).backward()
        first, before = memory.peak - before, memory.live
        memory.peak = before
        step.optimizer.step(1.0)
        state = sum(tensor.nbytes for tensor in step.optimizer.state_dict().values())
        assert memory.live - before == state
        update = memory.peak - memory.live
    counted = count_step(config, V, CPU, 3, 4)
    assert (counted["optimizer"], counted["update"]) == (state, update)
    assert counted["first"] == pytest.approx(first, rel=0.02)


def test_checkpointing_keeps_the_input_of_each_block() -> None:
    plain, sparing = (
        [count_step(make_config(**BASE, runtime__activation_checkpointing=on), V, CPU, 3, n) for n in (3, 4)]
        for on in (False, True)
    )
    block_input = 3 * 80 * make_config().model.n_embd * 4
    assert sparing[1]["activations"] - sparing[0]["activations"] == block_input
    assert plain[1]["activations"] - plain[0]["activations"] > 5 * block_input
    assert sparing[1]["first"] < plain[1]["first"]


def test_a_gpu_that_is_not_here_keeps_no_attention_weights() -> None:
    config, gpu = make_config(**BASE, model__dropout=0.1), Runtime("cuda:7", "bfloat16", False, 1)
    assert count_step(config, V, gpu, 3, 4)["activations"] < 0.8 * count_step(config, V, CPU, 3, 4)["activations"]


def test_fsdp_divides_what_data_parallelism_copies() -> None:
    config = make_config(**BASE, train__shards=4)
    alone = process_memory(config, 2, V, CPU)
    data, fsdp = (process_memory(config, 2, V, CPU, 4, kind) for kind in ("data", "fsdp"))
    assert (data.weights, data.optimizer, data.activations) == (alone.weights, alone.optimizer, alone.activations)
    assert (alone.gradients, alone.exchange) == (3 * data.gradients, 0)  # sums of four, of two, and a shard
    assert data.exchange == data.gradients
    assert (fsdp.weights, fsdp.gradients, fsdp.optimizer) == (
        data.weights // 4, data.gradients // 4, data.optimizer // 4,
    )  # fmt: skip
    shards = process_memory(make_config(**BASE, train__shards=8), 1, V, CPU, 2, "fsdp")  # four for each process
    assert (shards.weights, shards.gradients) == (data.weights // 2, data.gradients)
    assert process_memory(make_config(**BASE, train__shards=4, runtime__exact=False), 2, V, CPU) == alone
    average = process_memory(make_config(**BASE, train__shards=4, train__ema=0.9), 2, V, CPU)
    assert average.peak - alone.peak == average.average == alone.weights


def test_a_smaller_micro_batch_or_checkpointing_makes_a_run_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(**BASE, runtime__device="cpu")

    def memory(free: int) -> planning.Memory:
        monkeypatch.setattr(planning, "free_memory_bytes", lambda device: free)
        return make_plan(config, V).parallel["data"]

    peak = memory(1 << 40).peak
    assert (memory(1 << 40).fits, memory(1 << 40).largest_micro_batch, memory(1 << 40).settings) == (True, 8, ())
    found = memory(peak - 1)
    assert (found.fits, found.settings) == (False, (f"train.micro_batch_size={found.largest_micro_batch}",))
    assert (memory(1000).fits, memory(1000).largest_micro_batch, memory(1000).settings) == (False, 0, ())


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
    monkeypatch.setattr(step_cost, "is_recordable", lambda config, runtime: is_recorded and not runtime.compile)
    monkeypatch.setattr(step_cost, "record_loss", lambda loss, *_: lambda x, y: (calls.append(1), loss(x, y))[1])
    for compiles in (True, False):  # the plan of a compiled run measures plain steps
        assert measure_step(make_config(**BASE), V, replace(CPU, compile=compiles), 0.1)
        assert bool(calls) is (is_recorded and not compiles)


def test_a_plan_compiles_what_training_would_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "has_compiler", lambda: True)
    base: dict[str, Any] = {**BASE, "train__shards": 4, "runtime__device": "cpu", "runtime__compile": "auto"}
    per_step = make_plan(make_config(**base), V).flops_per_step
    monkeypatch.setattr(device, "measure_matmul", lambda runtime: 3 * per_step)  # so a step takes a second
    steps = make_config(**base, train__steps=1200)
    epochs = make_config(**base, train__epochs=60, train__steps=None)
    plans = [make_plan(config, V, processes).runtime.compile for config in (steps, epochs) for processes in (1, 4)]
    assert plans == [True, True, False, False]


@pytest.mark.usefixtures("quick_and_clean")
def test_a_measured_step_takes_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_cost, "measure_matmul", lambda runtime: 1e12)
    found = step_cost.measure_step(make_config(**BASE), V, CPU, 0.05)
    assert found is not None
    assert 0 < found[0] < 1
    assert 0 < found[1] < 1
    monkeypatch.setattr(step_cost, "measure_matmul", lambda runtime: 1.0)
    assert step_cost.measure_step(make_config(**BASE), V, CPU, 0.05) is None


@pytest.mark.parametrize("name", ["modern", "classic", "lstm"])
def test_parameters_are_those_of_the_model(name: str) -> None:
    config = make_config(**{**BASE, **CASES[name][0]}, runtime__device="cpu")
    assert make_plan(config, V).parameters == sum(p.numel() for p in build_model(config.model, V).parameters())
