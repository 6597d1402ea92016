"""Where queries, keys and values come from: three learned linear maps of the same text.

A character enters as a vector x of the model's width. W_Q makes of it what the character looks for, W_K what it
offers to others, and W_V what it hands over when it is chosen:

    q = x W_Q,    k = x W_K,    v = x W_V

The model keeps the three side by side in one matrix, `Attention.qkv`, and each of them holds all heads.
"""

import math

import torch
from torch import Tensor

from minigpt.claims.claim import Claim, Finding, figure, figures, largest
from minigpt.claims.material import ENCODER, EXACT, attention, gpt, normal, plain, shuffled
from minigpt.config.schema import ModelConfig
from minigpt.model.gpt import count_parameters
from minigpt.text.tokenizer import CharTokenizer


def query_of_the() -> Finding:
    """A linear map written out: number i of the query is the sum of all numbers x[c] of the embedding times W[i, c]."""
    tokenizer = CharTokenizer("The cat")
    embedding = normal(tokenizer.vocab_size, 32, claim=27)
    x = embedding[torch.tensor(tokenizer.encode("The").tolist())]  # (3, C)
    layer = attention(27, n_head=1)
    w_q = layer.qkv.weight.detach()[:32]  # (C, C)
    by_hand = torch.zeros(3, 32, dtype=torch.float64)
    for token in range(3):
        for i in range(32):
            for c in range(32):
                by_hand[token, i] += x[token, c] * w_q[i, c]
    q, _, _ = layer.queries_keys_values(x[None])
    error = largest(by_hand - q[0, 0])
    measured = f"the query of 'T' begins {figures(by_hand[0, :3].tolist())}; the model's differs by {figure(error)}"
    return Finding(error < EXACT, measured)


def length_of_a_query() -> Finding:
    """The matrices fix how long q, k and v are. A longer sentence gives more of them, not longer ones."""
    layer, lengths = attention(24, n_embd=32, n_head=4), (1, 10, 64)
    shapes = [tuple(part.shape[1:]) for T in lengths for part in layer.queries_keys_values(normal(1, T, 32, claim=24))]
    measured = f"q of {lengths} characters: {', '.join(map(str, shapes[::3]))}, as heads, characters, numbers"
    return Finding(shapes == [(4, T, 8) for T in lengths for _ in range(3)], measured)


def same_matrix_for_every_token() -> Finding:
    """A linear map knows no places: shuffled characters have the same queries, keys and values, shuffled."""
    layer, x, order = attention(25), normal(1, 10, 32, claim=25), shuffled(10, claim=25)
    before, after = layer.queries_keys_values(x), layer.queries_keys_values(x[:, order])
    error = max(largest(old[:, :, order] - new) for old, new in zip(before, after, strict=True))
    short, long = (count_parameters(plain(context=context), vocab_size=65) for context in (8, 1024))
    measured = (
        f"of shuffled characters q, k and v are the same, shuffled, to {figure(error)}; "
        f"a model has {short:,} parameters for 8 characters, {long:,} for 1,024"
    )
    return Finding(error < EXACT and short == long, measured)


def no_biases() -> Finding:
    """Without biases a vector of zeros has a query, key and value of zeros. Biases are few: 3 C beside 3 C² weights."""
    zeros = torch.zeros(1, 1, 32, dtype=torch.float64)
    without, within = attention(29, bias=False), attention(29, bias=True)
    silent, biased = largest(without.qkv(zeros)), largest(within.qkv(zeros))
    more = within.qkv.weight.numel() / sum(parameter.numel() for parameter in within.qkv.parameters())
    named = [name for name, _ in gpt(29, bias=False).named_parameters() if name.endswith("bias")]
    measured = (
        f"zeros become {figure(silent)} without biases, up to {figure(biased)} with them; "
        f"of the layer's numbers {1 - more:.1%} would be biases"
    )
    return Finding(silent == 0 and biased > 0.1 and not named and not ModelConfig().bias, measured)


def first_weights() -> Finding:
    """He's factor 2 makes up for the half that a ReLU sets to zero (He et al. 2015, section 2.2). Here is no ReLU.

    For x of variance 1, a number of x W has the variance of a weight times the width. A score q·k / √d_k then has
    that variance as its standard deviation: with N(0, 0.02) a fresh model looks everywhere nearly alike.
    """
    width, head_size = 384, 64
    x, w_q, w_k = normal(3, width, width, claim=28)
    q, k = x @ w_q[:, :head_size], x @ w_k[:, :head_size]  # of weights with variance 1
    lines, squares = [], {}
    for name, std in {"He": math.sqrt(2 / width), "Xavier": math.sqrt(1 / width), "N(0, 0.02)": 0.02}.items():
        squares[name] = ((q * std) ** 2).mean().item()
        score = (q * std @ (k * std).T / math.sqrt(head_size)).std()
        lines.append(f"{name} {figure(squares[name])}, {figure(score)}")
    behind_relu = ((x @ w_q).relu() ** 2).mean().item() * 2 / width
    lines.append(f"He behind a ReLU {figure(behind_relu)}")
    measured = f"mean square of q, standard deviation of scores: {'; '.join(lines)}"
    expected = {squares["He"]: 2, squares["Xavier"]: 1, behind_relu: 1, squares["N(0, 0.02)"]: 0.02**2 * width}
    return Finding(all(math.isclose(got, value, rel_tol=0.1) for got, value in expected.items()), measured)


def self_and_cross() -> Finding:
    """One formula for both: text A asks, text B answers. Self-attention is where A and B are the same text."""
    layer = attention(30, n_head=1)
    layer.kernels = ENCODER
    w_q, w_k, w_v = layer.qkv.weight.chunk(3)

    def cross(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        weights = (a @ w_q.T @ (b @ w_k.T).mT / math.sqrt(32)).softmax(-1)  # (A, B)
        return weights, layer.proj(weights @ (b @ w_v.T))

    a, b = normal(11, 32, claim=30).split((4, 7))
    weights, output = cross(a, b)
    same = largest(cross(a, a)[1] - layer(a[None])[0])
    moved = largest(cross(a, b.flip(-1))[1] - output)
    measured = (
        f"4 characters ask 7: weights {tuple(weights.shape)}, output {tuple(output.shape)}, which another B moves by "
        f"{figure(moved)}; with B = A it is self-attention to {figure(same)}"
    )
    return Finding(weights.shape == (4, 7) and output.shape == a.shape and moved > 0.1 and same < EXACT, measured)


CLAIMS = (
    Claim(27, "The query of a character is its embedding times W_Q.", ("000",), query_of_the),
    Claim(24, "How long q, k and v are is set by the model, not by the sentence.", ("000",), length_of_a_query),
    Claim(25, "The same matrices serve every character.", ("000",), same_matrix_for_every_token),
    Claim(
        29,
        "The maps to key, query and value have no bias.",
        ("004",),
        no_biases,
        correction="It is a choice of few parameters either way: GPT-2 has biases, minigpt's modern family has none.",
    ),
    Claim(
        28,
        "Three linear maps make Q, K and V, and one usually starts them as He et al. do.",
        ("001",),
        first_weights,
        correction="He initialisation is for ReLU. Xavier's keeps a linear map's variance; GPT-2 takes N(0, 0.02).",
    ),
    Claim(
        30,
        "In self-attention Q, K and V come from one text; in cross-attention K and V come from another.",
        ("003",),
        self_and_cross,
    ),
)
