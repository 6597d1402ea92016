"""How attention measures similarity and turns it into weights.

A query describes what a token is looking for. A key describes what a token offers. The dot product of the two is the
score of the pair. The scores are divided by the square root of the head size d_k, and a softmax turns the scores of
each query into weights that sum to 1. The output is the weighted mean of the values:

    attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V        (Vaswani et al. 2017, section 3.2.1)

The claims follow this formula from the inside out: dot product, scale, softmax, weighted sum.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.course.claims.claim import Claim, Finding, fmt, max_abs
from minigpt.course.claims.experiment import Experiment
from minigpt.course.claims.small_models import EXACT, normal, small_attention
from minigpt.model.gpt import attention_weights, causal_mask

HEAD_SIZES = (4, 16, 64, 256)
KEYS = 256


# --- the dot product ---------------------------------------------------------------------------------


def dot_product() -> Finding:
    """Compare a query with three keys. The dot product is positive, zero or negative, depending on the angle."""
    query = torch.tensor([2.0, 3.0])
    keys = torch.tensor([[1.0, 4.0], [-3.0, 2.0], [-1.0, -4.0]])  # similar, orthogonal, opposite
    similar, orthogonal, opposite = (keys @ query).tolist()
    measured = f"[2,3]·[1,4] = {fmt(similar)}; orthogonal {fmt(orthogonal)}, opposite {fmt(opposite)}"
    return Finding((similar, orthogonal, opposite) == (14, 0, -14), measured)


def cosine_similarity() -> Finding:
    """Change the norms of vectors but not their angles. The dot product changes; the cosine does not.

    The cosine and two arctangents give the same angle between [2,3] and [1,4].
    """
    angle = torch.tensor([0.0, 60.0, 90.0, 180.0], dtype=torch.float64).deg2rad()
    direction = torch.stack((angle.cos(), angle.sin()), dim=-1)  # (angles, 2)
    norm = torch.tensor([0.01, 1.0, 100.0], dtype=torch.float64)
    vectors = norm[:, None, None] * direction  # (norms, angles, 2)
    cosines, dots = F.cosine_similarity(vectors, direction[0], dim=-1), vectors @ direction[0]  # (norms, angles)
    by_cosine = math.degrees(math.acos(14 / (math.hypot(2, 3) * math.hypot(1, 4))))
    by_arctangents = math.degrees(math.atan2(4, 1) - math.atan2(3, 2))
    measured = (
        f"at 60 degrees, for norms {fmt(norm)}: cosine {fmt(cosines[:, 1])}; dot product {fmt(dots[:, 1])}; "
        f"[2,3] and [1,4] are {by_cosine:.2f} degrees apart by the cosine, {by_arctangents:.2f} by the arctangents"
    )
    dots_scale = max_abs(dots - norm[:, None] * angle.cos()) < EXACT
    same_angle = math.isclose(by_cosine, by_arctangents)
    return Finding(max_abs(cosines - angle.cos()) < EXACT and dots_scale and same_angle, measured)


def scaled_dot_product() -> Finding:
    """Recover the score from the model's weights. The log of the ratio of two weights is their score difference.

    The second key is zero, so its score is zero.
    """
    query = torch.tensor([[2.0, 3.0]], dtype=torch.float64)
    keys = torch.tensor([[1.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    weights = attention_weights(query, keys)  # (1, 2)
    score = float((weights[0, 0] / weights[0, 1]).log())
    return Finding(abs(score - 14 / math.sqrt(2)) < EXACT, f"14 / √2 = {score:.4f}, recovered from the model's weights")


def score_of_each_pair() -> Finding:
    """Compute all dot products with loops. The matrix product Q K^T gives the same values."""
    length, head_size = 6, 4
    q, k = normal(2, length, head_size, claim=5)
    table = torch.zeros(length, length, dtype=torch.float64)
    for i in range(length):
        for j in range(length):
            for d in range(head_size):
                table[i, j] += q[i, d] * k[j, d]
    # The log of a weight is its score minus a per-row constant, so compare scores relative to the first key.
    scores = attention_weights(q, k).log() * math.sqrt(head_size)
    error = max_abs(((scores - scores[:, :1]) - (table - table[:, :1]))[causal_mask(length, length, q.device)])
    measured = f"{table.numel()} scores for {length} tokens; the model differs from the loops by {fmt(error)}"
    return Finding(table.numel() == length**2 and error < EXACT, measured)


def score_of_a_pair() -> Finding:
    """Negate one of five keys. Only the score of that key changes.

    The log of a weight is its score minus the log of the softmax's denominator, which all keys share. It cancels in
    the difference between two keys.
    """
    query, *keys = normal(6, 8, claim=19)
    before = attention_weights(query[None], torch.stack(keys)).log()[0]  # (5,)
    keys[2] = -keys[2]
    after = attention_weights(query[None], torch.stack(keys)).log()[0]
    change = (after - before) - (after - before)[0]  # relative to the first key
    others = max_abs(change[[0, 1, 3, 4]])
    measured = f"negating a key changes its score by {fmt(change[2])}, the other scores by {fmt(others)}"
    return Finding(others < EXACT and abs(float(change[2])) > 0.1, measured)


# --- the scale ---------------------------------------------------------------------------------------


def _weights(claim: int, head_size: int, *, scaled: bool) -> Tensor:
    """Return the weights of 256 queries over 256 keys, (queries, keys), for q and k with variance 1."""
    q, k = normal(2, KEYS, head_size, claim=claim)
    undo = 1.0 if scaled else math.sqrt(head_size)  # cancels the division in attention_weights
    return attention_weights(undo * q[:, None], k)[:, 0]  # each is a last query, which sees all keys


def scale_keeps_many_keys() -> Finding:
    """Count how many keys a query uses, with and without the scale, for four head sizes.

    A sum of d_k products has a standard deviation of √d_k. Without the scale, large heads give almost all weight to
    one key. exp(entropy) is the effective number of keys.
    """
    keys_used, top = {}, {}
    for scaled in (False, True):
        weights = [_weights(7, head_size, scaled=scaled) for head_size in HEAD_SIZES]
        keys_used[scaled] = [float(torch.special.entr(w).sum(-1).mean().exp()) for w in weights]
        top[scaled] = float(weights[2].amax(-1).mean())
    measured = (
        f"effective keys out of {KEYS} at d_k = 4, 16, 64, 256: {fmt(keys_used[False])} unscaled, "
        f"{fmt(keys_used[True])} scaled; largest weight at d_k = 64: {fmt(top[False])} unscaled, "
        f"{fmt(top[True])} scaled"
    )
    falls = keys_used[False] == sorted(keys_used[False], reverse=True) and keys_used[False][-1] < 2
    steady = min(keys_used[True]) > KEYS / 2 and max(keys_used[True]) < 1.2 * min(keys_used[True])
    return Finding(falls and steady, measured)


def scale_keeps_gradients() -> Finding:
    """Compare the derivatives of the softmax with and without the scale.

    The derivative of a weight a with respect to its own score is a (1 - a). The sum over the keys is close to 1 if
    many keys share the weight, and close to 0 if one key gets it all.
    """
    slope = {}
    for scaled in (False, True):
        weights = [_weights(8, head_size, scaled=scaled) for head_size in HEAD_SIZES]
        slope[scaled] = [float((w * (1 - w)).sum(-1).mean()) for w in weights]
    measured = f"Σ a(1-a) at d_k = 4, 16, 64, 256: {fmt(slope[False])} unscaled, {fmt(slope[True])} scaled"
    falls = slope[False] == sorted(slope[False], reverse=True) and slope[False][-1] < 0.3
    return Finding(falls and min(slope[True]) > 0.95, measured)


def softmax_cannot_explode() -> Finding:
    """Compute the largest factor by which a softmax multiplies a gradient. It is at most 1/2 at any scale.

    The Jacobian of the softmax is diag(a) - a a^T, and the factor is its largest eigenvalue. If one key gets all
    the weight, the Jacobian is close to zero and the query learns nothing. The scale also multiplies the gradients of
    q and k. Without it, the gradients that pass through the softmax are larger, but still bounded.
    """
    largest, blocked = {}, {}
    for scaled in (False, True):
        weights = _weights(9, HEAD_SIZES[-1], scaled=scaled)[:64]
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


# --- the softmax -------------------------------------------------------------------------------------


def rows_sum_to_one() -> Finding:
    """Compute weights in float32, the precision of most models. Each row is a distribution over the keys."""
    q, k = normal(2, 4, 64, 16, claim=11).float()  # (H, T, D) each
    weights = attention_weights(q, k)
    error, least = max_abs(weights.sum(-1) - 1), float(weights.min())
    measured = f"{weights[..., 0].numel()} rows: the smallest weight is {fmt(least)}; sums are within {fmt(error)} of 1"
    return Finding(least >= 0 and error < 1e-5, measured)


def softmax_is_not_linear() -> Finding:
    """Double the query. Without the softmax the output doubles; with the softmax it does not.

    As a function of the text, attention is not linear even without a softmax, because q, k and v all depend on the
    text.
    """
    q, k, v = normal(3, 6, 8, claim=12)
    without = max_abs((2 * q @ k.T) @ v - 2 * (q @ k.T @ v))
    with_softmax = max_abs(attention_weights(2 * q, k) @ v - 2 * (attention_weights(q, k) @ v))
    measured = f"output(2q) - 2 output(q): {fmt(without)} without the softmax, {fmt(with_softmax)} with it"
    return Finding(without < EXACT and with_softmax > 0.1, measured)


def large_scores_stay_finite() -> Finding:
    """Compute a softmax of scores near 10,000. The naive formula overflows; the model's does not.

    Subtracting the largest score does not change the softmax, and it keeps every exponential at or below 1.
    """
    query, keys = torch.tensor([[100.0]]), torch.tensor([[100.0], [99.99], [-100.0]])
    scores = (query @ keys.T)[0]
    naive = scores.exp() / scores.exp().sum()
    weights = attention_weights(query, keys)[0]
    stable = (scores - scores.max()).exp() / (scores - scores.max()).exp().sum()
    measured = f"scores {fmt(scores)}: naive {fmt(naive)}, model {fmt(weights)}"
    correct = torch.allclose(weights, stable, atol=1e-6) and abs(float(weights.sum()) - 1) < 1e-6
    return Finding(bool(naive.isnan().any()) and correct, measured)


# --- the weighted sum --------------------------------------------------------------------------------


def output_is_a_weighted_sum() -> Finding:
    """Add up the weighted values with loops. The result equals the output of the model's layer."""
    length, width = 5, 32
    layer = small_attention(14, n_head=1)
    x = normal(1, length, width, claim=14)
    q, k, v = (part[0, 0] for part in layer.queries_keys_values(x))  # (T, D) each
    weights, total = attention_weights(q, k), torch.zeros(length, width, dtype=torch.float64)
    for i in range(length):
        for j in range(length):
            total[i] += weights[i, j] * v[j]
    error = max_abs(layer.proj(total) - layer(x)[0])
    terms = zip(weights[2, :3], v[:3, 0], strict=True)
    parts = " + ".join(f"{fmt(weight)}·{fmt(value)}" for weight, value in terms)
    measured = f"{parts} = {fmt(total[2, 0])}; the loops differ from the model by {fmt(error)}"
    return Finding(error < EXACT, measured)


