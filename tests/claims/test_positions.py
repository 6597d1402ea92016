"""Positions.

Attention is a weighted sum, and a sum does not depend on the order of its terms. So most models encode the position of
each token: they add a vector to the embedding, or rotate queries and keys (RoPE).
"""

from dataclasses import replace

import torch
from claim import claim, fmt, trained
from models import EXACT, max_abs, small_gpt
from torch.nn.functional import scaled_dot_product_attention

from minigpt.model.gpt import use_kernels
from minigpt.model.kernels import CPU, TORCH

ENCODER = replace(TORCH, sdpa=lambda q, k, v, dropout: scaled_dot_product_attention(q, k, v))
"""Kernels without a causal mask."""


@claim(
    "In a GPT with two or more layers, the causal mask also tells the order",
    said="Positional encodings are the only source of order.",
    mistake="Each position sees a different past, so the second layer can tell positions apart.",
)
def test_claim_order() -> str:
    """Shuffle the earlier tokens in models without positional encodings: 1 to 3 layers, with and without the mask."""
    ids = torch.arange(12)[None]
    shuffled = torch.cat((ids[:, torch.randperm(11)], ids[:, -1:]), dim=1)
    unmasked: list[float] = []
    masked: list[float] = []
    for kernels, found in ((ENCODER, unmasked), (CPU, masked)):
        for layers in (1, 2, 3):
            model = small_gpt(n_layer=layers)
            use_kernels(model, kernels)
            found.append(max_abs(model(ids)[0, -1] - model(shuffled)[0, -1]))
    assert max(*unmasked, masked[0]) < EXACT
    assert min(masked[1:]) > 0.1
    return (
        f"with 1, 2, 3 layers, shuffling the past changes the last prediction by {fmt(unmasked)} without "
        f"a mask, and by {fmt(masked)} with one"
    )


@claim("A small GPT without positional encodings learns, but its loss is much higher")
@trained(
    "positions-4",
    "positions#does-a-model-need-positional-encodings",
    "After a minute of training, a model of 4 layers without positional encodings has a loss {none - learned} nats "
    "higher than with learned encodings, and {none - baseline} nats higher than with RoPE. Haviv et al. 2022 (arXiv "
    "2203.16634) found only small differences. Their models have 125 million parameters or more, predict words or "
    "subwords, and train far longer. The model here has 0.8 million and predicts characters.",
    lambda learned, rotary: min(learned, rotary) > 0.1,
)
@trained(
    "positions-1",
    "positions#does-a-model-need-positional-encodings",
    "A model of one layer without positional encodings has a loss {none - learned} nats higher than with learned "
    "encodings.",
    lambda difference: difference > 0.3,
)
def test_claim_no_positions() -> None: ...


@claim("In a small model, RoPE, which encodes relative positions, gives a lower loss than added encodings")
@trained(
    "positions-4",
    "positions#which-positional-encodings-are-best",
    "After a minute of training, the loss with RoPE is {sinusoidal - baseline} lower than with sinusoidal and "
    "{learned - baseline} lower than with learned encodings.",
    lambda *gaps: min(gaps) > 0.02,
)
def test_claim_rope() -> None: ...
