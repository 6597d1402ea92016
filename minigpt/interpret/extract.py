"""Record what a model computes for one text, such as its attention weights and its residual stream.

The model has no recording mode. A wrapper around each attention kernel captures queries, keys and values, and hooks
capture the residual stream. The reference implementation (`attention_weights`) then computes the weights, which the
kernel does not return. `extract` checks that the outputs of both implementations agree.

Letters in shapes: T queries, S keys, H heads, D head size, C width, L layers, V vocabulary.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from minigpt.errors import CheckpointError, UserError
from minigpt.model.gpt import GPT, Attention, attention_weights, eval_mode
from minigpt.model.kernels import SDPA
from minigpt.text.tokenizer import Ids

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Maximum difference of an output between kernel and reference, relative to the largest value of a head."""


@dataclass(frozen=True)
class Activations:
    """What a model computed for one text of T tokens, on the CPU. All but the ids are float32."""

    ids: Tensor
    """Token ids, (T,)."""
    q: Tensor
    """Queries after normalization and RoPE, (L, H, T, D)."""
    k: Tensor
    """Keys after normalization and RoPE, (L, H, T, D)."""
    v: Tensor
    """Values, (L, H, T, D)."""
    weights: Tensor
    """Attention weights, (L, H, T, S). Each row sums to 1; future keys have weight 0."""
    residual: Tensor
    """The residual stream before the first block and after each block, (L + 1, T, C)."""
    logits: Tensor
    """Next-token logits at each position, (T, V)."""


@torch.no_grad()
def extract(model: GPT, ids: Ids) -> Activations:
    """Run `model` on the tokens `ids` (T,) without dropout and return its activations.

    Raises:
        CheckpointError: The activations are not finite.
        UserError: Kernel and reference disagree, so the weights would not be those that the model uses.
    """
    assert 0 < len(ids) <= model.config.context, f"got {len(ids)} tokens, expected 1 to {model.config.context}"
    tokens = torch.from_numpy(np.asarray(ids).astype(np.int64))  # (T,)
    captured: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def capture(layer: int, sdpa: SDPA, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        y = sdpa(q, k, v, dropout)  # (1, H, T, D)
        captured.append((q[0], k[0], v[0], y[0]))
        return y

    residual: list[Tensor] = []  # (1, T, C) each
    reading = (*model.blocks, model.norm)
    hooks = [part.register_forward_pre_hook(lambda part, inputs: residual.append(inputs[0])) for part in reading]
    try:
        with eval_mode(model), patch_attention(model, capture):
            logits = model(tokens[None].to(model.token_embedding.weight.device))[0]  # (T, V)
    finally:
        for hook in hooks:
            hook.remove()
    if not all(part.isfinite().all() for part in (*residual, logits)):
        raise CheckpointError("the model's activations are not finite; an earlier checkpoint may work")
    dtype = captured[0][3].dtype
    q, k, v, y = (torch.stack(parts).float().cpu() for parts in zip(*captured, strict=True))  # (L, H, T, D) each
    weights = attention_weights(q, k)  # (L, H, T, S)
    errors = (weights @ v - y).abs().amax((-1, -2)) / v.abs().amax((-1, -2)).clamp_min(1e-12)  # (L, H)
    largest = errors.max().item()
    if not largest <= TOLERANCE[dtype]:
        layer, head = divmod(int(errors.argmax()), errors.size(1))
        raise UserError(
            f"cannot show the attention of layer {layer}, head {head}: the model's kernel and the reference "
            f"implementation differ by {largest:.1e}, relative to the largest value"
        )
    return Activations(tokens, q, k, v, weights, torch.cat(residual).float().cpu(), logits.float().cpu())


@contextmanager
def patch_attention(model: GPT, patch: Callable[..., Tensor]) -> Iterator[None]:
    """Replace each layer's attention kernel with `patch(layer, kernel, q, k, v, dropout)` in a `with` statement."""
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    before = [attention.attend for attention in layers]
    try:
        for layer, (attention, attend) in enumerate(zip(layers, before, strict=True)):
            attention.attend = partial(patch, layer, attend)  # type: ignore[method-assign]
        yield
    finally:
        for attention, attend in zip(layers, before, strict=True):
            attention.attend = attend  # type: ignore[method-assign]


@contextmanager
def ablate_heads(model: GPT, heads: Collection[tuple[int, int]]) -> Iterator[None]:
    """Zero the output of `heads` in a `with` statement. Each head is (layer, head), counted from 0."""

    def ablate(layer: int, sdpa: SDPA, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        y = sdpa(q, k, v, dropout).clone()  # (B, H, T, D)
        y[:, [head for at, head in heads if at == layer]] = 0
        return y

    with patch_attention(model, ablate):
        yield
