"""If compiling or recording fails, training continues without it and ends with the same weights."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import make_config, make_data, new_training, same, tensors
from torch import Tensor, nn

from minigpt.errors import UserError
from minigpt.model.device import Runtime
from minigpt.model.gpt import GPT, eval_mode
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.training import compilation
from minigpt.training.compilation import choose_loss, compile_loss, is_recordable, record_loss
from minigpt.training.learner import make_learner
from minigpt.training.loop import train

pytestmark = pytest.mark.usefixtures("torch_settings")


def fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError("no such instruction: bf16cvt\nand forty lines of generated code")


def break_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give torch.compile a backend that raises, like a broken compiler."""
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda loss, **_: compile(loss, backend=fail))


def train_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: Any, wanted: Any) -> tuple[bool, bool]:
    """Train without compilation and with `compiler`; return whether the second compiled, and the weights agree."""
    for name in ("plain", "compiled"):
        (tmp_path / name).mkdir()
    train(make_config(model__dropout=0.1), tmp_path / "plain", make_data())
    compiler(monkeypatch)
    train(make_config(model__dropout=0.1, runtime__compile=wanted), tmp_path / "compiled", make_data())
    is_compiled = load_checkpoint(tmp_path / "compiled/checkpoints/step-00000012").metadata.runtime.compile
    return is_compiled, same(tensors(tmp_path / "plain", 12), tensors(tmp_path / "compiled", 12))


def test_a_failed_compilation_is_one_warning_and_the_plain_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    break_compiler(monkeypatch)
    weight, messages = torch.ones(2, requires_grad=True), list[str]()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return ((x * weight - y) ** 2).sum()

    assert compile_loss(loss, nn.Module(), (torch.ones(2), torch.ones(2)), log=messages.append) is loss
    (warning,) = (line for line in messages if "failed" in line)
    assert "no such instruction" in warning
    assert "\n" not in warning


def break_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the import of the compiler fail, as when it cannot create its cache."""
    monkeypatch.setattr(torch, "use_deterministic_algorithms", fail)  # it imports the compiler


@pytest.mark.parametrize("compiler", [break_compiler, break_import])
def test_training_continues_after_a_failed_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: Any
) -> None:
    """The checkpoint records that the run is not compiled, so a resume elsewhere gives the same result."""
    assert train_twice(tmp_path, monkeypatch, compiler, True) == (False, True)


def test_a_recurrent_run_is_never_recorded_as_compiled(tmp_path: Path) -> None:
    """PyTorch does not compile recurrent layers, so `auto` does not try, however long the run is."""
    config = make_config(model__family="lstm", train__steps=10**9)
    assert not make_learner(config, make_data()).runtime.compile
    wanted = make_config(model__family="lstm", runtime__compile=True)
    train(wanted, tmp_path, make_data())
    assert not load_checkpoint(tmp_path / "checkpoints/step-00000012").metadata.runtime.compile


def test_out_of_memory_is_not_a_failed_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "compile", lambda loss, **_: exhausted)
    with pytest.raises(torch.OutOfMemoryError):
        compile_loss(exhausted, nn.Module(), (torch.ones(2), torch.ones(2)), log=print)


def traced_graphs(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """Let torch.compile trace functions but generate no code. Return the list that receives the graphs."""
    graphs, compile = list[torch.fx.GraphModule](), torch.compile

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda function, **options: compile(function, backend=backend, **options))
    return graphs


def test_the_last_model_of_a_process_compiles_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, PyTorch makes sizes symbolic from the second shape on, and does not compile the ninth."""
    graphs = traced_graphs(monkeypatch)
    with torch._dynamo.config.patch(recompile_limit=1):
        for width in (16, 24, 32):
            learner = new_training(make_config(model__n_embd=width)).learner
            x, y = torch.randint(5, (2, 4, 8))
            compile_loss(learner.mean_loss, learner.model, (x, y), log=print)
    inputs = [node.meta["example_value"] for graph in graphs for node in graph.graph.find_nodes(op="placeholder")]
    assert len(graphs) == 3
    assert all(isinstance(value, Tensor) for value in inputs), "a symbolic size is an input too"


