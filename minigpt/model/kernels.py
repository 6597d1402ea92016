"""For a CPU, faster versions of what PyTorch computes slowly there: attention, dropout, products, norms, rotations.

Their results agree with torch's up to rounding; dropout's in distribution, its probability a multiple of 1/256.
"""

import ctypes
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

QUERIES = 64
"""Queries whose scores are computed at once. Each such block sees its prefix of the keys and no more."""
LARGE_PRODUCT = 400_000
"""Rows times weights from which a product of oneDNN's is worth its start."""


def _is_intel() -> bool:
    table = Path("/proc/cpuinfo")
    vendor = table.read_text(encoding="utf-8", errors="replace") if table.is_file() else platform.processor()
    return "GenuineIntel" in vendor or sys.platform == "darwin"  # no Mac with these instructions has another


HAS_ONEDNN = torch.backends.mkldnn.is_available() and platform.machine().lower() in ("x86_64", "amd64")
"""Whether torch can send a product in float32 to oneDNN here."""


def _prefers_onednn() -> bool:
    return HAS_ONEDNN and not _is_intel() and torch.backends.cpu.get_cpu_capability() == "AVX512"


PREFERS_ONEDNN = _prefers_onednn()
"""Whether large products in float32 go to oneDNN: where MKL leaves AVX-512 unused, on AMD (docs/benchmarks.md)."""
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h


class SDPA(Protocol):
    """Attention of q (B, H, T, D), the last of S positions, to k, v (B, H, S, D), as (B, H, T, D).

    Its weights are dropped out with a probability. It is causal; or a mask, where there is one, is added to the scores:
    (B, 1, T, S), minus infinity where a query must not see a key.
    """

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, dropout: float, mask: Tensor | None = None, /) -> Tensor:
        """Return what each query attends to."""
        ...


@dataclass(frozen=True)
class Kernels:
    """How a model computes what there is more than one way to compute."""

    sdpa: SDPA
    """Scaled dot-product attention."""
    dropout: Callable[[Tensor, float], Tensor]
    """Zero elements with this probability, and scale the others up."""
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    """x weight^T + bias of x (..., in), weight (out, in) and bias (out), (..., out)."""
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    """x (..., D) over the root of the mean of its squares and this epsilon, times the weight (D)."""
    rope: Callable[[Tensor, Tensor], Tensor]
    """Each pair (x[i], x[i + D/2]) of x (..., D) rotated by its turn: cosines and sines (2, ..., D / 2)."""


class _NoWayBack:
    """Stands for the context of a torch.autograd.Function where nothing is kept for a backward pass."""

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        pass


def _applied(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    """Apply `function`. Where no gradient is wanted, skip autograd's bookkeeping, which takes longer than a norm."""
    if torch.is_grad_enabled():
        out: Tensor = function.apply(*inputs)
    else:
        out = function.forward(_NoWayBack(), *inputs)
    return out


def sdpa_fused(q: Tensor, k: Tensor, v: Tensor, dropout: float, mask: Tensor | None = None) -> Tensor:
    """Return attention by torch's fused kernel, causal or by the mask."""
    T, S = q.size(2), k.size(2)
    if mask is None and 1 < T < S:
        mask = _last_rows(T, S, q.dtype, q.device)
    causal = mask is None and T == S
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)


