"""The network: a decoder-only transformer with causal attention.

One set of switches covers two families. `classic` is GPT-2 (Radford et al. 2019): learned positional encodings,
LayerNorm, GELU, biases. `modern` has RoPE, RMSNorm, normalized queries and keys, squared ReLU, no biases, and residual
branches whose output starts at zero.

Letters in shapes: B batch, T positions, C width (n_embd), H heads, D head size (C / H), V vocabulary.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.config.schema import ModelConfig
from minigpt.config.shapes import NORM_EPS, POSITION_BASE, hidden_width
from minigpt.model.kernels import CPU, Kernels, apply_rope, squared_relu


class RMSNorm(nn.RMSNorm):
    """Divide by the root mean square of the last dimension and multiply by learned gains."""

    kernels: Kernels = CPU  # until `use_kernels`

    def forward(self, x: Tensor) -> Tensor:
        return self.kernels.rms_norm(x, self.weight)


def make_norm(config: ModelConfig) -> nn.LayerNorm | RMSNorm:
    """Return the normalization layer that `config` names."""
    if config.norm == "layernorm":
        return nn.LayerNorm(config.n_embd, NORM_EPS["layernorm"], bias=config.bias)
    return RMSNorm(config.n_embd)


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """Return a mask (queries, keys), true where a query may attend. Queries are at the last positions of the keys."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def attention_weights(q: Tensor, k: Tensor) -> Tensor:
    """Return softmax(q k^T / sqrt(D)) under the causal mask: (..., T, S) for q (..., T, D) and k (..., S, D).

    These are the weights of scaled dot-product attention (Vaswani et al. 2017, section 3.2.1).
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (..., T, S)
    mask = causal_mask(q.size(-2), k.size(-2), q.device)
    return scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_head, self.dropout = config.n_head, config.dropout
        self.qk_norm = RMSNorm(config.head_size) if config.qk_norm else nn.Identity()
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor, cos_sin: Tensor | None = None) -> Tensor:
        q, k, v = self.queries_keys_values(x, cos_sin)  # (B, H, T, D) each
        y = self.attend(q, k, v, self.dropout if self.training else 0.0)  # (B, H, T, D)
        out: Tensor = self.proj(y.transpose(1, 2).flatten(2))  # (B, T, C)
        return out

    @staticmethod
    def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        """Return softmax(q k^T / sqrt(D)) v under the causal mask, for q, k and v (B, H, T, D).

        The reference implementation, for tests and `inspect`. `use_kernels` can replace it with a faster kernel.
        """
        weights = attention_weights(q, k)  # (B, H, T, T)
        return F.dropout(weights, dropout) @ v

    def queries_keys_values(self, x: Tensor, cos_sin: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v (B, H, T, D) for x (B, T, C), with q and k rotated by cos_sin (2, T, D / 2)."""
        B, T, C = x.shape
        qkv = self.qkv(x).view(B, T, 3, self.n_head, C // self.n_head)  # (B, T, 3, H, D)
        qk, v = qkv.split((2, 1), dim=2)  # (B, T, 2, H, D) and (B, T, 1, H, D): faster backward than three slices
        qk = self.qk_norm(qk)
        if cos_sin is not None:
            qk = apply_rope(qk, cos_sin[:, :, None, None])
        q, k = qk.permute(2, 0, 3, 1, 4)  # (B, H, T, D) each
        return q, k, v.squeeze(2).transpose(1, 2)


# `_activate` in sampling/engine.py has the NumPy version of each activation.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": partial(F.gelu, approximate="tanh"),  # as in GPT-2; Hendrycks and Gimpel 2016
    "gelu_exact": F.gelu,
    "relu2": squared_relu,  # So et al. 2021, Primer
    "swiglu": F.silu,  # applied to the gate; Shazeer 2020, GLU Variants
}


