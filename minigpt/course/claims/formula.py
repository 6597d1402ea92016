"""Scores, softmax and values.

A head compares each query with each key, turns the scores into weights, and adds up the values:

    attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V        (Vaswani et al. 2017, section 3.2.1)

Queries, keys and values are linear maps of the same text: q = x W_Q, k = x W_K, v = x W_V.
"""

import math

import torch
from torch import Tensor

from minigpt.config.schema import ModelConfig
from minigpt.course.claims.claim import Claim, Finding, fmt, max_abs
from minigpt.course.claims.experiment import Experiment
from minigpt.course.small_models import EXACT, normal, small_attention, small_gpt
from minigpt.model.gpt import attention_weights


def softmax_cannot_explode() -> Finding:
    """Compute the largest factor by which a softmax multiplies a gradient. It is at most 1/2 at any scale.

    The Jacobian of the softmax is diag(a) - a a^T, and the factor is its largest eigenvalue. If one key gets all
    the weight, the Jacobian is close to zero and the query learns nothing. The scale also multiplies the gradients of
    q and k. Without it, the gradients that pass through the softmax are larger, but still bounded.
    """
    q, k = normal(2, 256, 256, claim=9)  # 256 queries and keys with d_k = 256
    largest, blocked = {}, {}
    for scaled in (False, True):
        undo = 1.0 if scaled else math.sqrt(256)  # cancels the division in attention_weights
        weights = attention_weights(undo * q[:64, None], k)[:, 0]  # each is a last query, which sees all keys
        jacobian = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]  # (queries, keys, keys)
        factor = torch.linalg.eigvalsh(jacobian)[:, -1]  # (queries,)
        largest[scaled], blocked[scaled] = factor.max().item(), (factor < 0.01).double().mean().item()
    measured = (
        f"largest factor at d_k = 256: {fmt(largest[False])} unscaled, {fmt(largest[True])} scaled;"
        f" below 0.01 for {blocked[False]:.0%} of queries unscaled, {blocked[True]:.0%} scaled"
    )
    return Finding(max(largest.values()) <= 0.5 + EXACT and blocked[False] > 0.2 and blocked[True] == 0, measured)


def scale_is_that_of_a_head() -> Finding:
    """Try three divisors in the explicit formula. Only the head size reproduces the output of the model's layer."""
    width, heads, length = 768, 12, 6
    layer = small_attention(10, n_embd=width, n_head=heads)
    x = normal(1, length, width, claim=10)
    q, k, v = layer.queries_keys_values(x)  # (1, H, T, D)
    future = torch.ones(length, length).triu(1).bool()
    output = layer(x)
    errors = []
    for d_k in (width / heads, width, 512 / length):
        scores = (q @ k.mT / math.sqrt(d_k)).masked_fill(future, -math.inf)
        errors.append(max_abs(layer.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)) - output))
    measured = f"with √64, √768 and √(512/6) the formula differs from the model by {fmt(errors)}"
    return Finding(errors[0] < EXACT and min(errors[1:]) > 0.01, measured)


def components_not_norm() -> Finding:
    """Double the norm of [2,3], then double its number of components with zeros. Only the second changes the divisor.

    Each score is recovered from the model's weights. With the norm as d_k, the score of the doubled query would
    be 28 / √7.21.
    """

    def score(query: list[float], key: list[float]) -> float:
        keys = torch.tensor([key, [0.0] * len(key)], dtype=torch.float64)
        weights = attention_weights(torch.tensor([query], dtype=torch.float64), keys)[0]
        return float((weights[0] / weights[1]).log())

    scores = score([2, 3], [1, 4]), score([4, 6], [1, 4]), score([2, 3, 0, 0], [1, 4, 0, 0])
    expected = 14 / math.sqrt(2), 28 / math.sqrt(2), 14 / math.sqrt(4)
    measured = "[2,3]: 14/√2 = {:.2f}; [4,6]: 28/√2 = {:.2f}; [2,3,0,0]: 14/√4 = {:.2f}".format(*scores)
    return Finding(all(math.isclose(got, value) for got, value in zip(scores, expected, strict=True)), measured)


