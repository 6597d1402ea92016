"""The network once more, without modules, for drawing text: only what is new is computed, the past is kept.

Shapes: B streams, T new tokens of each, S slots that attention looks at, H heads of D numbers, C = H D, V tokens in the
vocabulary, L layers.

A step of one token is some hundred small operations. In a small model calling modules and looking up their weights
takes as long as all of these, so here each is looked up once. What is computed is what model.py computes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.model.gpt import GPT, MLP, Block, RMSNorm

Map = Callable[[Tensor], Tensor]
"""From x (B, T, ...) to as many rows."""
Turns = tuple[Tensor, Tensor]
"""Cosines, and sines negative in their first half, by which the pairs of heads (B, T, 2, H, D) are turned."""


@dataclass
class KVCache:
    """Keys and values of the tokens seen so far, so that each new token costs one token's work.

    Shapes: k and v (L, B, H, slots, D). Of the slots of stream b the first `lengths[b]` are filled.
    """

    k: Tensor
    v: Tensor
    lengths: list[int]

    @staticmethod
    def empty(model: GPT, batch: int, slots: int | None = None) -> "KVCache":
        """Return a cache for `batch` streams, on the device and in the precision of `model`'s weights.

        It has a slot for each token of the context, or as many as `slots` says.
        """
        config, weight = model.config, model.token_embedding.weight
        shape = (config.n_layer, batch, config.n_head, slots or config.context, config.head_size)
        return KVCache(weight.new_empty(shape), weight.new_empty(shape), [0] * batch)

    def clear(self) -> None:
        """Fill all slots with zeros: streams read to the end of the longest, where a mask hides anything but NaN."""
        self.k.zero_()
        self.v.zero_()

    def stream(self, index: int) -> "KVCache":
        """Return the part of one stream, which shares its memory."""
        return KVCache(self.k[:, index : index + 1], self.v[:, index : index + 1], [self.lengths[index]])

    def spread(self, length: int) -> None:
        """Let all streams begin with the first `length` tokens of the first."""
        for kept in (self.k, self.v):
            kept[:, 1:, :, :length] = kept[:, :1, :, :length]  # and the rest takes no memory before its use
        self.lengths = [length] * len(self.lengths)

    def drop(self, index: int) -> None:
        """Forget a stream. The last one takes its place."""
        last = len(self.lengths) - 1
        if index < last:
            for kept in (self.k, self.v):
                kept[:, index] = kept[:, last]
            self.lengths[index] = self.lengths[last]
        self.k, self.v, self.lengths = self.k[:, :last], self.v[:, :last], self.lengths[:last]


def decoder(model: GPT) -> Callable[[Tensor, KVCache], Tensor]:
    """Return a function from ids (B, T), which continue the tokens of a cache, to `model`'s logits (B, T, V).

    It adds their keys and values to the cache, drops nothing out, and keeps nothing for a backward pass. Where streams
    have come to different places, each goes on from its own. It has the weights and kernels that the model has now:
    when they change, make another.
    """
    layers = [_layer(block) for block in model.blocks]

    @torch.no_grad()
    def forward(ids: Tensor, cache: KVCache) -> Tensor:
        place = _place(cache.lengths, ids.size(1), model.config.context, cache.k)
        x = model.token_embedding(ids)  # (B, T, C)
        if model.config.position == "learned":
            x = x + model.position_embedding.weight[place.positions]
        if model.positions is not None:
            x = x * math.sqrt(model.config.n_embd) + model.positions[place.positions]
        rotary = None if model.cos_sin is None else model.cos_sin[:, place.positions]
        cos_sin = None
        if rotary is not None:
            cos, sin = rotary[..., None, None, :].unbind()  # (T, 1, 1, D / 2), or (B, T, 1, 1, D / 2)
            cos_sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        for layer, keys, values in zip(layers, cache.k, cache.v, strict=True):
            x = layer(x, cos_sin, keys, values, place)
        cache.lengths = [length + ids.size(1) for length in cache.lengths]
        return model.unembed(x)  # (B, T, V)

    return forward


@dataclass(frozen=True)
class _Place:
    """Where T new tokens of each stream stand."""

    positions: slice | Tensor
    """In the context: one slice for all streams, or (B, T)."""
    end: int
    """The slot of the cache up to which attention looks, S."""
    slots: Tensor | None = None
    """In the cache (B, T), where streams have come to different places."""
    mask: Tensor | None = None
    """What is then added to the scores (B, 1, T, S)."""

    def fill(self, kept: Tensor, new: Tensor) -> Tensor:
        """Write new keys or values (B, H, T, D) to those of a layer; return all that there are now, (B, H, S, D)."""
        if self.slots is None:
            kept.narrow(2, self.end - new.size(2), new.size(2)).copy_(new)
        else:
            streams = torch.arange(len(self.slots), device=kept.device)[:, None]  # (B, 1)
            kept.transpose(1, 2)[streams, self.slots] = new.transpose(1, 2)
        return kept.narrow(2, 0, self.end)


def _place(lengths: list[int], T: int, context: int, like: Tensor) -> _Place:
    """Return where T tokens stand that follow `lengths` others, in a cache like `like`.

    A stream with fewer than T to read is given void ones after them; those beyond the context get its last position.
    """
    start, end = max(lengths), max(lengths) + T
    if min(lengths) == start:
        assert end <= context, f"{end} tokens exceed the context of {context}"
        mask = None
        if start and T > 1:
            mask = like.new_full((T, end), float("-inf")).triu(1 + start)
        return _Place(slice(start, end), end, mask=mask)
    slots = torch.tensor(lengths, device=like.device)[:, None] + torch.arange(T, device=like.device)  # (B, T)
    unseen = torch.arange(end, device=like.device) > slots[:, None, :, None]  # (B, 1, T, S)
    mask = like.new_zeros(unseen.shape).masked_fill_(unseen, float("-inf"))
    return _Place(slots.clamp(max=context - 1), end, slots, mask)


def _layer(block: nn.Module) -> Callable[[Tensor, Turns | None, Tensor, Tensor, _Place], Tensor]:
    assert isinstance(block, Block)
    attention = block.attention
    n_head = attention.n_head
    has_norm = isinstance(attention.qk_norm, RMSNorm)
    norm1, norm2, qk_norm = _norm(block.norm1), _norm(block.norm2), _norm(attention.qk_norm)
    qkv, proj, mlp = _linear(attention.qkv), _linear(attention.proj), _mlp(block.mlp)

    def forward(x: Tensor, cos_sin: Turns | None, keys: Tensor, values: Tensor, place: _Place) -> Tensor:
        B, T, C = x.shape
        heads = qkv(norm1(x)).view(B, T, 3, n_head, C // n_head)
        q, k, v = heads.transpose(1, 3).unbind(2)  # (B, H, T, D) each
        if has_norm or cos_sin is not None:
            qk = qk_norm(heads.narrow(2, 0, 2))  # (B, T, 2, H, D), in one piece
            q, k = (qk if cos_sin is None else _rotated(qk, *cos_sin)).transpose(1, 3).unbind(2)
        k, v, mask = place.fill(keys, k), place.fill(values, v), place.mask  # (B, H, S, D)
        is_causal = mask is None and 1 < T == k.size(2)
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal)  # (B, H, T, D)
        x = x + proj(y.transpose(1, 2).flatten(2))
        return x + mlp(norm2(x))

    return forward


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x (..., D), its pairs turned, by cosines (..., D) and sines whose first half is negative.

    For few tokens this is faster than the rotations of kernels.py.
    """
    return (x * cos).addcmul_(x.roll(x.size(-1) // 2, -1), sin)


def _linear(linear: nn.Linear) -> Map:
    weight, bias = linear.weight, linear.bias
    return lambda x: F.linear(x, weight, bias)


def _norm(norm: nn.Module) -> Map:
    if isinstance(norm, nn.LayerNorm):
        size, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
        return lambda x: torch.layer_norm(x, size, weight, bias, eps)
    if isinstance(norm, RMSNorm):
        # g x / sqrt(|x|^2 / D + eps), in half of the operations
        gains = norm.weight.detach() * norm.weight.numel() ** 0.5
        least = gains.new_tensor((norm.eps * gains.numel()) ** 0.5)
        return lambda x: x * gains / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), least)
    assert isinstance(norm, nn.Identity)
    return lambda x: x


def _mlp(mlp: MLP) -> Map:
    up, down, activation = _linear(mlp.up), _linear(mlp.down), mlp.activation
    if mlp.gate is None:
        return lambda x: down(activation(up(x)))
    gate = _linear(mlp.gate)
    return lambda x: down(activation(gate(x)) * up(x))