class MLP(nn.Module):
    """The feed-forward half of a block, applied to each position alone."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        hidden = hidden_width(config)
        self.gate = nn.Linear(config.n_embd, hidden, bias=config.bias) if config.activation == "swiglu" else None
        self.up = nn.Linear(config.n_embd, hidden, bias=config.bias)
        self.down = nn.Linear(hidden, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.up(x)  # (B, T, hidden)
        h = self.activation(h) if self.gate is None else self.activation(self.gate(x)) * h
        out: Tensor = self.down(h)  # (B, T, C)
        return out


class Dropout(nn.Module):
    """Zero random activations in training, and scale up the others (Srivastava et al. 2014)."""

    kernels: Kernels = CPU  # until `use_kernels`

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        return self.kernels.dropout(x, self.probability) if self.training and self.probability else x


class Block(nn.Module):
    """Attention, then the MLP, each after a norm. Their outputs are added to the residual stream."""

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
    """Map token ids (B, T) to logits (B, T, V) of the next token at each position."""

    positions: Tensor | None
    cos_sin: Tensor | None
    run_block: Callable[[nn.Module, Tensor, Tensor | None], Tensor] = staticmethod(nn.Module.__call__)
    """`run_block(block, x, cos_sin)` applies a block to x (B, T, C). On a CPU, `compile_loss` compiles only this."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(vocab_size, config.n_embd)
        if config.position == "learned":
            self.position_embedding = nn.Embedding(config.context, config.n_embd)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = make_norm(config)
        for name, buffer in position_buffers(config).items():
            self.register_buffer(name, buffer, persistent=False)
        self.init_weights()

    def init_weights(self) -> None:
        """Draw the weights from torch's global generator: standard deviation 0.02, biases zero.

        The projections into the residual stream are scaled by 1 / sqrt(2 n_layer) (Radford et al. 2019, section
        2.3), or zero with `zero_init`. With zeros, the last norm sees the token's own embedding, and the tied output
        would predict that token again. Gains of +1, -1, ... bring an embedding's dot product with itself near zero.
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
        """Return logits (B, T, V) for ids (B, T). T is at most the context."""
        T = ids.size(1)
        assert self.config.context >= T, f"{T} tokens exceed the context of {self.config.context}"
        x = self.dropout(self.embed(ids))  # (B, T, C)
        cos_sin = None if self.cos_sin is None else self.cos_sin[:, :T]  # (2, T, D / 2)
        for block in self.blocks:
            x = self.run_block(block, x, cos_sin)
        return self.unembed(x)

    def embed(self, ids: Tensor) -> Tensor:
        """Return the input x (B, T, C) of the first block, before dropout, for ids (B, T)."""
        T = ids.size(1)
        x: Tensor = self.token_embedding(ids)  # (B, T, C)
        if self.config.position == "learned":
            x = x + self.position_embedding.weight[:T]
        if self.positions is not None:  # scaled as in Vaswani et al. 2017, section 3.4
            x = x * math.sqrt(self.config.n_embd) + self.positions[:T]
        return x

    def unembed(self, x: Tensor) -> Tensor:
        """Return logits (B, T, V) for the output x (B, T, C) of the last block."""
        return F.linear(self.norm(x), self.token_embedding.weight)  # tied weights (Press and Wolf 2017)


def position_buffers(config: ModelConfig) -> dict[str, Tensor | None]:
    """Return each constant of the positional encoding by the name of its buffer, or None if it is not needed."""
    sinusoidal = sinusoidal_positions(config.context, config.n_embd) if config.position == "sinusoidal" else None
    rotary = rope_cos_sin(config.context, config.head_size) if config.position == "rotary" else None
    return {"positions": sinusoidal, "cos_sin": rotary}


def sinusoidal_positions(context: int, width: int) -> Tensor:
    """Return the position vectors (context, width) of Vaswani et al. 2017, section 3.5."""
    cos, sin = rope_cos_sin(context, width)
    return torch.stack((sin, cos), dim=-1).flatten(1)


def rope_cos_sin(context: int, head_size: int) -> Tensor:
    """Return the cosines and sines of RoPE (2, context, D / 2) (Su et al. 2021, section 3.2.2)."""
    rate = POSITION_BASE ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    angle = torch.arange(context, dtype=torch.float64)[:, None] * rate
    return torch.stack((angle.cos(), angle.sin())).float()


def use_kernels(model: nn.Module, kernels: Kernels) -> None:
    """Set the kernels of RMSNorm, dropout and attention in a model."""
    for module in model.modules():
        if isinstance(module, RMSNorm | Dropout):
            module.kernels = kernels
        if isinstance(module, Attention):
            module.attend = kernels.sdpa or Attention.attend  # type: ignore[method-assign, assignment]


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Turn dropout off within the `with` block, then restore the mode of `model`."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