@lru_cache(maxsize=1)  # all layers of a pass want the same
def _last_rows(T: int, S: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.full((T, S), float("-inf"), dtype=dtype, device=device).triu(1 + S - T)


def sdpa_in_blocks(q: Tensor, k: Tensor, v: Tensor, dropout: float, mask: Tensor | None = None) -> Tensor:
    """Return causal attention over blocks of queries, as plain matrix products.

    torch's fused kernel keeps no weights and computes them again in its backward pass, which on a CPU
    takes several times as long as reading them back. Here half of the weights are kept, those of the past. Queries
    after keys of a cache are never trained on, and left to that kernel.
    """
    B, H, T, D = q.shape
    if k.size(2) > T or mask is not None:
        return sdpa_fused(q, k, v, dropout, mask)
    rows = [x.reshape(B * H, T, D) for x in (q, k, v)]
    out = _applied(_BlockedAttention, *rows, dropout)
    return out.view(B, H, T, D)


def _blocks(length: int) -> list[tuple[int, int]]:
    return [(start, min(start + QUERIES, length)) for start in range(0, length, QUERIES)]


def _once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse a second derivative, which would take what `backward` computes from for constant.

    torch's own once_differentiable does not notice where the gradients of some tensors alone are asked for.
    """

    @wraps(backward)
    def checked(ctx: Any, *gradients: Tensor) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError("the kernels of minigpt have no second derivatives (create_graph=True)")
        return backward(ctx, *gradients)

    return checked


class _BlockedAttention(torch.autograd.Function):
    """Scaled dot-product attention under the causal mask, for q, k, v of shape (N, T, D)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        outputs, saved, scale = [], [], q.size(-1) ** -0.5
        with torch.autocast(q.device.type, enabled=False):  # which would compute the softmax in float32
            for start, end in _blocks(q.size(1)):
                mask = torch.full((end - start, end), float("-inf"), dtype=q.dtype, device=q.device).triu(start + 1)
                scores = torch.baddbmm(mask, q[:, start:end], k[:, :end].mT, alpha=scale)  # (N, block, end)
                weights = scores.softmax(-1)
                keep = dropout_mask(weights, dropout) if dropout else None
                outputs.append(torch.bmm(weights if keep is None else weights * keep, v[:, :end]))  # (N, block, D)
                if not isinstance(ctx, _NoWayBack):
                    saved += [weights, keep]
        ctx.save_for_backward(q, k, v, *saved)
        return torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]

    @staticmethod
    @_once
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *saved = ctx.saved_tensors
        scale, dq_blocks = q.size(-1) ** -0.5, []
        dk = dv = None
        # From the last block on, which sees all keys, so that nothing needs to begin as zeros.
        for (start, end), weights, keep in reversed(
            list(zip(_blocks(q.size(1)), saved[::2], saved[1::2], strict=True))
        ):
            dout = gradients[0][:, start:end]
            dweights = torch.bmm(dout, v[:, :end].mT)  # (N, block, end)
            dropped = weights
            if keep is not None:
                dropped, dweights = weights * keep, dweights.mul_(keep)
            dscores = torch._softmax_backward_data(dweights, weights, -1, weights.dtype)  # (N, block, end)
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


def drop_by_bytes(x: Tensor, probability: float) -> Tensor:
    """Return `x` with elements zeroed at a multiple of 1/256 near `probability`, and the others scaled up.

    torch draws a random number for each element, one after the other; here one serves for eight.
    """
    return x * dropout_mask(x, probability)


