"""What a model computes for one text: scores, attention weights, what each head writes, the residual stream.

The model is not changed and has no flag for it. While it computes as always, its attention is listened to where it
takes queries, keys and values (`Kernels.sdpa`), and its blocks by hooks. From the same queries and keys the explicit
twin (`model.attention_weights`) gives the weights that the fast path never stores, and each time the two are compared.

Letters in shapes: T time (queries), S keys, H heads, D head size, C width, L layers, V vocabulary.
"""

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from minigpt.errors import UserError
from minigpt.model.gpt import GPT, Attention, attention_weights, causal_mask, eval_mode
from minigpt.model.kernels import SDPA, best_for
from minigpt.text.tokenizer import Ids

AGREEMENT = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""How far the fast path and the explicit one may lie apart, as a share of the largest value that a head attends to."""


@dataclass(frozen=True)
class Extraction:
    """All that happened inside for one text of T tokens, in float32 on the CPU."""

    ids: Tensor
    """The tokens, (T,)."""
    q: Tensor
    """Queries as they meet the keys, normalised and rotated where the model does that, (L, H, T, D)."""
    k: Tensor
    """Keys, (L, H, T, D)."""
    v: Tensor
    """Values, (L, H, T, D)."""
    weights: Tensor
    """Attention weights of query t over key s, (L, H, T, S): rows sum to 1, the future has 0."""
    stream: Tensor
    """The residual stream before the first block and after each, (L + 1, T, C)."""
    logits: Tensor
    """Logits of the next token at each position, (T, V)."""
    written: Tensor
    """Length of what a head would write into the stream for weight 1 on a key, |v_s W_O|, (L, H, S)."""
    disagreement: float
    """How far the outputs of a head by the two paths lie apart at most, as a share of its largest value."""

    @property
    def heads(self) -> Tensor:
        """What each head found: the values weighted by attention, (L, H, T, D)."""
        return self.weights @ self.v

    def scores(self, layer: int, head: int) -> dict[str, Tensor]:
        """Return the stages of one head, (T, S) each: `raw` q k^T, `scaled` by 1/sqrt(D), `masked`, and `softmax`."""
        q, k = self.q[layer, head], self.k[layer, head]
        raw = q @ k.T
        scaled = raw / math.sqrt(q.size(-1))
        masked = scaled.masked_fill(~causal_mask(len(q), len(k), q.device), -math.inf)
        return {"raw": raw, "scaled": scaled, "masked": masked, "softmax": masked.softmax(-1)}


@torch.no_grad()
def extract(model: GPT, ids: Ids) -> Extraction:
    """Return what `model` computes for the tokens `ids` (T,), as many as its context at most, dropout off.

    Raises UserError where the explicit path does not agree with the fast one: then what would be shown is not what
    the model does.
    """
    assert 0 < len(ids) <= model.config.context, f"{len(ids)} tokens, the context is {model.config.context}"
    tokens = torch.from_numpy(np.asarray(ids).astype(np.int64))  # (T,)
    seen: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def listen(layer: int, sdpa: SDPA) -> SDPA:
        def sdpa_and_keep(q: Tensor, k: Tensor, v: Tensor, dropout: float, mask: Tensor | None = None) -> Tensor:
            y = sdpa(q, k, v, dropout, mask)  # (1, H, T, D)
            seen.append((q[0], k[0], v[0], y[0]))
            return y

        return sdpa_and_keep

    with eval_mode(model), attending(model, listen), streaming(model) as stream:
        logits = model(tokens[None].to(model.token_embedding.weight.device))[0]  # (T, V)
    if not all(part.isfinite().all() for part in (*stream, logits)):
        raise UserError("the model's activations are not finite; choose an earlier one with --checkpoint")
    precision = seen[0][3].dtype
    q, k, v, y = (torch.stack(parts).float().cpu() for parts in zip(*seen, strict=True))  # (L, H, T, D) each
    weights = attention_weights(q, k)  # (L, H, T, S)
    apart = (weights @ v - y).abs().amax((-1, -2)) / v.abs().amax((-1, -2)).clamp_min(1e-12)  # (L, H)
    disagreement = apart.max().item()
    if not disagreement <= AGREEMENT[precision]:
        layer, head = divmod(int(apart.argmax()), apart.size(1))
        raise UserError(
            f"the attention shown would not be the model's: in head {layer}.{head} its fast path differs from the "
            f"explicit one by {disagreement:.1e} of the largest value"
        )
    return Extraction(
        ids=tokens,
        q=q, k=k, v=v, weights=weights,
        stream=torch.cat(stream).float().cpu(),
        logits=logits.float().cpu(),
        written=written_lengths(model, v),
        disagreement=disagreement,
    )  # fmt: skip


@contextmanager
def streaming(model: GPT) -> Iterator[list[Tensor]]:
    """Within the block, collect the residual stream before the first block of `model` and after each, (B, T, C)."""
    stream: list[Tensor] = []
    hooks = [
        model.blocks[0].register_forward_pre_hook(lambda block, given: stream.append(given[0])),
        *(block.register_forward_hook(lambda block, given, x: stream.append(x)) for block in model.blocks),
    ]
    try:
        yield stream
    finally:
        for hook in hooks:
            hook.remove()


def written_lengths(model: GPT, v: Tensor) -> Tensor:
    """Return |v_s W_O[h]|, (L, H, S), for values v (L, H, S, D): how much attention to a key would write at weight 1.

    A weight says how much a head looks, not what it does with what it sees (Kobayashi et al. 2020, section 3).
    """
    return torch.stack([(v[layer] @ head_outputs(model, layer)).norm(dim=-1) for layer in range(len(v))])


def head_outputs(model: GPT, layer: int) -> Tensor:
    """Return the rows of W_O that belong to each head, (H, D, C): concat(heads) W_O is the sum of head W_O[head]."""
    weight = attentions(model)[layer].proj.weight.detach().float().cpu()  # (C, H D)
    return weight.T.reshape(model.config.n_head, -1, model.config.n_embd)


@contextmanager
def attending(model: GPT, change: Callable[[int, SDPA], SDPA]) -> Iterator[None]:
    """Within the block, let layer l of `model` attend by `change(l, its own way)`; then put its own way back."""
    layers = attentions(model)
    before = [attention.kernels for attention in layers]
    device = model.token_embedding.weight.device
    try:
        for layer, attention in enumerate(layers):
            own = attention.kernels or best_for(device)
            attention.kernels = replace(own, sdpa=change(layer, own.sdpa))
        yield
    finally:
        for attention, kernels in zip(layers, before, strict=True):
            attention.kernels = kernels


def attentions(model: GPT) -> list[Attention]:
    """Return the attention of each layer."""
    return [module for module in model.modules() if isinstance(module, Attention)]


@contextmanager
def without_heads(model: GPT, heads: Collection[tuple[int, int]]) -> Iterator[None]:
    """Within the block, let these heads, (layer, head) from 0, write nothing: their outputs are zero."""

    def silence(layer: int, sdpa: SDPA) -> SDPA:
        silent = [head for at, head in heads if at == layer]

        def sdpa_without(q: Tensor, k: Tensor, v: Tensor, dropout: float, mask: Tensor | None = None) -> Tensor:
            y = sdpa(q, k, v, dropout, mask).clone()  # (B, H, T, D)
            y[:, silent] = 0
            return y

        return sdpa_without if silent else sdpa

    with attending(model, silence):
        yield


def logit_lens(model: GPT, stream: Tensor) -> Tensor:
    """Return the logits (..., V) that the model would give, were each point of `stream` (..., C) its last.

    nostalgebraist 2020, "interpreting GPT: the logit lens".
    """
    device = model.token_embedding.weight.device
    with torch.no_grad(), eval_mode(model):
        return model.unembed(stream.to(device)).float().cpu()
