"""Each weight moves by the rule and the rate it should, and a saved optimizer goes on as if it had never stopped."""

import copy
import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F

from minigpt.config.schema import FAMILIES, ModelConfig, OptimConfig
from minigpt.model.gpt import GPT
from minigpt.training.optim import NS_COEFFICIENTS, AdamW, Muon, Optimizer, orthogonal
from minigpt.training.schedule import lr_factor

NAMES = ("adamw", "muon")
SCHEDULES = ("cosine", "linear", "wsd", "constant")


def model_of(family: str, **changes: Any) -> GPT:
    torch.manual_seed(0)
    small = {"n_layer": 2, "n_head": 2, "n_embd": 16, "context": 8}
    return GPT(ModelConfig(**{"family": family, **FAMILIES[family], **small, **changes}), 11)


def gradients(model: GPT, step: int) -> None:
    ids = torch.randint(11, (3, 9), generator=torch.Generator().manual_seed(step))
    F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()


def steps(model: GPT, optimizer: Optimizer, span: range) -> None:
    for step in span:
        optimizer.zero_grad()
        gradients(model, step)
        optimizer.step(lr_factor((step + 0.5) / 20, OptimConfig()))


# --- which parameter goes where ----------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_each_parameter_is_in_one_group_and_decay_is_for_matrices(name: str, family: str) -> None:
    model = model_of(family)
    optimizer = Optimizer(model, OptimConfig(name=name, weight_decay=0.3))
    names = {parameter: key for key, parameter in model.named_parameters()}
    placed, by_kind = [], {}
    for rule in optimizer.rules:
        placed += [names[p] for p in rule.parameters]
        by_kind.setdefault(type(rule).__name__, []).extend(names[p] for p in rule.parameters)
        for p in rule.parameters:
            assert rule.weight_decay == (0.3 if p.ndim == 2 else 0.0), names[p]
    assert sorted(placed) == sorted(names.values())
    matrices = {key for key, p in model.named_parameters() if p.ndim == 2 and key.startswith("blocks.")}
    assert set(by_kind.get("Muon", ())) == (matrices if name == "muon" else set())
    assert len(matrices) == 8  # qkv, proj, up and down of two blocks: no embedding


@pytest.mark.parametrize("name", NAMES)
def test_decay_shrinks_matrices_and_leaves_vectors(name: str) -> None:
    """Without gradients, a step takes the share rate x decay from every matrix and nothing from biases and gains."""
    model = model_of("classic")
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    config = OptimConfig(name=name, lr=0.1, muon_lr=0.2, weight_decay=0.5, warmup=0, schedule="constant")
    Optimizer(model, config).step(lr_factor(0.5, config))
    for key, p in model.named_parameters():
        rate = 0.2 if name == "muon" and key.startswith("blocks.") else 0.1
        torch.testing.assert_close(p.detach(), before[key] * (1 - rate * 0.5) if p.ndim == 2 else before[key])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("progress", [0.05, 0.5, 1.0])
def test_the_learning_rate_is_applied(name: str, progress: float) -> None:
    """A first AdamW update is one rate long in each weight; a Muon update has singular values near one rate."""
    model = model_of("modern", zero_init=False)
    config = OptimConfig(name=name, lr=3e-3, muon_lr=0.02, weight_decay=0, warmup=0.1, min_lr=0.2)
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    gradients(model, 0)
    optimizer = Optimizer(model, config)
    factor = lr_factor(progress, config)
    optimizer.step(factor)
    assert factor == pytest.approx({0.05: 0.5, 0.5: 1 - 0.8 * 4 / 9, 1.0: 0.2}[progress])
    for key, p in model.named_parameters():
        moved = (before[key] - p.detach()).double()
        if name == "muon" and key.startswith("blocks.") and p.ndim == 2:
            assert p.grad is not None
            rate = 0.02 * factor * math.sqrt(max(1, p.size(0) / p.size(1)))
            assert (moved * p.grad).sum() > 0
            spectrum = torch.linalg.svdvals(moved) / rate
            assert spectrum.max() < 1.4, key
            assert spectrum.median() > 0.5, key
        else:
            large = p.grad.abs() > 1e-5  # type: ignore[union-attr]
            assert large.any(), key
            rate = moved[large].abs() / (3e-3 * factor)
            assert rate.min() > 0.99, key
            assert rate.max() < 1.01, key


class PlainMuon(Muon):
    """As it was first published: the vectors of a matrix's longer side are left as unlike in size as they are."""

    def equalize_columns(self, updates: torch.Tensor, squared_sizes: list[torch.Tensor]) -> torch.Tensor:
        return updates


