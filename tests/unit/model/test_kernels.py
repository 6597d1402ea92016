"""Both implementations of each operation give the same values and gradients."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_models import FAMILY_NAMES, random_model, some_ids, untrained_model
from torch import Tensor

from minigpt.model import kernels
from minigpt.model.device import has_compiler
from minigpt.model.gpt import Attention, attention_weights, rope_cos_sin, use_kernels
from minigpt.model.kernels import (
    BLOCK,
    CPU,
    KERNELS,
    TORCH,
    Kernels,
    apply_rope,
    byte_dropout,
    sdpa_blocked,
    sdpa_fused,
    squared_relu,
)

LENGTHS = [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 7]


def values_and_gradients(compute: Callable[..., Tensor], inputs: list[Tensor], towards: Tensor) -> list[Tensor]:
    y = compute(*inputs)
    return [y.detach(), *torch.autograd.grad(y, [x for x in inputs if x.requires_grad], towards)]


def random_qkv(length: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(2, 3, length, 8).to(dtype).requires_grad_() for _ in range(3)]


def strided(*shape: int) -> Tensor:
    """Return a slice of a larger tensor, as queries and keys are."""
    return torch.randn(*shape[:-2], 2 * shape[-2], shape[-1])[..., : shape[-2], :].requires_grad_()


# --- attention ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", LENGTHS)
def test_blocked_and_fused_attention_are_the_reference(length: int) -> None:
    inputs, towards = random_qkv(length), torch.randn(2, 3, length, 8)
    reference, *others = (
        values_and_gradients(lambda q, k, v, attend=attend: attend(q, k, v, 0.0), inputs, towards)
        for attend in (Attention.attend, sdpa_blocked, sdpa_fused)
    )
    for other in others:
        torch.testing.assert_close(other, reference, atol=1e-5, rtol=1e-5)


def test_blocked_attention_is_accurate_in_bfloat16() -> None:
    length = 2 * BLOCK + 7
    inputs, towards = random_qkv(length, torch.bfloat16), torch.randn(2, 3, length, 8).bfloat16()
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    exact = values_and_gradients(lambda q, k, v: sdpa_fused(q, k, v, 0.0), doubles, towards.double())
    ours = values_and_gradients(lambda q, k, v: sdpa_blocked(q, k, v, 0.0), inputs, towards)
    for found, expected in zip(ours, exact, strict=True):
        assert (found.double() - expected).norm() <= 0.015 * expected.norm()  # bfloat16 rounds by up to 0.4 %


def test_attention_dropout_drops_weights_and_their_gradients() -> None:
    """With the identity as values, the output is the weights after dropout."""
    length = BLOCK + 5
    q, k = (torch.randn(2, 3, length, length, requires_grad=True) for _ in range(2))
    v = torch.eye(length).expand(2, 3, -1, -1).contiguous()
    kept = sdpa_blocked(q, k, v, 0.25)
    weights, is_kept = attention_weights(q, k), kept != 0
    torch.testing.assert_close(kept[is_kept], weights[is_kept] / 0.75, atol=1e-6, rtol=1e-5)
    assert 0.7 < is_kept.sum() / (weights > 0).sum() < 0.8
    towards = torch.randn_like(kept)
    expected = torch.autograd.grad(weights * is_kept / 0.75, (q, k), towards)
    torch.testing.assert_close(torch.autograd.grad(kept, (q, k), towards), expected, atol=1e-5, rtol=1e-4)


def test_attention_keeps_no_weights_for_a_backward_pass_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an evaluation of a long context they would take most of the memory."""
    saved: list[int] = []
    forward = kernels._BlockedAttention.forward

    def counting(ctx: Any, *inputs: Any) -> Tensor:
        out = forward(ctx, *inputs)
        saved.append(len(ctx.to_save))
        return out

    monkeypatch.setattr(kernels._BlockedAttention, "forward", staticmethod(counting))
    with torch.no_grad():
        sdpa_blocked(*torch.randn(3, 1, 2, 2 * BLOCK, 8), 0.0)
    sdpa_blocked(*torch.randn(3, 1, 2, 2 * BLOCK, 8, requires_grad=True), 0.0)
    assert saved == [3, 3 + 2 * 2]


# --- dropout -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("probability", [0.0001, 0.1, 0.2, 0.5, 0.9999])
def test_byte_dropout_drops_its_share_and_keeps_the_mean(probability: float) -> None:
    x = torch.ones(1003, 997)
    torch.manual_seed(0)
    y, again = byte_dropout(x, probability), byte_dropout(x, probability)
    share = min(255, max(1, round(256 * probability))) / 256
    assert abs((y == 0).double().mean().item() - share) < 4 * math.sqrt(share * (1 - share) / x.numel())
    assert torch.allclose(y[y != 0], torch.tensor(1 / (1 - share)))
    assert not torch.equal(y, again)
    torch.manual_seed(0)
    assert torch.equal(y, byte_dropout(x, probability)), "a function of the seed"


