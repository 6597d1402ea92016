"""Operations with two implementations: PyTorch's own, and a faster one for a CPU.

A layer calls `self.kernels.sdpa(...)`, `self.kernels.rms_norm(...)` and so on. `TORCH` holds PyTorch's implementations,
`CPU` the faster ones. `DEFAULT` chooses by the device of the tensors; `GPT.use_kernels` sets another choice.

Both agree up to rounding. Dropout agrees in distribution: `CPU` rounds its probability to a multiple of 1/256.

Letters in shapes: B batch, H heads, T time, D head size, N = B H.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 64
"""Queries per block of `sdpa_blocked`."""

SDPA = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""Causal attention of q, k and v (B, H, T, D) with a dropout probability for its weights, to (B, H, T, D)."""


@dataclass(frozen=True)
class Kernels:
    """One implementation of each operation."""

    sdpa: SDPA
    """Scaled dot-product attention under the causal mask."""
    dropout: Callable[[Tensor, float], Tensor]
    """Zero elements with a probability and scale up the others."""
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    """Divide x (..., D) by its root mean square, with an epsilon, and multiply by the weight (D)."""
    rope: Callable[[Tensor, Tensor], Tensor]
    """Rotate each pair (x[i], x[i + D/2]) of x (..., D) by its angle; cos_sin is (2, ..., D/2)."""


