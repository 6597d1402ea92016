"""Patches to the network."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.model.gpt import Attention
from minigpt.model.kernels import CPU, sdpa_blocked


class UntiedEmbedding(nn.Embedding):
    """An embedding with its own input matrix. `weight` is only the output projection."""

    def __init__(self, tied: nn.Embedding) -> None:
        super().__init__(*tied.weight.shape)
        self.weight = tied.weight
        self.input = nn.Parameter(tied.weight.detach().clone())

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.input)


class BigramEmbedding(nn.Embedding):
    """An embedding that adds a vector for each pair of a token and its predecessor."""

    def __init__(self, tied: nn.Embedding) -> None:
        super().__init__(*tied.weight.shape)
        self.weight = tied.weight
        self.pairs = nn.Parameter(torch.zeros(tied.num_embeddings**2, tied.embedding_dim))

    def forward(self, ids: Tensor) -> Tensor:
        previous = F.pad(ids, (1, 0))[:, :-1]
        return super().forward(ids) + F.embedding(previous * self.num_embeddings + ids, self.pairs)


class ShortConvolution(nn.Module):
    """Adds the `taps` previous positions to the output of `inner`, each with a learned weight per channel."""

    def __init__(self, inner: nn.Module, width: int, taps: int) -> None:
        super().__init__()
        self.inner = inner
        self.taps = nn.Parameter(torch.zeros(taps, width))
        self.weight = getattr(inner, "weight", None)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)  # (B, T, C)
        out = x
        for distance, tap in enumerate(self.taps, 1):
            out = out + tap * F.pad(x, (0, 0, distance, 0))[:, : x.size(1)]
        return out


def untied_embeddings(run: Any, argument: Any) -> None:
    """Give the input embedding and the output projection separate weights."""
    run.learner.model.token_embedding = UntiedEmbedding(run.learner.model.token_embedding)


def bigram_embeddings(run: Any, argument: Any) -> None:
    """Add an embedding for each pair of tokens."""
    run.learner.model.token_embedding = BigramEmbedding(run.learner.model.token_embedding)


def short_convolution(run: Any, argument: Mapping[str, Any]) -> None:
    """Add a short causal convolution per channel after the norms in `before`."""
    for block in run.learner.model.blocks:
        for norm in argument["before"]:
            setattr(block, norm, ShortConvolution(getattr(block, norm), run.config.model.n_embd, argument["taps"]))


def dropout_rates(run: Any, argument: Mapping[str, float]) -> None:
    """Set separate dropout rates for the embedding, the attention weights and the outputs of the sublayers."""
    run.learner.model.dropout.probability = argument.get("embedding", 0.0)
    for block in run.learner.model.blocks:
        block.attention.dropout = argument.get("attention", 0.0)
        block.dropout.probability = argument.get("branches", 0.0)


class FixedGainRMSNorm(nn.Module):
    """RMSNorm with one constant gain for all channels."""

    gains: Tensor

    def __init__(self, size: int, gain: float) -> None:
        super().__init__()
        self.register_buffer("gains", torch.full((size,), gain))

    def forward(self, x: Tensor) -> Tensor:
        return CPU.rms_norm(x, self.gains)


def qk_scale(run: Any, argument: Mapping[str, Any]) -> None:
    """Multiply the scores of normalized queries and keys by `factor`, constant or `learned` per channel."""
    for block in run.learner.model.blocks:
        attention, gain = block.attention, math.sqrt(argument["factor"])  # queries and keys share the factor
        if argument.get("learned"):
            nn.init.constant_(attention.qk_norm.weight, gain)
        else:
            attention.qk_norm = FixedGainRMSNorm(run.config.model.head_size, gain)


def value_residual(run: Any, argument: Any) -> None:
    """Mix the values of the first layer into those of the other layers (Zhou et al. 2024), with learned weights.

    This replaces the attention kernel, as `variational_dropout` does, so the two cannot be combined.
    """
    first: list[Tensor] = []
    attentions = [block.attention for block in run.learner.model.blocks]
    for attention in attentions:
        if attention is not attentions[0]:
            attention.share = nn.Parameter(torch.zeros(1))

        def sdpa(attention: Any, q: Tensor, k: Tensor, v: Tensor, probability: float) -> Tensor:
            if attention is attentions[0]:
                first[:] = [v]
            else:
                v = v + (attention.share * (first[0] - v)).to(v.dtype)
            return sdpa_blocked(q, k, v, probability)

        attention.attend = partial(sdpa, attention)


def embedding_residual(run: Any, argument: Any) -> None:
    """Add the embeddings, times a learned factor, to the input of each block."""
    embeddings: list[Tensor] = []
    for layer, block in enumerate(run.learner.model.blocks):
        block.share = nn.Parameter(torch.zeros(1))

        def add(block: Any, arguments: tuple[Any, ...], layer: int = layer) -> tuple[Any, ...]:
            x, *rest = arguments
            if layer == 0:
                embeddings[:] = [x]
            return (torch.addcmul(x, block.share, embeddings[0]), *rest)

        block.register_forward_pre_hook(add)


def rope_base(run: Any, base: float) -> None:
    """Set the base of RoPE's wavelengths."""
    size = run.config.model.head_size
    rate = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angle = torch.arange(run.config.model.context, dtype=torch.float64)[:, None] * rate
    run.learner.model.cos_sin = torch.stack((angle.cos(), angle.sin())).float()


