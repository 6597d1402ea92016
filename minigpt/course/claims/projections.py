"""Queries, keys and values: three learned linear maps of the same text.

Each token enters as a vector x of the model's width. W_Q turns it into what the token looks for, W_K into what it
offers to other tokens, and W_V into what it passes on:

    q = x W_Q,    k = x W_K,    v = x W_V

The model stores the three matrices of all heads in a single matrix, `Attention.qkv`.
"""

import math

import torch
from torch import Tensor

from minigpt.config.schema import ModelConfig
from minigpt.course.claims.claim import Claim, Finding, fmt, fmt_named, max_abs
from minigpt.course.claims.experiment import Experiment
from minigpt.course.claims.small_models import (
    ENCODER,
    EXACT,
    normal,
    permutation,
    small_attention,
    small_config,
    small_gpt,
)
from minigpt.model.size import count_parameters
from minigpt.text.tokenizer import CharTokenizer


def query_of_the() -> Finding:
    """Compute the queries of "The" with loops: component i of a query is the sum of x[c] W[i, c] over all c."""
    tokenizer = CharTokenizer("The cat")
    embedding = normal(tokenizer.vocab_size, 32, claim=27)
    x = embedding[torch.tensor(tokenizer.encode("The").tolist())]  # (3, C)
    layer = small_attention(27, n_head=1)
    w_q = layer.qkv.weight.detach()[:32]  # (C, C)
    by_loops = torch.zeros(3, 32, dtype=torch.float64)
    for token in range(3):
        for i in range(32):
            for c in range(32):
                by_loops[token, i] += x[token, c] * w_q[i, c]
    q, _, _ = layer.queries_keys_values(x[None])
    error = max_abs(by_loops - q[0, 0])
    measured = f"the query of 'T' starts with {fmt(by_loops[0, :3])}; the model differs by {fmt(error)}"
    return Finding(error < EXACT, measured)


def values_are_linear() -> Finding:
    """Double the embeddings. The values double; the product x∘x of the components grows by four.

    The notes may mean this product or that of matrices, x xᵀ x. The model computes neither.
    """
    layer, x = small_attention(107, n_head=1), normal(1, 6, 32, claim=107)

    def values(x: Tensor) -> Tensor:
        return layer.queries_keys_values(x)[2][0, 0].detach()  # (T, C)

    error = max_abs(values(x) - x[0] @ layer.qkv.weight[64:].T)
    apart = {"x∘x": max_abs(values(x) - x[0] ** 2), "x xᵀ x": max_abs(values(x) - x[0] @ x[0].T @ x[0])}
    linear = (values(2 * x).norm() / values(x).norm()).item()
    squared = ((2 * x) ** 2).norm().item() / (x**2).norm().item()
    measured = (
        f"the values differ from x W_V by {fmt(error)}, from products of x with itself by {fmt_named(apart)}; "
        f"with doubled embeddings the values grow by {fmt(linear)}, x∘x by {fmt(squared)}"
    )
    return Finding(max(error, abs(linear - 2)) < EXACT and squared > 3 and min(apart.values()) > 0.1, measured)


def size_of_a_query() -> Finding:
    """Compare shapes for three sentence lengths. A longer sentence has more queries, each of the same size."""
    layer, lengths = small_attention(24, n_embd=32, n_head=4), (1, 10, 64)
    shapes = [tuple(part.shape[1:]) for T in lengths for part in layer.queries_keys_values(normal(1, T, 32, claim=24))]
    measured = f"shape of q for {lengths} tokens: {', '.join(map(str, shapes[::3]))} (heads, tokens, head size)"
    return Finding(shapes == [(4, T, 8) for T in lengths for _ in range(3)], measured)


def same_matrix_for_every_token() -> Finding:
    """Shuffle the tokens. The rows of q, k and v are shuffled in the same way and are otherwise unchanged."""
    layer, x, order = small_attention(25), normal(1, 10, 32, claim=25), permutation(10, claim=25)
    before, after = layer.queries_keys_values(x), layer.queries_keys_values(x[:, order])
    error = max(max_abs(old[:, :, order] - new) for old, new in zip(before, after, strict=True))
    short, long = (count_parameters(small_config(context=context), vocab_size=65) for context in (8, 1024))
    measured = (
        f"after shuffling, the rows of q, k and v differ by {fmt(error)}; "
        f"{short:,} parameters for a context of 8, {long:,} for 1,024"
    )
    return Finding(error < EXACT and short == long, measured)


