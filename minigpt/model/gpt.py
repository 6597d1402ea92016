"""The network, and nothing but the network: a decoder-only causal transformer.

Two families come out of the same code. `classic` is GPT-2 (Radford et al. 2019): learned positions,
LayerNorm, GELU, biases. `modern` has rotary positions, RMSNorm, normalised queries and keys, squared
ReLU, no biases, and branches that start at zero.

Letters in shapes: B batch, T time, C width (n_embd), H heads, D head size, S keys, V vocabulary, L layers.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.config.schema import ModelConfig
from minigpt.model.kernels import Kernels, best_for, squared_relu

POSITION_BASE = 10_000.0
NORM_EPS = {"layernorm": 1e-5, "rmsnorm": 1e-6}


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """Return the mask (T, S) that lets the last `queries` of `keys` positions see themselves and the past."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def attention_weights(q: Tensor, k: Tensor) -> Tensor:
    """Return softmax(q k^T / sqrt(D)) under the causal mask, (..., T, S).

    The formula of scaled dot-product attention (Vaswani et al. 2017, section 3.2.1), written out. The
    model computes the same with a fused kernel that never stores the weights; this explicit twin is
    for tests and for looking inside. q is (..., T, D), k is (..., S, D), and T queries are the last of S.
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (..., T, S)
    mask = causal_mask(q.size(-2), k.size(-2), q.device)
    return scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)


def sinusoidal_positions(context: int, width: int) -> Tensor:
    """Return the position vectors (context, width) of Vaswani et al. 2017, section 3.5."""
    angle = _position_angles(context, width)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1).float()


def rope_cos_sin(context: int, head_size: int) -> Tensor:
    """Return the cosines and sines of RoPE, (2, context, D / 2) (Su et al. 2021, section 3.2.2)."""
    angle = _position_angles(context, head_size)
    return torch.stack((angle.cos(), angle.sin())).float()


def _position_angles(context: int, size: int) -> Tensor:
    """Return each position times each frequency, (context, size / 2), in float64."""
    rate = POSITION_BASE ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    return torch.arange(context, dtype=torch.float64)[:, None] * rate


class UsesKernels:
    """What computes in one of several ways: as `GPT.use` was told, else as is best for the device."""

    kernels: Kernels | None = None

    def kernels_for(self, x: Tensor) -> Kernels:
        return self.kernels or best_for(x.device)


class Linear(UsesKernels, nn.Linear):
    """nn.Linear, computed by the model's kernels."""

    def forward(self, x: Tensor) -> Tensor:
        return self.kernels_for(x).linear(x, self.weight, self.bias)


class RMSNorm(UsesKernels, nn.RMSNorm):
    """Divides by the root mean square of the last dimension, and multiplies by learned gains."""

    eps: float

    def __init__(self, size: int) -> None:
        super().__init__(size, eps=NORM_EPS["rmsnorm"])

    def forward(self, x: Tensor) -> Tensor:
        return self.kernels_for(x).rms_norm(x, self.weight, self.eps)


def make_norm(config: ModelConfig) -> nn.LayerNorm | RMSNorm:
    """Return the normalisation layer that `config` names."""
    if config.norm == "layernorm":
        return nn.LayerNorm(config.n_embd, eps=NORM_EPS["layernorm"], bias=config.bias)
    return RMSNorm(config.n_embd)


class Attention(UsesKernels, nn.Module):
    """Masked multi-head self-attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_head, self.dropout = config.n_head, config.dropout
        self.qk_norm = RMSNorm(config.head_size) if config.qk_norm else nn.Identity()
        self.qkv = Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.proj = Linear(config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor, cos_sin: Tensor | None = None) -> Tensor:
        q, k, v = self.queries_keys_values(x, cos_sin)  # (B, H, T, D) each
        y = self.kernels_for(x).sdpa(q, k, v, self.dropout if self.training else 0.0)  # (B, H, T, D)
        out: Tensor = self.proj(y.transpose(1, 2).flatten(2))  # (B, T, C)
        return out

    def queries_keys_values(self, x: Tensor, cos_sin: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v (B, H, T, D) of x (B, T, C): q and k normalised, and rotated by cos_sin (2, T, D / 2)."""
        B, T, C = x.shape
        qkv = self.qkv(x).view(B, T, 3, self.n_head, C // self.n_head)
        qk, v = qkv.split((2, 1), dim=2)  # (B, T, 2 or 1, H, D); slices would cost a pass more each going back
        qk = self.qk_norm(qk)
        if cos_sin is not None:
            qk = self.kernels_for(x).rope(qk, cos_sin[:, :, None, None])  # by cosines and sines (T, 1, 1, D / 2)
        q, k = qk.permute(2, 0, 3, 1, 4)
        return q, k, v.squeeze(2).transpose(1, 2)


def hidden_width(config: ModelConfig) -> int:
    """Return the width of the MLP: four times the stream's; with SwiGLU two thirds of that, to pay for its gate."""
    width = 4 * config.n_embd
    return 8 * math.ceil(width * 2 / 3 / 8) if config.activation == "swiglu" else width


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": partial(F.gelu, approximate="tanh"),  # Hendrycks and Gimpel 2016, as GPT-2 computes it
    "gelu_exact": F.gelu,
    "relu2": squared_relu,  # So et al. 2021, Primer
    "swiglu": F.silu,  # of the gate; Shazeer 2020, GLU Variants
}