def test_both_rules_are_torchs() -> None:
    """Matrices of several shapes, two of them one's transpose, over steps with decay and falling rates."""
    shapes = [(6, 4), (4, 4), (4, 6), (8, 4), (1, 4), (6, 4), (3, 1)]
    torch.manual_seed(0)
    ours, theirs = ([torch.randn(shape, requires_grad=True) for shape in shapes] for _ in range(2))
    copies = [[p.detach().clone().requires_grad_() for p in each] for each in (ours, theirs)]
    decay = {"weight_decay": 0.2}
    rules = PlainMuon(ours, 1.0, momentum=0.9, **decay), AdamW(theirs, 1.0, beta1=0.8, beta2=0.9, **decay)
    torchs = torch.optim.Muon(copies[0], momentum=0.9, **decay), torch.optim.AdamW(copies[1], betas=(0.8, 0.9), **decay)
    for lr in (0.05, 0.03, 0.02, 0.01):
        for mine, copy_ in zip(ours + theirs, copies[0] + copies[1], strict=True):
            mine.grad = torch.randn_like(mine)
            copy_.grad = mine.grad.clone()
        for rule, other in zip(rules, torchs, strict=True):
            rule.step(lr)
            other.param_groups[0]["lr"] = lr
            other.step()
    for mine, copy_ in zip(ours, copies[0], strict=True):
        torch.testing.assert_close(mine, copy_, atol=2e-3, rtol=0)  # rounding in bfloat16 may differ
    for mine, copy_ in zip(theirs, copies[1], strict=True):
        torch.testing.assert_close(mine, copy_, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_muon_finds_the_same_in_either_precision(dtype: torch.dtype, rounding: float) -> None:
    """Up to its own rounding: against the same ns_coefficients in float64."""
    torch.manual_seed(0)
    matrices = torch.randn(3, 16, 48)
    exact = orthogonal(matrices.double(), NS_COEFFICIENTS)
    found = orthogonal(matrices.to(dtype), NS_COEFFICIENTS)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, atol=rounding, rtol=0)


def test_the_vectors_of_the_longer_side_move_alike() -> None:
    """Each over the root of the average of its mean squares, recomputed for one matrix at a time, whatever its side."""
    shapes = [(6, 4), (4, 4), (4, 6), (6, 4), (1, 4), (3, 1)]
    torch.manual_seed(0)
    rule = Muon([torch.randn(shape, requires_grad=True) for shape in shapes], 1.0, weight_decay=0.0, momentum=0.9)
    plain = PlainMuon([p.detach().clone().requires_grad_() for p in rule.parameters], 1.0, 0.0, momentum=0.9)
    averages = [torch.zeros(1, 1) for _ in shapes]
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


def test_a_matrix_whose_gradient_is_zero_stays() -> None:
    """As at the first step the matrices before one that starts at zero."""
    matrix = torch.randn(6, 4, requires_grad=True)
    before, rule = matrix.detach().clone(), Muon([matrix], 1.0, weight_decay=0.0, momentum=0.9)
    matrix.grad = torch.zeros_like(matrix)
    rule.step(0.1)
    assert torch.equal(matrix, before)
    matrix.grad = torch.randn_like(matrix)
    rule.step(0.1)
    assert matrix.isfinite().all()
    assert not torch.equal(matrix, before)


# --- resuming ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [0, 1, 6])
@pytest.mark.parametrize("name", NAMES)
def test_a_saved_optimizer_goes_on_bit_for_bit(name: str, stop: int) -> None:
    """Through a safetensors file and into new objects, at any step, the next updates are the same to the last bit."""
    model, config = model_of("modern"), OptimConfig(name=name)
    optimizer = Optimizer(model, config)
    steps(model, optimizer, range(stop))
    stored = safetensors.torch.load(safetensors.torch.save(optimizer.state_dict()))
    other = copy.deepcopy(model)
    resumed = Optimizer(other, config)
    resumed.load_state_dict(stored)
    steps(model, optimizer, range(stop, 10))
    steps(other, resumed, range(stop, 10))
    for (key, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), key
    ours, theirs = optimizer.state_dict(), resumed.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_state_of_other_names_or_shapes_is_refused_by_name(name: str, family: str) -> None:
    """A state that lacked a tensor once went on with that average at zero, silently."""
    model = model_of(family)
    optimizer = Optimizer(model, OptimConfig(name=name))
    steps(model, optimizer, range(2))
    state = optimizer.state_dict()
    key = "exp_avg/norm.weight"
    of_muon = [k for k in state if k.startswith("squared_size/")]
    assert bool(of_muon) == (name == "muon")
    fresh = Optimizer(model_of(family), OptimConfig(name=name))
    for wrong, named in (
        ({k: v for k, v in state.items() if k != key}, key),
        ({**state, "exp_avg/nothing": torch.ones(1)}, "exp_avg/nothing"),
        ({**state, key: torch.ones(17)}, key),
        ({**state, key: state[key][None]}, key),
        ({**state, "step/norm.weight": torch.ones(1)}, "step/norm.weight"),
        ({k: v for k, v in state.items() if not k.startswith("step/")}, "step/"),
        *(({k: v for k, v in state.items() if k not in of_muon}, "squared_size/") for _ in of_muon[:1]),
        *(({**state, k: state[k].mT}, k) for k in of_muon),
    ):
        with pytest.raises(ValueError, match=f"the optimizer's {named}.* does not fit the model"):
            fresh.load_state_dict(wrong)
        assert fresh.state_dict() == {}, "nothing of it was taken"
    other = Optimizer(model_of(family), OptimConfig(name="adamw" if name == "muon" else "muon"))
    with pytest.raises(ValueError, match="does not fit the model"):
        other.load_state_dict(state)
    fresh.load_state_dict({})  # of a run stopped before its first step
    fresh.load_state_dict(state)
    assert all(torch.equal(state[key], value) for key, value in fresh.state_dict().items())