def shape_is_kept() -> Finding:
    """Compare shapes for three lengths. Input and output have the same shape, so attention layers can be stacked."""
    layer, shapes = small_attention(15), []
    for length in (1, 7, 64):
        x = normal(1, length, 32, claim=15)
        q, k, v = layer.queries_keys_values(x)
        weights = attention_weights(q, k)
        kept = layer(x).shape == x.shape and (weights @ v).shape == v.shape
        shapes.append((kept, f"{tuple(weights.shape[2:])}·{tuple(v.shape[2:])} = {tuple((weights @ v).shape[2:])}"))
    return Finding(all(kept for kept, _ in shapes), "; ".join(text for _, text in shapes))


# --- what trained models show ------------------------------------------------------------------------

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


CLAIMS = (
    Claim(2, "The dot product measures similarity: [2,3]·[1,4] = 14", ("002",), dot_product),
    Claim(
        3,
        "The cosine depends only on the angle, not on the norms",
        ("002",),
        cosine_similarity,
        notes_say="Cosine similarity depends only on the angle, which the arctangent also gives.",
    ),
    Claim(4, "The scaled score of [2,3] and [1,4] is 14/√2", ("002",), scaled_dot_product),
    Claim(
        5,
        "Each query is compared with each key: the scores form a T×T matrix of dot products",
        ("000", "002", "003", "004"),
        score_of_each_pair,
    ),
    Claim(
        19,
        "The score of a key depends on the query and on that key alone",
        ("004",),
        score_of_a_pair,
        notes_say="The scaled dot product measures how well a query matches a key-value pair.",
    ),
    Claim(
        7,
        "Dividing by √d_k keeps the scores small, so that more than a few keys get weight",
        ("001", "002", "003"),
        scale_keeps_many_keys,
        trained=(UNSCALED,),
    ),
    Claim(
        8,
        "Dividing by √d_k keeps the gradients through the softmax stable",
        ("003",),
        scale_keeps_gradients,
        trained=(UNSCALED,),
    ),
    Claim(
        9,
        "Scaling prevents vanishing gradients through the softmax",
        ("002",),
        softmax_cannot_explode,
        notes_say="Dividing by √d_k prevents exploding gradients.",
        mistake="A softmax never amplifies gradients. A saturated one blocks them.",
        trained=(UNSCALED,),
    ),
    Claim(
        10,
        "d_k is the head size: the model width divided by the number of heads",
        ("002", "003"),
        scale_is_that_of_a_head,
        notes_say="The scores are divided by √768, the square root of the model width; or d_k is 512 / len(seq).",
        mistake="Only with a single head is d_k the model width. The length of the sequence does not matter.",
    ),
    Claim(
        106,
        "d_k is the number of components of a query, not its norm",
        ("002",),
        components_not_norm,
        notes_say="The scores are divided by the square root of the length of the vector.",
        mistake="The length of a vector usually means its norm, which does not change the divisor.",
    ),
    Claim(11, "The weights of a query are non-negative and sum to 1", ("001", "002", "003"), rows_sum_to_one),
    Claim(
        12,
        "The softmax makes the output non-linear in the query",
        ("003",),
        softmax_is_not_linear,
        notes_say="The softmax makes attention non-linear.",
    ),
    Claim(
        13,
        "Without the softmax, a small GPT learns, but its loss is higher",
        ("003",),
        notes_say="The softmax may be unnecessary, as linear attention shows.",
        mistake="Linear attention shows that a model can learn without it, not that nothing is lost.",
        trained=(WITHOUT_SOFTMAX,),
    ),
    Claim(
        101,
        "A softmax of very large scores overflows unless it subtracts the largest first",
        ("002",),
        large_scores_stay_finite,
        notes_say="A softmax must avoid very large numbers.",
    ),
    Claim(
        14,
        "The output is the weighted sum of the values in each dimension",
        ("000", "002", "003"),
        output_is_a_weighted_sum,
    ),
    Claim(15, "(L, L) times (L, d) is (L, d): attention preserves the shape", ("003",), shape_is_kept),
)