def dropout_mask(x: Tensor, probability: float) -> Tensor:
    """Return zeros, at a multiple of 1/256 near `probability`, and what scales up the others, in the shape of `x`."""
    dropped = min(255, max(1, round(256 * probability)))
    drawn = torch.randint(-(2**63), 2**63 - 1, ((x.numel() + 7) // 8,), device=x.device)
    kept = drawn.view(torch.uint8)[: x.numel()].view(x.shape) >= dropped
    return kept.to(x.dtype) * (256 / (256 - dropped))


class _SquaredReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = x.relu()
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    @_once
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        positive: Tensor = ctx.saved_tensors[0]
        return (gradients[0] * positive).mul_(2)


def squared_relu(x: Tensor) -> Tensor:
    """Return max(x, 0) squared. Value and gradient are those of relu(x).square(), bit for bit, in fewer passes."""
    return _applied(_SquaredReLU, x)


def linear_on_cpu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x weight^T + bias, for x (..., in) and weight (out, in).

    torch takes oneDNN in bfloat16, but MKL in float32, whose products last up to twice as long on AMD's with AVX-512.
    """
    is_large = PREFERS_ONEDNN and x.numel() * weight.size(0) >= LARGE_PRODUCT
    if is_large and x.dtype == torch.float32 and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu"):
        return _applied(_Linear, x, weight, bias)
    return F.linear(x, weight, bias)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @_once
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dy = gradients[0]
        outputs, inputs = dy.reshape(-1, dy.size(-1)), x.reshape(-1, x.size(-1))  # (N, out), (N, in)
        is_tall = outputs.size(1) > inputs.size(1)  # the longer side second, which oneDNN does better
        dweight = _product(inputs.mT, outputs.mT).mT if is_tall else _product(outputs.mT, inputs.mT)  # (out, in)
        return _product(dy, weight.mT), dweight, outputs.sum(0) if ctx.needs_input_grad[2] else None


def rms_norm_by_torch(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x (..., D) over its root mean square (Zhang and Sennrich 2019), times the weight in x's precision.

    Were the two of different precisions, torch would take several passes.
    """
    return F.rms_norm(x, (x.size(-1),), weight.to(x.dtype), eps)


def rms_norm_by_hand(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return what rms_norm_by_torch does, but the weight keeps its own precision.

    On a CPU torch's is a chain of small operations, each with a backward pass of its own.
    """
    if torch.compiler.is_compiling():  # which fuses them
        return rms_norm_by_torch(x, weight, eps)
    return _applied(_RMSNorm, x, weight, eps)


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
    @_once
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, weight = ctx.saved_tensors
        dy, size = _at_least_float32(gradients[0]), x.size(-1)
        # Layer norm's, one pass in torch, at a mean of zero. It also takes away the gradient's mean, added back below.
        zeros = torch.zeros_like(scale)
        wanted = [True, True, False]
        dx, dweight, _ = torch.ops.aten.native_layer_norm_backward(dy, x, [size], zeros, scale, weight, None, wanted)
        mean = (dy @ weight).div_(size).unsqueeze(-1)
        dx = dx.addcmul_(mean, scale).to(ctx.dtype)
        return dx, dweight, None


def rope_by_torch(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Return x with its pairs rotated by their cos_sin (Su et al. 2021, section 3.4.2), in x's precision."""
    cos, sin = cos_sin  # in float32, for bfloat16 cannot tell far positions apart
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


def rope_by_hand(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Return what rope_by_torch does, in fewer passes. The way back is to turn the other way."""
    if torch.compiler.is_compiling():
        return rope_by_torch(x, cos_sin)
    return _applied(_Rope, x, *cos_sin)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    @_once
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _turned(gradients[0], cos, -sin), None, None


def _at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    full = _at_least_float32(x)
    y = torch.empty(x.shape, dtype=full.dtype, device=x.device)
    (a, b), (first, second) = full.chunk(2, dim=-1), y.chunk(2, dim=-1)
    torch.mul(a, cos, out=first).addcmul_(b, sin, value=-1)
    torch.mul(a, sin, out=second).addcmul_(b, cos)
    return y.to(x.dtype)


TORCH = Kernels(sdpa_fused, F.dropout, F.linear, rms_norm_by_torch, rope_by_torch)
"""As PyTorch ships them. Squared ReLU, which gives the same bits by hand, is no choice."""
CPU = Kernels(sdpa_in_blocks, drop_by_bytes, linear_on_cpu, rms_norm_by_hand, rope_by_hand)
"""In the ways of this file."""


def best_for(device: torch.device) -> Kernels:
    """Return the faster kernels on this device: on a GPU those of PyTorch."""
    return CPU if device.type == "cpu" else TORCH


def store_by_columns(model: nn.Module) -> None:
    """Lay out each weight matrix (out, in) by columns, in which products with few rows read it faster."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = module.weight.data.t().contiguous().t()


def keep_freed_memory() -> None:
    """Let the C library keep what a step frees for the next one, where it is glibc.

    Else large tensors go back to the system each time, which has to fill their pages with zeros anew.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None and hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, -1)