def no_biases() -> Finding:
    """Project a vector of zeros. Without biases the result is zero. A layer with 3 C² weights has 3 C biases."""
    zeros = torch.zeros(1, 1, 32, dtype=torch.float64)
    without, with_bias = small_attention(29, bias=False), small_attention(29, bias=True)
    unbiased, biased = max_abs(without.qkv(zeros)), max_abs(with_bias.qkv(zeros))
    share = with_bias.qkv.bias.numel() / sum(parameter.numel() for parameter in with_bias.qkv.parameters())
    names = [name for name, _ in small_gpt(29, bias=False).named_parameters() if name.endswith("bias")]
    measured = (
        f"zeros map to {fmt(unbiased)} without biases and to at most {fmt(biased)} with biases; "
        f"{share:.1%} of the parameters are biases"
    )
    return Finding(unbiased == 0 and biased > 0.1 and not names and not ModelConfig().bias, measured)


def first_weights() -> Finding:
    """Compare three initializations by the queries and scores that they produce.

    The factor 2 in He initialization compensates for the half that a ReLU sets to zero (He et al. 2015, section 2.2).
    There is no ReLU here. For inputs of variance 1, the variance of a query is the variance of a weight times the
    width. The standard deviation of the scores q·k / √d_k equals that variance. Therefore, with N(0, 0.02), a new model
    attends almost uniformly.
    """
    width, head_size = 384, 64
    x, w_q, w_k = normal(3, width, width, claim=28)
    q, k = x @ w_q[:, :head_size], x @ w_k[:, :head_size]  # for weights of variance 1
    lines, squares = [], {}
    for name, std in {"He": math.sqrt(2 / width), "Xavier": math.sqrt(1 / width), "N(0, 0.02)": 0.02}.items():
        squares[name] = ((q * std) ** 2).mean().item()
        score = (q * std @ (k * std).T / math.sqrt(head_size)).std()
        lines.append(f"{name} {fmt(squares[name])}, {fmt(score)}")
    after_relu = ((x @ w_q).relu() ** 2).mean().item() * 2 / width
    lines.append(f"He after a ReLU {fmt(after_relu)}")
    measured = f"mean square of q, and standard deviation of the scores: {'; '.join(lines)}"
    expected = {squares["He"]: 2, squares["Xavier"]: 1, after_relu: 1, squares["N(0, 0.02)"]: 0.02**2 * width}
    return Finding(all(math.isclose(got, value, rel_tol=0.1) for got, value in expected.items()), measured)


def self_and_cross() -> Finding:
    """Compute cross-attention from text A to text B. If A and B are the same text, this is self-attention."""
    layer = small_attention(30, n_head=1)
    layer.kernels = ENCODER
    w_q, w_k, w_v = layer.qkv.weight.chunk(3)

    def cross(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        weights = (a @ w_q.T @ (b @ w_k.T).mT / math.sqrt(32)).softmax(-1)  # (A, B)
        return weights, layer.proj(weights @ (b @ w_v.T))

    a, b = normal(11, 32, claim=30).split((4, 7))
    weights, output = cross(a, b)
    error = max_abs(cross(a, a)[1] - layer(a[None])[0])
    change = max_abs(cross(a, b.flip(-1))[1] - output)
    measured = (
        f"4 tokens attend to 7: weights {tuple(weights.shape)}, output {tuple(output.shape)}; a different B changes "
        f"the output by {fmt(change)}; with B = A it matches self-attention to within {fmt(error)}"
    )
    return Finding(weights.shape == (4, 7) and output.shape == a.shape and change > 0.1 and error < EXACT, measured)


BIASES = Experiment(
    "ablations",
    "attention#which-parts-of-the-model-matter",
    "With biases in all layers, a model that trains for a minute has a loss {biases - baseline} higher.",
    lambda more: 0 < more < 0.05,
)

CLAIMS = (
    Claim(
        27,
        "A query is the vector of its token times W_Q",
        ("000",),
        query_of_the,
        notes_say="The query of a token is its embedding times W_Q.",
    ),
    Claim(
        107,
        "A value is the vector of its token times W_V, not times itself",
        ("002",),
        values_are_linear,
        notes_say="For the values, multiply the embedding by itself.",
        mistake="Such a product has no weights to learn and is not linear.",
    ),
    Claim(
        24,
        "The number of components of q, k and v depends on the model, not on the sentence",
        ("000",),
        size_of_a_query,
        notes_say="The length of q, k and v depends on the model, not on the sentence.",
    ),
    Claim(25, "All tokens share the same matrices", ("000",), same_matrix_for_every_token),
    Claim(
        29,
        "The linear maps for query, key and value work with and without biases",
        ("004",),
        no_biases,
        notes_say="The linear maps for query, key and value have no bias.",
        mistake="This is a choice. GPT-2 has biases; minigpt's modern family does not.",
        trained=(BIASES,),
    ),
    Claim(
        28,
        "Xavier initialization preserves the variance of queries and keys; He initialization doubles it",
        ("001",),
        first_weights,
        notes_say="Three linear maps produce Q, K and V, usually with He initialization.",
        mistake="He initialization is for layers before a ReLU. GPT-2 uses N(0, 0.02).",
    ),
    Claim(
        30,
        "In self-attention Q, K and V come from one text; in cross-attention K and V come from another text",
        ("003",),
        self_and_cross,
    ),
)