def gated_heads(run: Any, channels: int) -> None:
    """Scale each head's output by a gate computed from the first channels of the layer's input (Qiu et al. 2025)."""
    for block in run.learner.model.blocks:
        attention, inputs = block.attention, list[Tensor]()
        attention.gates = nn.Parameter(torch.zeros(attention.n_head * channels))

        def record(attention: Any, arguments: tuple[Any, ...], inputs: list[Tensor] = inputs) -> None:
            inputs[:] = [arguments[0]]

        def scale(
            proj: Any, arguments: tuple[Any, ...], attention: Any = attention, inputs: list[Tensor] = inputs
        ) -> Any:
            y = arguments[0]  # (B, T, C)
            gates = 2 * F.linear(inputs[0][..., :channels], attention.gates.view(-1, channels)).sigmoid()  # (B, T, H)
            return (y.unflatten(-1, (attention.n_head, -1)) * gates.to(y.dtype)[..., None]).flatten(2)

        attention.register_forward_pre_hook(record)
        attention.proj.register_forward_pre_hook(scale)


def variational_dropout(run: Any, argument: Any) -> None:
    """Share dropout masks across positions (Gal and Ghahramani 2016), and drop a key for all queries at once."""

    def dropout(x: Tensor, probability: float) -> Tensor:
        return x * F.dropout(x.new_ones(x.size(0), 1, x.size(2)), probability)  # x is (B, T, C)

    def sdpa(q: Tensor, k: Tensor, v: Tensor, probability: float) -> Tensor:
        if probability:
            v = v * F.dropout(v.new_ones(*v.shape[:3], 1), probability)  # (B, H, S, 1)
        return sdpa_blocked(q, k, v, 0.0)

    for module in run.learner.model.modules():
        if hasattr(module, "kernels"):
            module.kernels = replace(module.kernels, dropout=dropout)
        if isinstance(module, Attention):
            module.attend = sdpa  # type: ignore[method-assign, assignment]


def concatenated_positions(run: Any, width: int) -> None:
    """Replace the last `width` dimensions of each embedding with a learned vector for its position."""
    model = run.learner.model
    model.table = nn.Parameter(0.02 * torch.randn(run.config.model.context, width))

    def concatenate(embedding: Any, arguments: Any, x: Tensor) -> Tensor:
        return torch.cat((x[..., :-width], model.table[: x.size(1)].expand(x.size(0), -1, -1)), dim=-1)

    model.token_embedding.register_forward_hook(concatenate)


def lstm_first(run: Any, argument: Any) -> None:
    """Add the output of an LSTM of the same width to the embeddings, times a learned gain for each channel."""
    model, width = run.learner.model, run.config.model.n_embd
    model.first = nn.LSTM(width, width, bias=False, batch_first=True)
    model.gains = nn.Parameter(torch.full((width,), 0.02))  # the size of the embeddings

    def add(embedding: Any, arguments: Any, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            recurrent, _ = model.first(F.rms_norm(x.float(), (width,)))  # (B, T, C)
        out: Tensor = x + model.gains * recurrent
        return out

    model.token_embedding.register_forward_hook(add)


def repeated_layers(run: Any, times: int) -> None:
    """Let the first layers run several times in place of the others."""
    blocks = list(run.learner.model.blocks)
    run.learner.model.blocks = nn.ModuleList(blocks[: len(blocks) // times] * times)


def depth_warmup(run: Any, argument: Mapping[str, float]) -> None:
    """Use only the first `layers` until a `share` of the run. The others add nothing yet (model.zero_init)."""

    def skippable(block: nn.Module, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def skip(x: Tensor, *more: Any) -> Tensor:
            if run.state.step >= argument["share"] * run.steps:
                return forward(x, *more)
            gradients: Tensor = 0.0 * torch.stack([weight.sum() for weight in block.parameters()]).sum()
            return x + gradients

        return skip

    for block in run.learner.model.blocks[int(argument["layers"]) :]:
        block.forward = skippable(block, block.forward)


def attention_kind(run: Any, name: str) -> None:
    """Replace softmax attention by the plain formula of one kind: "softmax", "linear" or "relu".

    Linear attention has the weights f(q) f(k) / sum, with f(x) = elu(x) + 1 (Katharopoulos et al. 2020,
    https://arxiv.org/abs/2006.16236). ReLU attention has relu(q k / sqrt(D)) / S with S keys (Wortsman et al. 2023,
    https://arxiv.org/abs/2309.08586).
    """

    def sdpa(q: Tensor, k: Tensor, v: Tensor, probability: float) -> Tensor:
        T, D = q.shape[-2:]
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        if name == "linear":
            weights = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).masked_fill(future, 0.0)  # (B, H, T, T)
            return (weights / weights.sum(-1, keepdim=True)) @ v
        scores = q @ k.mT / math.sqrt(D)
        if name == "relu":
            return scores.relu().masked_fill(future, 0.0) @ v / torch.arange(1, T + 1)[:, None]
        return scores.masked_fill(future, -math.inf).softmax(-1) @ v

    for block in run.learner.model.blocks:
        block.attention.attend = sdpa


def unscaled_attention(run: Any, argument: Any) -> None:
    """Do not divide the scores of attention by sqrt(D)."""

    def sdpa(q: Tensor, k: Tensor, v: Tensor, probability: float) -> Tensor:
        return sdpa_blocked(q * math.sqrt(q.size(-1)), k, v, probability)

    for block in run.learner.model.blocks:
        block.attention.attend = sdpa


def initial_scale(run: Any, factor: float) -> None:
    """Multiply the initial weights of queries, keys and values."""
    for block in run.learner.model.blocks:
        nn.init.normal_(block.attention.qkv.weight, std=0.02 * factor)


PATCHES = (
    concatenated_positions,
    lstm_first,
    repeated_layers,
    depth_warmup,
    attention_kind,
    unscaled_attention,
    initial_scale,
    untied_embeddings,
    bigram_embeddings,
    short_convolution,
    dropout_rates,
    qk_scale,
    rope_base,
    value_residual,
    embedding_residual,
    variational_dropout,
    gated_heads,
)