def test_loading_makes_a_copy() -> None:
    """What was loaded must not change under the feet of whoever holds it."""
    model = model_of("modern")
    optimizer = Optimizer(model, OptimConfig())
    steps(model, optimizer, range(2))
    stored = {key: value.clone() for key, value in optimizer.state_dict().items()}
    kept = {key: value.clone() for key, value in stored.items()}
    optimizer.load_state_dict(stored)
    steps(model, optimizer, range(2, 4))
    assert all(torch.equal(stored[key], kept[key]) for key in kept)


def test_the_state_is_named_by_parameter() -> None:
    model = model_of("classic")
    optimizer = Optimizer(model, OptimConfig(name="muon"))
    steps(model, optimizer, range(1))
    hidden = {key for key, p in model.named_parameters() if p.ndim == 2 and key.startswith("blocks.")}
    rest = {key for key, _ in model.named_parameters()} - hidden
    expected = {f"{kind}/{key}" for kind in ("momentum_buffer", "squared_size") for key in hidden}
    expected |= {f"{kind}/{key}" for kind in ("step", "exp_avg", "exp_avg_sq") for key in rest}
    assert set(optimizer.state_dict()) == expected


def test_zero_grad_drops_every_gradient() -> None:
    model = model_of("classic")
    gradients(model, 0)
    Optimizer(model, OptimConfig()).zero_grad()
    assert all(p.grad is None for p in model.parameters())


# --- the schedule ------------------------------------------------------------------------------------

configs = st.builds(
    OptimConfig,
    schedule=st.sampled_from(SCHEDULES),
    warmup=st.floats(0, 0.99),
    decay=st.floats(0, 1, exclude_min=True),
    min_lr=st.floats(0, 1),
).filter(lambda c: c.schedule != "wsd" or c.warmup + c.decay <= 1)


@hypothesis.given(config=configs, first=st.floats(0, 1), second=st.floats(0, 1))
@hypothesis.example(config=OptimConfig(schedule="wsd", decay=1e-17), first=0.5, second=1.0)
def test_the_rate_rises_then_falls_within_bounds(config: OptimConfig, first: float, second: float) -> None:
    early, late = sorted((first, second))
    before, after = lr_factor(early, config), lr_factor(late, config)
    for progress, factor in ((early, before), (late, after)):
        assert 0 <= factor <= 1
        assert progress < config.warmup or factor >= config.min_lr - 1e-12
    if late < config.warmup:
        assert before <= after
    elif early >= config.warmup:
        assert before >= after - 1e-12


@hypothesis.given(config=configs)
def test_the_rate_starts_at_zero_peaks_after_the_warm_up_and_ends_at_min_lr(config: OptimConfig) -> None:
    assert lr_factor(0.0, config) == 0 if config.warmup else lr_factor(0.0, config) == pytest.approx(1)
    assert lr_factor(config.warmup, config) == pytest.approx(1)
    assert lr_factor(1.0, config) == pytest.approx(1 if config.schedule == "constant" else config.min_lr)


@hypothesis.given(config=configs.filter(lambda c: min(c.warmup, c.decay, 1 - c.warmup) > 0.01))
def test_the_rate_does_not_jump(config: OptimConfig) -> None:
    """Also not where two parts of the schedule meet."""
    for joint in (config.warmup, 1 - config.decay, 0.37):
        around = [lr_factor(min(1.0, max(0.0, joint + shift)), config) for shift in (-1e-9, 0, 1e-9)]
        assert max(around) - min(around) < 1e-6


@pytest.mark.parametrize(
    ("schedule", "expected"),  # at 0.1, 0.2, 0.4, 0.6, 0.8, 0.9 of a run with 0.2 of warm-up and, for wsd, 0.4 of decay
    [
        ("constant", [0.5, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 0.775, 0.55, 0.325, 0.2125]),
        ("cosine", [0.5, 1, *(0.1 + 0.45 * (1 + math.cos(math.pi * x)) for x in (0.25, 0.5, 0.75, 0.875))]),
        ("wsd", [0.5, 1, 1, 1, 0.55, 0.325]),
    ],
)
def test_the_shape_of_each_schedule(schedule: Any, expected: list[float]) -> None:
    config = OptimConfig(schedule=schedule, warmup=0.2, decay=0.4, min_lr=0.1)
    assert [lr_factor(p, config) for p in (0.1, 0.2, 0.4, 0.6, 0.8, 0.9)] == pytest.approx(expected)
