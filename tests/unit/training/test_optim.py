"""Each parameter gets the optimizer, learning rate and decay it should, and a saved state resumes bit for bit."""

import copy
import math

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from small_models import untrained_model

from minigpt.config.schema import FAMILIES, OptimConfig
from minigpt.errors import CheckpointError
from minigpt.model.gpt import GPT
from minigpt.training.learner import copy_arrays, to_arrays
from minigpt.training.optim import NS_COEFFICIENTS, AdamW, Muon, Optimizer, orthogonalize
from minigpt.training.schedule import lr_factor

NAMES = ("adamw", "normuon")


def set_gradients(model: GPT, step: int) -> None:
    ids = torch.randint(11, (3, 9), generator=torch.Generator().manual_seed(step))
    F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()


def make_steps(model: GPT, optimizer: Optimizer, span: range) -> None:
    for step in span:
        optimizer.zero_grad()
        set_gradients(model, step)
        optimizer.step(lr_factor((step + 0.5) / 20, OptimConfig()))


def weights_of(model: GPT) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def is_hidden_matrix(name: str, p: torch.Tensor) -> bool:
    return p.ndim == 2 and name.startswith("blocks.")


# --- groups ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_each_parameter_is_in_one_group_and_only_matrices_decay(name: str, family: str) -> None:
    model = untrained_model(family)
    optimizer = Optimizer(model, OptimConfig(name=name, weight_decay=0.3))
    names = {parameter: key for key, parameter in model.named_parameters()}
    grouped, muon = [], set()
    for group in optimizer.groups:
        grouped += [names[p] for p in group.parameters]
        muon |= {names[p] for p in group.parameters if isinstance(group, Muon)}
        for p in group.parameters:
            assert group.weight_decay == (0.3 if p.ndim == 2 else 0.0), names[p]
    assert sorted(grouped) == sorted(names.values())
    matrices = {key for key, p in model.named_parameters() if is_hidden_matrix(key, p)}
    assert muon == (matrices if name == "normuon" else set())
    assert len(matrices) == 8  # qkv, proj, up and down of two blocks, but no embedding


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("factor", [0.2, 1.0])
def test_the_learning_rate_is_applied(name: str, factor: float) -> None:
    """The first AdamW update moves each weight by the rate. A Muon update has singular values near the rate."""
    model = untrained_model("modern", 11, context=8, zero_init=False)
    before = weights_of(model)
    set_gradients(model, 0)
    rates = {"lr": 3e-3} if name == "adamw" else {"lr": 0.02, "embedding_lr": 3e-3}
    Optimizer(model, OptimConfig(name=name, **rates, weight_decay=0)).step(factor)
    for key, p in model.named_parameters():
        assert p.grad is not None
        moved = (before[key] - p.detach()).double()
        if name == "normuon" and is_hidden_matrix(key, p):
            assert (moved * p.grad).sum() > 0
            parts = moved.view(12 if "qkv" in key else 1, -1, p.size(1))  # each of three kinds of four heads by itself
            spectrum = torch.linalg.svdvals(parts) / (0.02 * factor * math.sqrt(max(1, parts.size(1) / p.size(1))))
            assert spectrum.max() < 1.4, key
            assert spectrum.median() > 0.5, key
        else:
            ratios = moved[p.grad.abs() > 1e-5].abs() / (3e-3 * factor)
            torch.testing.assert_close(ratios, torch.ones_like(ratios), atol=0.01, rtol=0)


# --- the update rules --------------------------------------------------------------------------------


class PlainMuon(Muon):
    """Muon without the normalization of NorMuon, as first published."""

    def normalize_columns(self, updates: torch.Tensor, squared_sizes: list[torch.Tensor]) -> torch.Tensor:
        return updates


def muon(matrices: list[torch.Tensor], kind: type[Muon] = Muon, weight_decay: float = 0.0) -> Muon:
    return kind(matrices, 1.0, weight_decay, momentum=0.9, dtype=torch.bfloat16)


def random_matrices(*shapes: tuple[int, int]) -> list[torch.Tensor]:
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def copies(parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    return [p.detach().clone().requires_grad_() for p in parameters]


def test_both_optimizers_are_pytorchs() -> None:
    """Over matrices of several shapes, one the transpose of another, with decay and a falling rate."""
    ours = [random_matrices((6, 4), (4, 4), (4, 6), (8, 4), (1, 4), (6, 4), (3, 1)) for _ in range(2)]
    theirs = [copies(matrices) for matrices in ours]
    adamw = AdamW(ours[1], 1.0, 0.2, beta1=0.8, beta2=0.9)
    optimizers = muon(ours[0], PlainMuon, weight_decay=0.2), adamw
    expected = (
        torch.optim.Muon(theirs[0], momentum=0.9, weight_decay=0.2),
        torch.optim.AdamW(theirs[1], betas=(0.8, 0.9), weight_decay=0.2),
    )
    for lr in (0.05, 0.03, 0.02, 0.01):
        for p, q in zip(ours[0] + ours[1], theirs[0] + theirs[1], strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        for optimizer, other in zip(optimizers, expected, strict=True):
            optimizer.step(lr)
            other.param_groups[0]["lr"] = lr
            other.step()
    torch.testing.assert_close(ours[0], theirs[0], atol=2e-3, rtol=0)  # rounding in bfloat16 may differ
    torch.testing.assert_close(ours[1], theirs[1], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("columns", [16, 24, 48])  # from 32, float32 iterates on the Gram matrix
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-3), (torch.bfloat16, 0.02)])
def test_newton_schulz_maps_singular_values_by_its_polynomial(
    dtype: torch.dtype, rounding: float, columns: int
) -> None:
    torch.manual_seed(1)
    u, values, v = torch.linalg.svd(torch.randn(3, 16, columns).double(), full_matrices=False)
    if dtype == torch.float32:
        values[1] = torch.logspace(0, -5, 16)  # nearly singular: too much for bfloat16 in any shape
    found = orthogonalize((u * values[:, None] @ v).to(dtype), NS_COEFFICIENTS)
    assert found.dtype == dtype
    mapped = values / values.norm(dim=1, keepdim=True)
    for a, b, c in NS_COEFFICIENTS:
        mapped = a * mapped + b * mapped**3 + c * mapped**5
    torch.testing.assert_close(found.double(), u * mapped[:, None] @ v, atol=rounding, rtol=0)
    assert mapped[0].min() > 0.6
    assert mapped.max() < 1.3