class MLP(nn.Module):
    """The position-wise half of a block: to a wider layer, a non-linearity, and back."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        hidden = hidden_width(config)
        self.gate = Linear(config.n_embd, hidden, bias=config.bias) if config.activation == "swiglu" else None
        self.up = Linear(config.n_embd, hidden, bias=config.bias)
        self.down = Linear(hidden, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.up(x)  # (B, T, hidden)
        h = self.activation(h) if self.gate is None else self.activation(self.gate(x)) * h
        out: Tensor = self.down(h)
        return out


class Dropout(UsesKernels, nn.Module):
    """Zeroes activations in training, and scales the others up (Srivastava et al. 2014)."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.probability:
            return x
        return self.kernels_for(x).dropout(x, self.probability)


class Block(nn.Module):
    """Attention and MLP, each normalised before and added to the residual stream after."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm1 = make_norm(config)
        self.attention = Attention(config)
        self.norm2 = make_norm(config)
        self.mlp = MLP(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, cos_sin: Tensor | None = None) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x), cos_sin))
        out: Tensor = x + self.dropout(self.mlp(self.norm2(x)))
        return out


class GPT(nn.Module):
    """Token ids (B, T) to logits (B, T, V) of the next token at each position."""

    positions: Tensor | None
    cos_sin: Tensor | None

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(vocab_size, config.n_embd)
        if config.position == "learned":
            self.position_embedding = nn.Embedding(config.context, config.n_embd)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = make_norm(config)
        sinusoidal = sinusoidal_positions(config.context, config.n_embd) if config.position == "sinusoidal" else None
        rotary = rope_cos_sin(config.context, config.head_size) if config.position == "rotary" else None
        self.register_buffer("positions", sinusoidal, persistent=False)
        self.register_buffer("cos_sin", rotary, persistent=False)
        self.init_weights()

    def use(self, kernels: Kernels | None) -> None:
        """Compute with these kernels in every layer; None takes the best for the device."""
        for module in self.modules():
            if isinstance(module, UsesKernels):
                module.kernels = kernels

    def init_weights(self) -> None:
        """Draw a new model's weights from torch's global generator, as GPT-2 does: N(0, 0.02), biases zero.

        The projections that write to the residual stream start smaller by sqrt(2 L) (Radford et al.
        2019, section 2.3), or at zero with `zero_init`. Then the stream still holds each token's own
        embedding at the end, and the tied output would predict that token to follow itself; gains of
        alternating sign make it as unlike itself as any other.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        scale = 0.0 if self.config.zero_init else 1 / math.sqrt(2 * self.config.n_layer)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith(("attention.proj.weight", "mlp.down.weight")):
                    parameter.mul_(scale)
            if self.config.zero_init:
                self.norm.weight[1::2] = -1.0

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, V) for ids (B, T), at most a context of them."""
        end = ids.size(1)
        assert end <= self.config.context, f"{end} tokens exceed the context of {self.config.context}"
        x, cos_sin = self.embed(ids, slice(0, end))  # (B, T, C)
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, cos_sin)
        return self.unembed(x)

    def embed(self, ids: Tensor, at: slice | Tensor) -> tuple[Tensor, Tensor | None]:
        """Return x (B, T, C) of ids (B, T), and the cosines and sines of RoPE (2, ..., D / 2).

        `at` are their positions, alike in all sequences or (B, T).
        """
        x = self.token_embedding(ids)  # (B, T, C)
        if self.config.position == "learned":
            x = x + self.position_embedding.weight[at]
        if self.positions is not None:  # scaled as in Vaswani et al. 2017, section 3.4
            x = x * math.sqrt(self.config.n_embd) + self.positions[at]
        return x, None if self.cos_sin is None else self.cos_sin[:, at]

    def unembed(self, x: Tensor) -> Tensor:
        """Return logits (B, T, V) for the last vectors x (B, T, C)."""
        return F.linear(self.norm(x), self.token_embedding.weight)  # one tied parameter for in and out


def count_parameters(config: ModelConfig, vocab_size: int) -> int:
    """Return how many parameters a model has, without making it."""
    C, hidden = config.n_embd, hidden_width(config)
    norm = 2 * C if config.norm == "layernorm" and config.bias else C
    outputs = [(3 * C, C), (C, C), *[(hidden, C)] * (2 if config.activation == "swiglu" else 1), (C, hidden)]
    block = 2 * norm + sum(rows * columns + rows * config.bias for rows, columns in outputs)
    block += config.qk_norm * config.head_size
    positions = config.context * C if config.position == "learned" else 0
    return vocab_size * C + positions + config.n_layer * block + norm


def flops_per_token(model: GPT) -> int:
    """Return the floating-point operations of training on one token: forward, and backward at twice that.

    Two for each weight of a matrix, the output embedding included, and 4 T C in each layer for the two
    products of attention, counted in full though half of it is masked (Kaplan et al. 2020, table 1).
    """
    config = model.config
    matrices = sum(p.numel() for p in model.blocks.parameters() if p.ndim == 2) + model.token_embedding.weight.numel()
    return 3 * (2 * matrices + 4 * config.n_layer * config.context * config.n_embd)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Turn dropout off within the block; a model that was in training goes on with that, whatever happens."""
    if not model.training:
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()
