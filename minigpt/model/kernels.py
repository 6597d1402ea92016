"""Operations with two implementations: PyTorch's implementation, and a faster one for a CPU.

A layer calls `self.kernels.rms_norm(...)` and so on. `TORCH` holds PyTorch's implementations, `CPU` the faster ones.
`use_kernels` (gpt.py) sets those of a `Runtime`. `rms_norm_fast` and `apply_rope` have plain forms for torch.compile,
which fuses operations itself.

The two implementations agree up to rounding, except for dropout: `CPU` rounds its probability to a multiple of 1/256.

Letters in shapes: B batch, H heads, T positions, D head size, N = B H.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.config.shapes import NORM_EPS

BLOCK = 64
"""Queries per block of `sdpa_blocked`."""
SDPA = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""Causal attention of q, k and v (B, H, T, D) with a dropout probability for its weights, to (B, H, T, D)."""


@dataclass(frozen=True)
class Kernels:
    """One implementation of each operation."""

    sdpa: SDPA | None
    """Scaled dot-product attention under the causal mask. None means `Attention.attend`."""
    dropout: Callable[[Tensor, float], Tensor]
    """Zero elements with a probability, and scale up the other elements."""
    rms_norm: Callable[[Tensor, Tensor], Tensor]
    """Divide x (..., D) by its root mean square and multiply by the weight (D)."""


def sdpa_fused(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """Return attention by PyTorch's fused kernel."""
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return RMSNorm (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467) in the precision of x."""
    weight = weight.to(x.dtype)  # mixed precisions would take several passes
    return F.rms_norm(x, (x.size(-1),), weight, NORM_EPS["rmsnorm"])


TORCH = Kernels(sdpa_fused, F.dropout, rms_norm)


def _apply(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    y: Tensor = function.apply(*inputs)
    return y


def refuse_double_backward() -> None:
    """Raise on double backward: the backward passes below treat saved tensors as constants.

    torch's `once_differentiable` does not catch this if only some gradients are requested.
    """
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError("minigpt's kernels do not support double backward (create_graph=True)")


def sdpa_blocked(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """Return attention, one block of queries at a time, as plain matrix multiplications.

    The fused kernel recomputes all weights in its backward pass. On a CPU, storing them is several times faster.
    Each block sees only its prefix of the keys, so up to half of the weights are not computed.
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
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        q, k, v, *saved = ctx.saved_tensors
        scale, dq_blocks = q.size(-1) ** -0.5, []
        dk = dv = None
        for start in reversed(range(0, q.size(1), BLOCK)):  # the last block sees all keys: no zeros to start from
            end, keep, weights = min(start + BLOCK, q.size(1)), saved.pop(), saved.pop()
            dout = dy[:, start:end]
            dropped, dweights = weights, torch.bmm(dout, v[:, :end].mT)  # (N, block, end)
            if keep is not None:
                dropped, dweights = weights * keep, dweights.mul_(keep)
            dscores = torch._softmax_backward_data(dweights, weights, -1, weights.dtype)  # one pass instead of three
            dq_blocks.append(torch.baddbmm(q[:, start:end], dscores, k[:, :end], beta=0, alpha=scale))
            dk_block = torch.baddbmm(k[:, :end], dscores.mT, q[:, start:end], beta=0, alpha=scale)
            dv_block = torch.bmm(dropped.mT, dout)
            if dk is None or dv is None:
                dk, dv = dk_block, dv_block
            else:
                dk[:, :end] += dk_block
                dv[:, :end] += dv_block
        return torch.cat(dq_blocks[::-1], 1), dk, dv, None


def byte_dropout(x: Tensor, probability: float) -> Tensor:
    """Return x with elements zeroed at random, and the other elements scaled up."""
    return x * dropout_mask(x, probability)


def dropout_mask(x: Tensor, probability: float) -> Tensor:
    """Return a mask in the shape of x: zero with `probability`, elsewhere the factor that scales up the rest.

    PyTorch draws a random number for each element. This function draws one for eight elements: a byte for each.
    """
    dropped = min(255, max(1, round(256 * probability)))
    drawn = torch.randint(-(2**63), 2**63 - 1, ((x.numel() + 7) // 8,), device=x.device)
    kept = drawn.view(torch.uint8)[: x.numel()].view(x.shape) >= dropped  # a byte per element
    return kept.to(x.dtype) * (256 / (256 - dropped))


def squared_relu(x: Tensor) -> Tensor:
    """Return max(x, 0)^2 in fewer passes over memory, bitwise identical to `relu(x).square()`."""
    return _apply(_SquaredReLU, x)


class _SquaredReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = x.relu()
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        refuse_double_backward()
        positive: Tensor = ctx.saved_tensors[0]
        return (dy * positive).mul_(2)


def rms_norm_fast(x: Tensor, weight: Tensor) -> Tensor:
    """Return `rms_norm`, computed in at least float32 unless compiled.

    On a CPU, PyTorch computes RMSNorm as a chain of small operations, each with its own backward pass.
    """
    if torch.compiler.is_compiling():  # the compiler fuses the chain
        return rms_norm(x, weight)
    return _apply(_RMSNorm, x, _at_least_float32(weight))


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        full = _at_least_float32(x)
        norm = torch.linalg.vector_norm(full, dim=-1, keepdim=True)
        scale = norm.square_().div_(x.size(-1)).add_(NORM_EPS["rmsnorm"]).rsqrt_()  # (..., 1)
        ctx.save_for_backward(full, scale, weight)
        ctx.dtype = x.dtype
        y: Tensor = full * scale
        return y.mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        x, scale, weight = ctx.saved_tensors
        D, full = x.size(-1), _at_least_float32(dy)
        # Given means of zero, LayerNorm's kernel gives this gradient in one pass, less a mean that is added below.
        zeros, wanted = torch.zeros_like(scale), [True, True, False]
        dx, dweight, _ = torch.ops.aten.native_layer_norm_backward(full, x, [D], zeros, scale, weight, None, wanted)
        mean = (full @ weight).div_(D).unsqueeze(-1)
        return dx.addcmul_(mean, scale).to(ctx.dtype), dweight


def apply_rope(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Rotate each pair (x[i], x[i + D/2]) of x (..., D) by its angle; cos_sin is (2, ..., D/2).

    This is RoPE, except that Su et al. 2021 pair neighbors (section 3.4.2, https://arxiv.org/abs/2104.09864).
    """
    if not torch.compiler.is_compiling():
        return _apply(_Rope, x, *cos_sin)
    cos, sin = cos_sin
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
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
    return x.float() if x.dtype == torch.bfloat16 else x


CPU = TORCH
if hasattr(torch, "_softmax_backward_data") and hasattr(torch.ops.aten, "native_layer_norm_backward"):  # not public
    CPU = Kernels(sdpa_blocked, byte_dropout, rms_norm_fast)

KERNELS = {"torch": TORCH, "cpu": CPU, "reference": replace(TORCH, sdpa=None)}
"""The values of `runtime.kernels`."""