def test_columns_are_normalized_by_their_running_rms() -> None:
    """Recomputed for one matrix at a time. After the first step all vectors of the longer side are equally long."""
    rule = muon(random_matrices((6, 4), (4, 4), (4, 6), (6, 4), (1, 4), (3, 1)))
    plain = muon(copies(rule.parameters), PlainMuon)
    averages = [torch.zeros(1, 1) for _ in rule.parameters]
    for step in range(3):
        before = [[p.detach().clone() for p in each.parameters] for each in (rule, plain)]
        for ours, theirs in zip(rule.parameters, plain.parameters, strict=True):
            ours.grad = torch.randn_like(ours)
            theirs.grad = ours.grad.clone()
        rule.step(0.1)
        plain.step(0.1)
        for at, (ours, theirs) in enumerate(zip(rule.parameters, plain.parameters, strict=True)):
            moved, whole = ours.detach() - before[0][at], theirs.detach() - before[1][at]
            shorter = 0 if len(ours) <= ours.size(1) else 1
            unscaled = whole / 0.1 / max(1, ours.size(0) / ours.size(1)) ** 0.5
            averages[at] = 0.95 * averages[at] + 0.05 * unscaled.square().mean(shorter, keepdim=True)
            expected = whole / averages[at].sqrt()
            expected *= whole.norm() / expected.norm()
            torch.testing.assert_close(moved, expected, atol=1e-5, rtol=1e-4)
            if step == 0:
                sizes = moved.norm(dim=shorter)
                torch.testing.assert_close(sizes, sizes.mean().expand_as(sizes), atol=1e-5, rtol=1e-4)


def test_a_matrix_without_a_gradient_yet_stays_and_moves_later() -> None:
    """With zero_init, the first gradient of most matrices is zero."""
    (matrix,) = matrices = random_matrices((6, 4))
    before, rule = matrix.detach().clone(), muon(matrices)
    matrix.grad = torch.zeros_like(matrix)
    rule.step(0.1)
    assert torch.equal(matrix, before)
    matrix.grad = torch.randn_like(matrix)
    rule.step(0.1)
    assert matrix.isfinite().all()
    assert not torch.equal(matrix, before)


# --- saving and resuming -----------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [0, 1, 6])
@pytest.mark.parametrize("name", NAMES)
def test_a_saved_optimizer_resumes_bit_for_bit(name: str, stop: int) -> None:
    """Through a safetensors file and into new objects."""
    model, config = untrained_model("modern"), OptimConfig(name=name)
    optimizer = Optimizer(model, config)
    make_steps(model, optimizer, range(stop))
    stored = safetensors.torch.load(safetensors.torch.save(optimizer.state_dict()))
    other = copy.deepcopy(model)
    resumed = Optimizer(other, config)
    if stored:
        copy_arrays(to_arrays(stored), resumed.create_state())
    make_steps(model, optimizer, range(stop, 10))
    make_steps(other, resumed, range(stop, 10))
    ours, theirs = (weights_of(m) | o.state_dict() for m, o in ((model, optimizer), (other, resumed)))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_that_does_not_fit_is_refused_by_name(name: str) -> None:
    """A missing tensor must not be replaced with zeros."""
    model = untrained_model("modern")
    optimizer = Optimizer(model, OptimConfig(name=name))
    make_steps(model, optimizer, range(2))
    state, key = optimizer.state_dict(), "exp_avg/norm.weight"
    sizes = [k for k in state if k.startswith("squared_size/")]
    assert bool(sizes) == (name == "normuon")
    new = Optimizer(untrained_model("modern"), OptimConfig(name=name))
    created = new.create_state()
    for wrong, named in (
        ({k: v for k, v in state.items() if k != key}, key),
        ({**state, "exp_avg/nothing": torch.ones(1)}, "exp_avg/nothing"),
        ({**state, key: torch.ones(17)}, key),
        ({**state, key: state[key][None]}, key),
        ({**state, "step/norm.weight": torch.ones(1)}, "step/norm.weight"),
        ({k: v for k, v in state.items() if not k.startswith("step/")}, "step/"),
        *(({**state, k: state[k].mT}, k) for k in sizes),
    ):
        with pytest.raises(
            CheckpointError, match=f"^cannot resume: {named}.* of the checkpoint does not fit the model$"
        ):
            copy_arrays(to_arrays(wrong), created)
        assert not any(tensor.any() for tensor in created.values()), "nothing was copied"
    other = Optimizer(untrained_model("modern"), OptimConfig(name="adamw" if name == "normuon" else "normuon"))
    with pytest.raises(CheckpointError, match="does not fit the model"):
        copy_arrays(to_arrays(state), other.create_state())
    copy_arrays(to_arrays(state), created)
    assert all(torch.equal(state[key], value) for key, value in new.state_dict().items())