@pytest.mark.parametrize("family", ["modern", "classic"])
def test_blocks_share_one_compiled_function(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes as long for many layers as for one. Evaluations, of other shapes, do not compile again."""
    graphs = traced_graphs(monkeypatch)
    learner = new_training(make_config(model__family=family, model__n_layer=3)).learner
    model = learner.model
    assert isinstance(model, GPT)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))  # blocks start as the identity
    x, y = torch.randint(5, (2, 4, 8))
    compiled, gradients = compile_loss(learner.mean_loss, model, (x, y), log=print), []
    for loss in (learner.mean_loss, compiled, compiled):
        learner.optimizer.zero_grad()
        loss(x, y).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(gradients[1:], [gradients[0]] * 2)
    assert len(graphs) == 1
    with pytest.raises(ValueError, match="batch_size"):
        compiled(x, y[:2])
    with eval_mode(model), torch.no_grad():
        model(x[:1, :3])
    assert len(graphs) == 1, "a failed loss leaves the model as it was"


# --- recording ---------------------------------------------------------------------------------------

GPU = Runtime("cuda:0", "bfloat16", False, 1)


@pytest.mark.parametrize(
    ("changes", "runtime", "expected"),
    [
        ({}, GPU, True),
        ({}, Runtime("cpu", "bfloat16", False, 1), False),
        ({}, Runtime("cuda:0", "bfloat16", True, 1), False),
        ({"train__shards": 2}, GPU, False),
        ({"train__micro_batch_size": 2}, GPU, False),
        ({"runtime__compile": False}, GPU, False),
    ],
)
def test_a_gpu_records_what_it_computes_at_once(changes: dict[str, Any], runtime: Runtime, expected: bool) -> None:
    assert is_recordable(make_config(**{"runtime__compile": "auto", **changes}), runtime) is expected


def test_a_recorded_run_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def recorder(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compilation, "is_recordable", lambda *_: True)
        monkeypatch.setattr(compilation, "record_loss", lambda loss, *_: lambda x, y: (calls.append(1), loss(x, y))[1])

    assert train_twice(tmp_path, monkeypatch, recorder, "auto") == (False, True)
    assert len(calls) == 12


def test_a_failed_recording_names_the_setting_that_avoids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure, the state of PyTorch's GPU code is unknown, so training cannot go on."""
    model, example = torch.nn.Linear(2, 2), (torch.ones(2), torch.ones(2))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return ((model(x) - y) ** 2).sum()

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", fail)
    with pytest.raises(UserError, match=r"cannot record CUDA graphs .no such instruction: bf16cvt.; .*compile=false$"):
        record_loss(loss, model, example)

    def exhausted(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", exhausted)
    with pytest.raises(torch.OutOfMemoryError):
        record_loss(loss, model, example)


def test_recorded_graphs_are_freed_with_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their memory counts as used while they wait for the garbage collector."""

    def fake(module: torch.nn.Module, example: tuple[Tensor, Tensor]) -> torch.nn.Module:
        forward = module.forward
        module.forward = lambda x, y: forward(x, y) if module.training else None  # refers to the module, as PyTorch's
        modules.append(weakref.ref(module))
        return module

    modules: list[weakref.ref[torch.nn.Module]] = []
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", fake)
    model = torch.nn.Linear(2, 2)
    recorded = record_loss(lambda x, y: (model(x) - y).sum(), model, (torch.ones(2), torch.ones(2)))
    assert recorded(torch.ones(2), torch.zeros(2)) == model(torch.ones(2)).sum()
    assert modules[0]() is not None
    del recorded
    assert modules[0]() is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", ["modern", "classic", "lstm"])
def test_a_gpu_repeats_a_run_bit_for_bit_recorded_or_not(tmp_path: Path, family: str) -> None:
    runtime = {"runtime__device": "cuda", "runtime__dtype": "bfloat16", "runtime__compile": "auto"}
    config, weights = make_config(model__family=family, model__dropout=0.1, **runtime), []
    for is_recorded in (False, False, True):
        training = new_training(config)
        if is_recorded:
            training.learner.use_loss(choose_loss(training.learner, make_data().train, print))
            assert training.learner.loss != training.learner.mean_loss
        for _ in range(12):
            training.step()
        weights.append({name: tensor.cpu() for name, tensor in training.learner.model.state_dict().items()})
    assert same(weights[0], weights[1])
    assert same(weights[0], weights[2])