UNSCALED = Experiment(
    "scale",
    "attention#does-attention-need-its-scale",
    "A GPT-2 trains for half a minute. With initial weights of queries, keys and values that are ten times as large, "
    "its loss is {unscaled, large weights} without the scale. With the scale, it is {large weights}. With the usual "
    "small weights, the scores are small anyway. Then the loss is {unscaled} without the scale and {baseline} with it.",
    lambda unscaled_large, large, unscaled, scaled: unscaled_large > large + 0.1 and unscaled < scaled,
)
WITHOUT_SOFTMAX = Experiment(
    "attention-kinds",
    "attention#does-attention-need-the-softmax",
    "After a minute of training at equal time, the loss is {relu - baseline} higher with ReLU instead of the softmax, "
    "and {linear - baseline} higher with linear attention.",
    lambda relu, linear: 0 < relu < linear,
)


def values_are_linear() -> Finding:
    """Double the embeddings. The values double; the product x∘x of the components grows by four.

    Nor are they the product of the matrices x xᵀ x.
    """
    layer, x = small_attention(107, n_head=1), normal(1, 6, 32, claim=107)

    def values(x: Tensor) -> Tensor:
        return layer.queries_keys_values(x)[2][0, 0].detach()  # (T, C)

    error = max_abs(values(x) - x[0] @ layer.qkv.weight[64:].T)
    apart = max_abs(values(x) - x[0] ** 2), max_abs(values(x) - x[0] @ x[0].T @ x[0])
    linear = (values(2 * x).norm() / values(x).norm()).item()
    squared = ((2 * x) ** 2).norm().item() / (x**2).norm().item()
    measured = (
        f"the values differ from x W_V by {fmt(error)}, from products of x with itself by {fmt(apart[0])} (x∘x), "
        f"{fmt(apart[1])} (x xᵀ x); "
        f"with doubled embeddings the values grow by {fmt(linear)}, x∘x by {fmt(squared)}"
    )
    return Finding(max(error, abs(linear - 2)) < EXACT and squared > 3 and min(apart) > 0.1, measured)


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


BIASES = Experiment(
    "ablations",
    "attention#which-parts-of-the-model-matter",
    "With biases in all layers, a model that trains for a minute has a loss {biases - baseline} higher.",
    lambda more: 0 < more < 0.05,
)


CLAIMS = (
    Claim(
        9,
        "Scaling prevents vanishing gradients through the softmax",
        softmax_cannot_explode,
        said="Dividing by √d_k prevents exploding gradients.",
        mistake="A softmax never amplifies gradients. A saturated one blocks them.",
        trained=(UNSCALED,),
    ),
    Claim(
        10,
        "d_k is the head size: the model width divided by the number of heads",
        scale_is_that_of_a_head,
        said="The scores are divided by √768, the square root of the model width; or d_k is 512 / len(seq).",
        mistake="Only with a single head is d_k the model width. The length of the sequence does not matter.",
    ),
    Claim(
        106,
        "d_k is the number of components of a query, not its norm",
        components_not_norm,
        said="The scores are divided by the square root of the length of the vector.",
        mistake="The length of a vector usually means its norm, which does not change the divisor.",
    ),
    Claim(
        13,
        "Without the softmax, a small GPT learns, but its loss is higher",
        said="The softmax may be unnecessary, as linear attention shows.",
        mistake="Linear attention shows that a model can learn without it, not that nothing is lost.",
        trained=(WITHOUT_SOFTMAX,),
    ),
    Claim(
        107,
        "A value is the vector of its token times W_V, not times itself",
        values_are_linear,
        said="For the values, multiply the embedding by itself.",
        mistake="Such a product has no weights to learn and is not linear.",
    ),
    Claim(
        29,
        "The linear maps for query, key and value work with and without biases",
        no_biases,
        said="The linear maps for query, key and value have no bias.",
        mistake="This is a choice. GPT-2 has biases; minigpt's modern family does not.",
        trained=(BIASES,),
    ),
    Claim(
        28,
        "Xavier initialization preserves the variance of queries and keys; He initialization doubles it",
        first_weights,
        said="Three linear maps produce Q, K and V, usually with He initialization.",
        mistake="He initialization is for layers before a ReLU. GPT-2 uses N(0, 0.02).",
    ),
)