def test_byte_dropout_drops_neighbours_independently() -> None:
    """Eight elements share one random number."""
    dropped = (byte_dropout(torch.ones(8 * 200_000), 0.5) == 0).view(-1, 8).double()
    correlation = torch.corrcoef(dropped.T) - torch.eye(8, dtype=torch.float64)
    assert correlation.abs().max() < 0.012
    following = torch.corrcoef(torch.stack((dropped[:-1].flatten(), dropped[1:].flatten())))[0, 1]
    assert abs(following) < 0.005


# --- squared ReLU, RMSNorm and RoPE ------------------------------------------------------------------


def test_squared_relu_has_the_bits_of_autograd() -> None:
    x, towards = torch.randn(50, 40, requires_grad=True), torch.randn(50, 40)
    ours, plain = (
        values_and_gradients(compute, [x], towards) for compute in (squared_relu, lambda x: F.relu(x).square())
    )
    assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))


@pytest.mark.parametrize("shape", [(3, 1), (5, 8), (2, 7, 2, 3, 6)], ids=str)
def test_fast_rms_norm_is_torchs(shape: tuple[int, ...]) -> None:
    inputs, towards = [strided(*shape), torch.randn(shape[-1], requires_grad=True)], torch.randn(shape)
    ours, theirs = (
        values_and_gradients(lambda x, weight, norm=chosen.rms_norm: norm(x, weight), inputs, towards)
        for chosen in (CPU, TORCH)
    )
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_rope_is_the_plain_formula() -> None:
    """Values and gradients agree. The compiler gets the plain formula."""
    x, cos_sin, towards = strided(2, 5, 3, 8), rope_cos_sin(3, 8), torch.randn(2, 5, 3, 8)
    ours = values_and_gradients(apply_rope, [x, cos_sin], towards)
    theirs = values_and_gradients(plain_rope, [x, cos_sin], towards)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


def plain_rope(x: Tensor, cos_sin: Tensor) -> Tensor:
    pairs = torch.complex(*x.chunk(2, dim=-1)) * torch.complex(*cos_sin)
    return torch.cat((pairs.real, pairs.imag), dim=-1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_norm_and_rope_keep_their_dtype_and_compute_in_float32_at_least(dtype: torch.dtype) -> None:
    """bfloat16 holds no position above 256 exactly, so RoPE must not multiply in it."""
    x, cos_sin, gains = torch.randn(2, 1000, 8, dtype=dtype), rope_cos_sin(1000, 8), torch.randn(8)
    rounding = 2**-8 if dtype == torch.bfloat16 else 1e-12
    for ours, exact in (
        (CPU.rms_norm(x, gains), TORCH.rms_norm(x.double(), gains)),
        (TORCH.rms_norm(x, gains), TORCH.rms_norm(x.double(), gains.to(dtype))),
        (apply_rope(x, cos_sin), plain_rope(x.double(), cos_sin.double())),
    ):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), exact, atol=1e-3 * rounding, rtol=rounding)


# --- in a model --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_model_gives_the_same_with_all(family: str) -> None:
    model, ids, found = random_model(family, context=2 * BLOCK), some_ids(2, 2 * BLOCK), []
    for chosen in KERNELS.values():
        use_kernels(model, chosen)
        logits = model(ids)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        found.append([logits.detach(), *torch.autograd.grad(loss, list(model.parameters()))])
    for reference, *others in zip(*found, strict=True):
        for other in others:
            torch.testing.assert_close(other, reference, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("family", "chosen"), [("modern", CPU), ("classic", CPU), ("modern", TORCH)])
def test_a_second_derivative_is_refused(family: str, chosen: Kernels) -> None:
    """Autograd would treat the saved tensors as constants. Squared ReLU is the same in TORCH."""
    model, ids = untrained_model(family), some_ids(2, 9)
    use_kernels(model, chosen)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    with pytest.raises(RuntimeError, match="do not support double backward"):
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)


@pytest.mark.parametrize(
    ("chosen", "dtype"),
    [(CPU, torch.float32), (CPU, torch.bfloat16), (TORCH, torch.float32), (TORCH, torch.bfloat16)],
)
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_training_sees_no_later_token(family: str, chosen: Kernels, dtype: torch.dtype) -> None:
    model = random_model(family, context=2 * BLOCK + 7).train()
    use_kernels(model, chosen)
    assert_causal(model, 2 * BLOCK + 7, dtype)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # raised by the compiler
@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
def test_a_compiled_model_sees_no_later_token() -> None:
    model = random_model("modern", n_layer=1, context=2 * BLOCK + 7).train()
    assert_causal(torch.compile(model), 2 * BLOCK + 7, torch.bfloat16)


def assert_causal(compute: Callable[[Tensor], Tensor], context: int, dtype: torch.dtype) -> None:
    """Assert that later tokens change no bit of the logits, in any block of queries, with gradients enabled."""

    def logits(ids: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype, enabled=dtype is torch.bfloat16):
            return compute(ids).detach()

    ids = torch.randint(11, (2, context))
    before = logits(ids)
    assert before.dtype is dtype
    for at in (1, BLOCK, context - 1):
        changed = ids.clone()
        changed[:, at:] = (ids[:, at:] + 1) % 11
        after = logits(changed)
        assert torch.equal(before[:, :at], after[:, :at])
        assert not torch.equal(before[:, at:], after[:, at:])
