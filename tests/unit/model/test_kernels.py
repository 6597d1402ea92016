"""The CPU's own kernels: each gives what PyTorch's own gives."""

import copy
import ctypes
import math
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.config.resolve import parse_overrides, resolve
from minigpt.config.schema import ModelConfig
from minigpt.model import kernels
from minigpt.model.device import _has_compiler
from minigpt.model.gpt import GPT, attention_weights, rope_cos_sin
from minigpt.model.kernels import (
    CPU,
    QUERIES,
    TORCH,
    drop_by_bytes,
    linear_on_cpu,
    sdpa_fused,
    sdpa_in_blocks,
    squared_relu,
    store_by_columns,
)

LENGTHS = [1, 2, QUERIES - 1, QUERIES, QUERIES + 1, 2 * QUERIES, 2 * QUERIES + 7]


def draw(length: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(length)
    return [torch.randn(2, 3, length, 8).to(dtype).requires_grad_() for _ in range(3)]


def with_gradients(attend: object, inputs: list[Tensor], out: Tensor) -> list[Tensor]:
    y = attend(*inputs, 0.0)  # type: ignore[operator]
    return [y.detach(), *torch.autograd.grad(y, inputs, out)]


def test_attention_holds_no_weights_where_nothing_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long text those of all blocks together are most of what an evaluation takes."""
    held: list[int] = []
    monkeypatch.setattr(kernels._NoWayBack, "save_for_backward", lambda self, *tensors: held.append(len(tensors)))
    with torch.no_grad():
        kernels.sdpa_in_blocks(*torch.randn(3, 1, 2, 200, 8), 0.0)
    assert held == [3]  # q, k and v


@pytest.mark.parametrize(("family", "chosen"), [("modern", CPU), ("classic", CPU), ("modern", TORCH)])
def test_a_second_derivative_is_refused_and_not_wrong(family: str, chosen: kernels.Kernels) -> None:
    """Autograd went through what the ways back had kept, and took it for constant."""
    small = ("model.n_layer=1", "model.n_head=2", "model.n_embd=16", "model.context=8")
    model = GPT(resolve(parse_overrides([*small, f"model.family={family}"])).config.model, 5)
    model.use(chosen)
    ids = torch.randint(5, (2, 9))
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    with pytest.raises(RuntimeError, match="have no second derivatives"):
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)


@pytest.mark.parametrize("length", LENGTHS)
def test_attention_in_blocks_is_fused_attention(length: int) -> None:
    inputs = draw(length)
    out = torch.randn(2, 3, length, 8)
    for ours, torchs in zip(
        with_gradients(sdpa_in_blocks, inputs, out), with_gradients(sdpa_fused, inputs, out), strict=True
    ):
        torch.testing.assert_close(ours, torchs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", LENGTHS)
def test_in_bfloat16_it_is_as_near_to_the_truth_as_its_precision_lets_it(length: int) -> None:
    inputs = draw(length, torch.bfloat16)
    out = torch.randn(2, 3, length, 8).bfloat16()
    exact = with_gradients(sdpa_fused, [x.detach().double().requires_grad_() for x in inputs], out.double())
    for ours, truth in zip(with_gradients(sdpa_in_blocks, inputs, out), exact, strict=True):
        assert (ours.double() - truth).norm() <= 0.015 * truth.norm() + 1e-6  # bfloat16 rounds by up to 0.4 %


def test_autograd_agrees_with_finite_differences() -> None:
    inputs = [x.detach().double().requires_grad_() for x in draw(QUERIES + 3)]
    inputs = [x[:1, :1, :, :2].detach().requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(lambda q, k, v: sdpa_in_blocks(q, k, v, 0.0), inputs, fast_mode=True)


def test_no_later_token_is_seen() -> None:
    q, k, v = draw(2 * QUERIES + 7)
    before = sdpa_in_blocks(q, k, v, 0.0)
    for at in (1, QUERIES, 2 * QUERIES):
        changed_k, changed_v = k.clone(), v.clone()
        changed_k[:, :, at:], changed_v[:, :, at:] = 9.0, -9.0
        after = sdpa_in_blocks(q, changed_k, changed_v, 0.0)
        assert torch.equal(before[:, :, :at], after[:, :, :at])
        assert not torch.equal(before[:, :, at:], after[:, :, at:])


def test_dropout_of_attention_weights_drops_weights_and_has_their_gradient() -> None:
    """With values of one, each output is the sum of what is left of its weights, scaled up."""
    q, k, _ = draw(QUERIES + 5)
    v = torch.eye(QUERIES + 5).expand(2, 3, -1, -1).contiguous().requires_grad_()
    pad = torch.zeros(2, 3, QUERIES + 5, QUERIES + 5 - 8)
    q, k = (torch.cat((x, pad), -1).detach().requires_grad_() for x in (q, k))
    torch.manual_seed(5)
    kept = sdpa_in_blocks(q, k, v, 0.25)  # the weights themselves
    weights = attention_weights(q, k)
    left = kept != 0
    torch.testing.assert_close(kept[left], weights[left] / 0.75, atol=1e-6, rtol=1e-5)
    assert 0.7 < left.sum() / (weights > 0).sum() < 0.8
    out = torch.randn_like(kept)
    expected = torch.autograd.grad(weights * left / 0.75, (q, k), out)
    for ours, truth in zip(torch.autograd.grad(kept, (q, k), out), expected, strict=True):
        torch.testing.assert_close(ours, truth, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("probability", [0.004, 0.1, 0.2, 0.5, 0.9])
def test_dropout_by_bytes_drops_its_share_and_keeps_the_mean(probability: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(1003, 997)
    y = drop_by_bytes(x, probability)
    share = max(1, round(256 * probability)) / 256
    assert abs((y == 0).float().mean().item() - share) < 4 * math.sqrt(share / x.numel())
    assert torch.allclose(y[y != 0], torch.tensor(1 / (1 - share)))
    again = drop_by_bytes(x, probability)
    assert not torch.equal(y, again)
    torch.manual_seed(0)
    assert torch.equal(y, drop_by_bytes(x, probability)), "a function of the seed"


def test_neighbours_are_dropped_independently() -> None:
    """One drawn number serves eight elements: no two of them may go together."""
    torch.manual_seed(1)
    dropped = (drop_by_bytes(torch.ones(8 * 200_000), 0.5) == 0).view(-1, 8).double()
    correlation = torch.corrcoef(dropped.T) - torch.eye(8, dtype=torch.float64)
    assert correlation.abs().max() < 0.012
    following = torch.corrcoef(torch.stack((dropped[:-1].flatten(), dropped[1:].flatten())))[0, 1]
    assert abs(following) < 0.005


def test_squared_relu_is_autograds_to_the_bit() -> None:
    x = torch.randn(50, 40, requires_grad=True)
    out = torch.randn(50, 40)
    plain = F.relu(x).square()
    assert torch.equal(squared_relu(x), plain)
    ours, truth = (torch.autograd.grad(y, x, out)[0] for y in (squared_relu(x), plain))
    assert torch.equal(ours, truth)


@pytest.fixture(params=["products of any size", "large products"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without their sizes, the ways of large products are taken by the small ones of a test too."""
    if request.param == "products of any size":
        monkeypatch.setattr(kernels, "LARGE_PRODUCT", 0)
        monkeypatch.setattr(kernels, "PREFERS_ONEDNN", kernels.HAS_ONEDNN)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("shape", [(1,), (1, 1), (2, 1), (3, 5), (1, 64), (65, 1)])
@pytest.mark.parametrize(("inside", "out"), [(4, 6), (4, 7), (6, 4), (1, 1), (5, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_products_are_torchs(shape: tuple[int, ...], inside: int, out: int, bias: bool) -> None:
    """With biases that are not zero, as after training; a fresh model's would hide a forgotten one."""
    x, weight, b = torch.randn(*shape, inside), torch.randn(out, inside), torch.randn(out) if bias else None
    inputs = [tensor.requires_grad_() for tensor in (x, weight, b) if tensor is not None]
    ours, torchs = linear_on_cpu(x, weight, b), F.linear(x, weight, b)
    torch.testing.assert_close(ours, torchs, atol=1e-5, rtol=1e-5)
    towards = torch.randn_like(torchs)
    for found, expected in zip(
        torch.autograd.grad(ours, inputs, towards), torch.autograd.grad(torchs, inputs, towards), strict=True
    ):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    with torch.inference_mode():
        torch.testing.assert_close(linear_on_cpu(x, weight, b), torchs.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not kernels.HAS_ONEDNN, reason="this processor's products are torch's own")
def test_large_products_are_onednns_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(kernels, "LARGE_PRODUCT", 1_000_000)
    monkeypatch.setattr(kernels, "PREFERS_ONEDNN", True)
    monkeypatch.setattr(kernels, "_product", lambda x, weight, bias=None: seen.append(x.shape) or F.linear(x, weight))
    x, weight = torch.randn(1000, 100), torch.randn(10, 100)
    linear_on_cpu(x, weight, None)
    assert seen == [(1000, 100)]
    linear_on_cpu(x[1:], weight, None)
    linear_on_cpu(x.double(), weight.double(), None)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear_on_cpu(x, weight, None).dtype == torch.bfloat16
    TORCH.linear(x, weight, None)
    monkeypatch.setattr(kernels, "PREFERS_ONEDNN", False)
    linear_on_cpu(x, weight, None)
    assert len(seen) == 1


def test_on_intels_processors_products_stay_with_mkl(monkeypatch: pytest.MonkeyPatch) -> None:
    for vendor, expected in (("GenuineIntel", True), ("AuthenticAMD", False)):
        monkeypatch.setattr(kernels.Path, "read_text", lambda *_, vendor=vendor, **__: f"vendor_id\t: {vendor}\n")
        monkeypatch.setattr(kernels.Path, "is_file", lambda _: True)
        assert kernels._is_intel() is (expected or sys.platform == "darwin")


@pytest.mark.parametrize("intel", [True, False])
@pytest.mark.parametrize("capability", ["AVX512", "AVX2", "DEFAULT"])
def test_products_leave_mkl_only_where_it_leaves_avx512_unused(
    intel: bool, capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_is_intel", lambda: intel)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert kernels._prefers_onednn() is (kernels.HAS_ONEDNN and not intel and capability == "AVX512")


def test_weights_stored_by_columns_are_the_same_weights() -> None:
    model = GPT(ModelConfig(n_layer=2, n_head=2, n_embd=16, context=8), 11).eval()
    ids, before = torch.arange(8)[None] % 11, copy.deepcopy(model.state_dict())
    logits = model(ids)
    store_by_columns(model)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name])
        is_product = name.startswith("blocks") and weight.ndim == 2
        assert weight.stride() == ((1, weight.size(0)) if is_product else before[name].stride())
    torch.testing.assert_close(model(ids), logits, atol=1e-6, rtol=1e-5)


def strided(*shape: int) -> Tensor:
    """A part of a larger tensor, as queries and keys are of the product that makes them."""
    return torch.randn(*shape[:-2], 2 * shape[-2], shape[-1])[..., : shape[-2], :]


@pytest.mark.parametrize("shape", [(3, 1), (5, 8), (2, 7, 2, 3, 6)])
def test_the_norm_is_torchs_and_its_gradient_that_of_finite_differences(shape: tuple[int, ...]) -> None:
    inputs = x, weight = strided(*shape).requires_grad_(), torch.randn(shape[-1], requires_grad=True)
    ours, torchs = (norm(x, weight, 1e-6) for norm in (CPU.rms_norm, TORCH.rms_norm))
    torch.testing.assert_close(ours, torchs, atol=1e-5, rtol=1e-5)
    towards = torch.randn_like(torchs)
    for found, expected in zip(
        torch.autograd.grad(ours, inputs, towards), torch.autograd.grad(torchs, inputs, towards), strict=True
    ):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    assert torch.autograd.gradcheck(lambda x, w: CPU.rms_norm(x, w, 1e-6), exact, fast_mode=True)


def test_rotation_is_torchs_and_its_gradient_that_of_finite_differences() -> None:
    x, cos_sin = strided(2, 5, 3, 8).requires_grad_(), rope_cos_sin(3, 8)
    towards = torch.randn(2, 5, 3, 8)
    ours, torchs = (turn(x, cos_sin) for turn in (CPU.rope, TORCH.rope))
    torch.testing.assert_close(ours, torchs, atol=1e-6, rtol=1e-6)
    found, expected = (torch.autograd.grad(y, x, towards)[0] for y in (ours, torchs))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    assert torch.autograd.gradcheck(lambda x: CPU.rope(x, cos_sin), [x.detach().double().requires_grad_()])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_norm_and_rotation_keep_their_precision_and_compute_in_float32_at_least(
    dtype: torch.dtype,
) -> None:
    x, cos_sin, gains = torch.randn(2, 5, 3, 8, dtype=dtype), rope_cos_sin(3, 8), torch.randn(8)
    for ours, exact in (
        (CPU.rms_norm(x, gains, 1e-6), TORCH.rms_norm(x.double(), gains, 1e-6)),
        (TORCH.rms_norm(x, gains, 1e-6), TORCH.rms_norm(x.double(), gains.to(dtype), 1e-6)),  # gains in x's precision
        (CPU.rope(x, cos_sin), TORCH.rope(x.double(), cos_sin.double())),
    ):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), exact, atol=1e-7, rtol=2**-8 if dtype == torch.bfloat16 else 1e-12)


def test_without_gradients_the_bits_are_the_same() -> None:
    """There the kernels go without torch's bookkeeping for a way back."""
    q, k, v = (torch.randn(2, 3, 100, 8, requires_grad=True) for _ in range(3))
    x, weight, cos_sin = torch.randn(2, 3, 8, requires_grad=True), torch.randn(8), rope_cos_sin(3, 8)
    for compute in (
        lambda: CPU.sdpa(q, k, v, 0.0),
        lambda: CPU.rms_norm(x, weight, 1e-6),
        lambda: CPU.rope(x, cos_sin),
        lambda: CPU.linear(x.repeat(200, 1, 1), torch.ones(200, 8), None),
        lambda: squared_relu(x),
    ):
        with_gradients = compute()
        assert with_gradients.requires_grad
        for off in (torch.no_grad, torch.inference_mode):
            with off():
                assert torch.equal(compute(), with_gradients)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("family", ["classic", "modern"])
def test_a_model_gives_the_same_with_either(family: str) -> None:
    shape = ["model.n_layer=2", "model.n_head=2", "model.n_embd=32", "model.context=100", "model.zero_init=false"]
    model = GPT(resolve(parse_overrides([f"model.family={family}", *shape])).config.model, 11)
    ids = torch.randint(11, (3, 100))
    found = []
    for chosen in (TORCH, CPU, None):
        model.use(chosen)
        logits = model(ids)
        gradients = torch.autograd.grad(logits.square().mean(), list(model.parameters()))
        found.append([logits.detach(), *gradients])
    for with_torch, with_cpu, by_default in zip(*found, strict=True):
        torch.testing.assert_close(with_cpu, with_torch, atol=1e-5, rtol=1e-4)
        assert torch.equal(by_default, with_cpu), "on a CPU these are the ones taken"


@pytest.mark.parametrize("family", ["classic", "modern"])
@pytest.mark.parametrize("chosen", [CPU, TORCH], ids=["cpu", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_training_sees_no_later_token(
    monkeypatch: pytest.MonkeyPatch, family: str, chosen: kernels.Kernels, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(kernels, "LARGE_PRODUCT", 1)
    model = one_to_train(family)
    model.use(chosen)
    assert_causal(model, model.config.context, dtype)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # the compiler does that itself
@pytest.mark.skipif(not _has_compiler("cpu"), reason="no C++ compiler here")
def test_compiled_it_sees_none_either() -> None:
    model = one_to_train("modern")
    assert_causal(torch.compile(model), model.config.context, torch.bfloat16)


def one_to_train(family: str) -> GPT:
    shape = {"model.n_layer": 1, "model.n_head": 2, "model.n_embd": 32, "model.context": 2 * QUERIES + 7}
    layers = ("family", {"model.family": family}), ("shape", {**shape, "model.zero_init": False})
    return GPT(resolve(*layers).config.model, 11).train()


def assert_causal(compute: Callable[[Tensor], Tensor], context: int, dtype: torch.dtype) -> None:
    """What comes later changes no logit by a bit, in any block of queries, while a backward pass is kept for."""

    def logits(ids: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype, enabled=dtype is torch.bfloat16):
            return compute(ids).detach()

    torch.manual_seed(0)
    ids = torch.randint(11, (3, context))
    before = logits(ids)
    assert before.dtype is dtype
    for at in (1, QUERIES, context - 1):
        changed = ids.clone()
        changed[:, at:] = (ids[:, at:] + 1) % 11
        after = logits(changed)
        assert torch.equal(before[:, :at], after[:, :at])
        assert not torch.equal(before[:, at:], after[:, at:])


PAGES = """
import torch
from pathlib import Path
from minigpt.model.kernels import keep_freed_memory
keep_freed_memory()
resident = lambda: int(Path("/proc/self/statm").read_text().split()[1])
tensors = [torch.ones(1 << 24) for _ in range(4)]  # 64 MB each
full = resident()
del tensors
print(resident() / full)
"""


@pytest.mark.skipif(sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc only")
def test_what_is_freed_stays_with_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", PAGES], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 0.95


@pytest.mark.parametrize(("probability", "share"), [(0.9999, 255 / 256), (0.0001, 1 / 256)])
def test_dropout_is_defined_up_to_its_ends(probability: float, share: float) -> None:
    torch.manual_seed(0)
    y = drop_by_bytes(torch.ones(1 << 20), probability)
    assert y.isfinite().all()
    assert (y == 0).double().mean().item() == pytest.approx(share, abs=5e-4)