def sdpa_fused(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """Return attention by PyTorch's fused kernel."""
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return RMSNorm (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467) in the precision of x."""
    return F.rms_norm(x, (x.size(-1),), weight.to(x.dtype), eps)  # mixed precisions would take several passes


def apply_rope(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Return x with rotary positions (Su et al. 2021, section 3.4.2, https://arxiv.org/abs/2104.09864)."""
    cos, sin = cos_sin  # float32, because bfloat16 cannot tell distant positions apart
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


TORCH = Kernels(sdpa_fused, F.dropout, rms_norm, apply_rope)


def _apply(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    y: Tensor = function.apply(*inputs)
    return y


def no_double_backward(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Raise on double backward: these kernels treat saved tensors as constants.

    torch's `once_differentiable` misses this if only some gradients are asked for.
    """

    @wraps(backward)
    def checked(ctx: Any, gradient: Tensor) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError("minigpt's kernels have no second derivatives (create_graph=True)")
        return backward(ctx, gradient)

    return checked


def sdpa_blocked(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """Return attention, one block of queries at a time, as plain matrix products.

    The fused kernel recomputes all weights in its backward pass. On a CPU, storing them is several times faster.
    Each block sees only its prefix of the keys, so half of the weights are never computed.
    """
    B, H, T, D = q.shape
    out = _apply(_BlockedAttention, *(x.reshape(B * H, T, D) for x in (q, k, v)), dropout)  # (N, T, D)
    return out.view(B, H, T, D)


class _BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        outputs, saved, scale = [], [], q.size(-1) ** -0.5
        with torch.autocast(q.device.type, enabled=False):  # autocast would compute the softmax in float32
            for start in range(0, q.size(1), BLOCK):
                end = min(start + BLOCK, q.size(1))
                mask = torch.full((end - start, end), float("-inf"), dtype=q.dtype, device=q.device).triu(start + 1)
                scores = torch.baddbmm(mask, q[:, start:end], k[:, :end].mT, alpha=scale)  # (N, block, end)
                weights = scores.softmax(-1)
                keep = dropout_mask(weights, dropout) if dropout else None
                outputs.append(torch.bmm(weights if keep is None else weights * keep, v[:, :end]))  # (N, block, D)
                if any(ctx.needs_input_grad):  # otherwise free the weights of each block at once
                    saved += [weights, keep]
        ctx.save_for_backward(q, k, v, *saved)
        return torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]

    @staticmethod
    @no_double_backward
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *saved = ctx.saved_tensors
        scale, dq_blocks = q.size(-1) ** -0.5, []
        dk = dv = None
        # Start at the last block: it sees all keys, so dk and dv need no zeros to add to.
        for start in reversed(range(0, q.size(1), BLOCK)):
            end, keep, weights = min(start + BLOCK, q.size(1)), saved.pop(), saved.pop()
            dout = dy[:, start:end]
            dweights = torch.bmm(dout, v[:, :end].mT)  # (N, block, end)
            dropped = weights
            if keep is not None:
                dropped, dweights = weights * keep, dweights.mul_(keep)
            dscores = softmax_backward(dweights, weights)  # (N, block, end)
            dq_blocks.append(torch.baddbmm(q[:, start:end], dscores, k[:, :end], beta=0, alpha=scale))  # (N, block, D)
            dv_block = torch.bmm(dropped.mT, dout)  # (N, end, D)
            dk_block = torch.baddbmm(k[:, :end], dscores.mT, q[:, start:end], beta=0, alpha=scale)  # (N, end, D)
            if dk is None or dv is None:
                dk, dv = dk_block, dv_block
            else:
                dk[:, :end] += dk_block
                dv[:, :end] += dv_block
        dq = torch.cat(dq_blocks[::-1], 1) if len(dq_blocks) > 1 else dq_blocks[0]
        return dq, dk, dv, None


def softmax_backward(gradient: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of the input of y = softmax(input), over the last dimension."""
    if hasattr(torch, "_softmax_backward_data"):  # private, but one pass instead of three
        return torch._softmax_backward_data(gradient, y, -1, y.dtype)
    return y * (gradient - (gradient * y).sum(-1, keepdim=True))


def byte_dropout(x: Tensor, probability: float) -> Tensor:
    """Return x with elements zeroed at random and the others scaled up."""
    return x * dropout_mask(x, probability)


def dropout_mask(x: Tensor, probability: float) -> Tensor:
    """Return a mask in the shape of x: zero with a probability, elsewhere the factor that scales up the rest.

    PyTorch draws a random number for each element. This draws one for eight elements and uses a byte for each.
    """
    dropped = min(255, max(1, round(256 * probability)))
    drawn = torch.randint(-(2**63), 2**63 - 1, ((x.numel() + 7) // 8,), device=x.device)
    kept = drawn.view(torch.uint8)[: x.numel()].view(x.shape) >= dropped  # a byte per element
    return kept.to(x.dtype) * (256 / (256 - dropped))


def squared_relu(x: Tensor) -> Tensor:
    """Return max(x, 0)^2 with the bits of `relu(x).square()`, value and gradient, in fewer passes over memory."""
    return _apply(_SquaredReLU, x)


class _SquaredReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = x.relu()
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    @no_double_backward
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        positive: Tensor = ctx.saved_tensors[0]
        return (dy * positive).mul_(2)


def rms_norm_fast(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return `rms_norm` with the weight in its own precision.

    On a CPU PyTorch computes RMSNorm as a chain of small operations, each with its own backward pass.
    """
    if torch.compiler.is_compiling():  # the compiler fuses the chain
        return rms_norm(x, weight, eps)
    return _apply(_RMSNorm, x, weight, eps)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        full = _at_least_float32(x)
        norm = torch.linalg.vector_norm(full, dim=-1, keepdim=True)
        scale = norm.square_().div_(x.size(-1)).add_(eps).rsqrt_()  # (..., 1)
        ctx.save_for_backward(full, scale, weight)
        ctx.dtype = x.dtype
        y: Tensor = full * scale
        return y.mul_(weight).to(x.dtype)

    @staticmethod
    @no_double_backward
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx, dweight = rms_norm_backward(_at_least_float32(dy), *ctx.saved_tensors)
        return dx.to(ctx.dtype), dweight, None


def rms_norm_backward(dy: Tensor, x: Tensor, scale: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x (..., D) and the weight (D) of y = x scale weight, where scale is 1 / rms(x)."""
    D = x.size(-1)
    if not hasattr(torch.ops.aten, "native_layer_norm_backward"):
        normed, dnormed = x * scale, dy * weight
        dx = scale * (dnormed - normed * (dnormed * normed).mean(-1, keepdim=True))
        return dx, (dy * normed).flatten(0, -2).sum(0)
    # LayerNorm with a mean of zero has the same gradient, except that it subtracts the gradient's mean. One fused pass.
    zeros, wanted = torch.zeros_like(scale), [True, True, False]
    dx, dweight, _ = torch.ops.aten.native_layer_norm_backward(dy, x, [D], zeros, scale, weight, None, wanted)
    mean = (dy @ weight).div_(D).unsqueeze(-1)
    return dx.addcmul_(mean, scale), dweight


def apply_rope_fast(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Return `apply_rope` in fewer passes over memory. The backward pass rotates by the negative angle."""
    if torch.compiler.is_compiling():
        return apply_rope(x, cos_sin)
    return _apply(_Rope, x, *cos_sin)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin)

    @staticmethod
    @no_double_backward
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _rotate(dy, cos, -sin), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    full = _at_least_float32(x)
    y = torch.empty(x.shape, dtype=full.dtype, device=x.device)
    (a, b), (first, second) = full.chunk(2, dim=-1), y.chunk(2, dim=-1)
    torch.mul(a, cos, out=first).addcmul_(b, sin, value=-1)
    torch.mul(a, sin, out=second).addcmul_(b, cos)
    return y.to(x.dtype)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


CPU = Kernels(sdpa_blocked, byte_dropout, rms_norm_fast, apply_rope_fast)


def _by_device(name: str) -> Callable[..., Tensor]:
    def kernel(x: Tensor, *arguments: Any) -> Any:
        return getattr(CPU if x.device.type == "cpu" else TORCH, name)(x, *arguments)

    return kernel


DEFAULT = Kernels(*(_by_device(field.name) for field in fields(Kernels)))
KERNELS = {"torch": TORCH, "cpu": CPU}
"""The values of `runtime.kernels`."""
