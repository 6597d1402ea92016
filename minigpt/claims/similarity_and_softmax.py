"""How attention measures likeness, and how it turns likeness into shares.

A query is a vector that says what is looked for; a key says what is on offer. Their dot product is the score of
the pair. Divided by the square root of their length and put through a softmax, the scores of one query become
shares that sum to 1, and the output is the mean of the values under these shares:

    attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V        (Vaswani et al. 2017, section 3.2.1)

The claims below take this formula from the inside out: the product, the scale, the softmax, the weighted sum.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.claims.claim import Claim, Finding, figure, figures, largest
from minigpt.claims.material import EXACT, attention, normal
from minigpt.model.gpt import attention_weights, causal_mask

HEAD_SIZES = (4, 16, 64, 256)
KEYS = 256


# --- the dot product ---------------------------------------------------------------------------------


def dot_product() -> Finding:
    """A dot product is large where two vectors point the same way, zero at a right angle, negative when opposed."""
    query = torch.tensor([2.0, 3.0])
    keys = torch.tensor([[1.0, 4.0], [-3.0, 2.0], [-1.0, -4.0]])  # alike, at a right angle, opposed
    alike, at_right_angle, opposed = (keys @ query).tolist()
    measured = f"[2,3]·[1,4] = {figure(alike)}; at a right angle {figure(at_right_angle)}, opposed {figure(opposed)}"
    return Finding((alike, at_right_angle, opposed) == (14, 0, -14), measured)


def cosine_similarity() -> Finding:
    """The cosine is the dot product of two vectors brought to length 1: what is left of them is the angle."""
    angle = torch.tensor([0.0, 60.0, 90.0, 180.0], dtype=torch.float64).deg2rad()
    direction = torch.stack((angle.cos(), angle.sin()), dim=-1)  # (angles, 2)
    length = torch.tensor([0.01, 1.0, 100.0], dtype=torch.float64)
    vectors = length[:, None, None] * direction  # (lengths, angles, 2)
    cosines, dots = F.cosine_similarity(vectors, direction[0], dim=-1), vectors @ direction[0]  # (lengths, angles)
    measured = (
        f"at 60 degrees, for lengths {figures(length.tolist())}: "
        f"cosine {figures(cosines[:, 1].tolist())}; dot product {figures(dots[:, 1].tolist())}"
    )
    dots_follow = largest(dots - length[:, None] * angle.cos()) < EXACT
    return Finding(largest(cosines - angle.cos()) < EXACT and dots_follow, measured)


def scaled_dot_product() -> Finding:
    """Read off the model's own weights: the log of the ratio of two softmax weights is the difference of the scores."""
    query = torch.tensor([[2.0, 3.0]], dtype=torch.float64)
    keys = torch.tensor([[1.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    weights = attention_weights(query, keys)  # (1, 2)
    score = float((weights[0, 0] / weights[0, 1]).log())
    return Finding(abs(score - 14 / math.sqrt(2)) < EXACT, f"14 / √2 = {score:.4f}, in the weights of the model")


def score_of_each_pair() -> Finding:
    """The product of two matrices is nothing but all dot products of their rows and columns, in one table."""
    length, head_size = 6, 4
    q, k = normal(2, length, head_size, claim=5)
    table = torch.zeros(length, length, dtype=torch.float64)
    for i in range(length):
        for j in range(length):
            for d in range(head_size):
                table[i, j] += q[i, d] * k[j, d]
    # A weight is a score up to what all keys of its query share: here the score of the first.
    scores = attention_weights(q, k).log() * math.sqrt(head_size)
    error = largest(((scores - scores[:, :1]) - (table - table[:, :1]))[causal_mask(length, length, q.device)])
    measured = (
        f"{table.numel()} scores for {length} characters; the model's differ from loops in Python by {figure(error)}"
    )
    return Finding(table.numel() == length**2 and error < EXACT, measured)


def score_of_a_pair() -> Finding:
    """Only its own key enters the score of a key-value pair. A weight is a score up to what all share, the divisor."""
    query, *keys = normal(6, 8, claim=19)
    before = attention_weights(query[None], torch.stack(keys)).log()[0]  # (5,)
    keys[2] = -keys[2]
    after = attention_weights(query[None], torch.stack(keys)).log()[0]
    moved = (after - before) - (after - before)[0]  # relative to the first, so that the divisor drops out
    others = largest(moved[[0, 1, 3, 4]])
    measured = f"with its key turned round, a pair's score moves by {figure(moved[2])}, the others by {figure(others)}"
    return Finding(others < EXACT and abs(float(moved[2])) > 0.1, measured)


# --- the scale ---------------------------------------------------------------------------------------


def _weights(claim: int, head_size: int, *, scaled: bool) -> Tensor:
    """Return how 256 queries weigh 256 keys, (queries, keys), where the numbers in q and k have variance 1."""
    q, k = normal(2, KEYS, head_size, claim=claim)
    undo = 1.0 if scaled else math.sqrt(head_size)  # attention_weights divides by that
    return attention_weights(undo * q[:, None], k)[:, 0]  # one query at a time, which the mask lets see all keys


def scale_keeps_many_keys() -> Finding:
    """A sum of d_k products has a standard deviation of √d_k: the larger the head, the more one key takes all.

    exp(entropy) is the number of keys that a query effectively spreads over.
    """
    many, top = {}, {}
    for scaled in (False, True):
        weights = [_weights(7, head_size, scaled=scaled) for head_size in HEAD_SIZES]
        many[scaled] = [float(torch.special.entr(w).sum(-1).mean().exp()) for w in weights]
        top[scaled] = float(weights[2].amax(-1).mean())
    measured = (
        f"keys in use, of {KEYS}, at d_k = 4, 16, 64, 256: {figures(many[False])} unscaled, {figures(many[True])} "
        f"scaled; the largest weight at 64: {figure(top[False])} against {figure(top[True])}"
    )
    falls = many[False] == sorted(many[False], reverse=True) and many[False][-1] < 2
    return Finding(falls and min(many[True]) > KEYS / 2 and max(many[True]) < 1.2 * min(many[True]), measured)


def scale_keeps_gradients() -> Finding:
    """The derivative of weight a by its own score is a (1 - a). Summed over the keys it is near 1 while many share."""
    slope = {}
    for scaled in (False, True):
        weights = [_weights(8, head_size, scaled=scaled) for head_size in HEAD_SIZES]
        slope[scaled] = [float((w * (1 - w)).sum(-1).mean()) for w in weights]
    measured = f"Σ a(1-a) at d_k = 4, 16, 64, 256: {figures(slope[False])} unscaled, {figures(slope[True])} scaled"
    falls = slope[False] == sorted(slope[False], reverse=True) and slope[False][-1] < 0.3
    return Finding(falls and min(slope[True]) > 0.95, measured)


def softmax_cannot_explode() -> Finding:
    """A softmax multiplies a gradient by at most 1/2, whatever the scale: there is nothing to explode.

    The softmax's derivatives are the matrix diag(a) - a a^T, whose largest eigenvalue says by what the luckiest
    direction is multiplied. Where one key takes all, all of it is near zero, and the query learns nothing. (The
    scale is a factor in the gradients of q and k, too. Those that get through are larger without it, yet bounded.)
    """
    strongest, dead = {}, {}
    for scaled in (False, True):
        weights = _weights(9, HEAD_SIZES[-1], scaled=scaled)[:64]
        derivatives = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]  # (queries, keys, keys)
        factor = torch.linalg.eigvalsh(derivatives)[:, -1]  # (queries,)
        strongest[scaled], dead[scaled] = factor.max().item(), (factor < 0.01).double().mean().item()
    measured = (
        f"at d_k = 256 a softmax multiplies gradients by {figure(strongest[False])} at most unscaled, by "
        f"{figure(strongest[True])} scaled; by less than 0.01 for {dead[False]:.0%} and {dead[True]:.0%} of queries"
    )
    return Finding(max(strongest.values()) <= 0.5 + EXACT and dead[False] > 0.2 and dead[True] == 0, measured)


def scale_is_that_of_a_head() -> Finding:
    """Try each divisor in the written-out formula: only one gives what the model's own layer gives."""
    width, heads, length = 768, 12, 6
    layer = attention(10, n_embd=width, n_head=heads)
    x = normal(1, length, width, claim=10)
    q, k, v = layer.queries_keys_values(x)  # (1, H, T, D)
    future = torch.ones(length, length).triu(1).bool()
    output = layer(x)
    errors = []
    for divided_by in (width / heads, width, 512 / length):
        scores = (q @ k.mT / math.sqrt(divided_by)).masked_fill(future, -math.inf)
        errors.append(largest(layer.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)) - output))
    measured = f"with √64, √768, √(512 / 6) the formula differs from the model's layer by {figures(errors)}"
    return Finding(errors[0] < EXACT and min(errors[1:]) > 0.01, measured)


# --- the softmax -------------------------------------------------------------------------------------


def rows_sum_to_one() -> Finding:
    """Each row is a distribution over the keys, to the rounding of float32, in which models run."""
    q, k = normal(2, 4, 64, 16, claim=11).float()  # (H, T, D) each
    weights = attention_weights(q, k)
    error, least = largest(weights.sum(-1) - 1), float(weights.min())
    measured = f"{weights[..., 0].numel()} rows: smallest weight {figure(least)}, sums within {figure(error)} of 1"
    return Finding(least >= 0 and error < 1e-5, measured)


def softmax_is_not_linear() -> Finding:
    """Without the softmax twice the query gives twice the output. With it, the layer is more than matrix products."""
    q, k, v = normal(3, 6, 8, claim=12)
    without = largest((2 * q @ k.T) @ v - 2 * (q @ k.T @ v))
    with_it = largest(attention_weights(2 * q, k) @ v - 2 * (attention_weights(q, k) @ v))
    measured = f"output of 2q less twice that of q: {figure(without)} without the softmax, {figure(with_it)} with it"
    return Finding(without < EXACT and with_it > 0.1, measured)


def large_scores_stay_finite() -> Finding:
    """exp(10,000) is no float. Softmax is the same for scores less their largest, and then no exp exceeds 1."""
    query, keys = torch.tensor([[100.0]]), torch.tensor([[100.0], [99.99], [-100.0]])  # scores up to 10,000
    scores = (query @ keys.T)[0]
    naive = scores.exp() / scores.exp().sum()
    weights = attention_weights(query, keys)[0]
    by_hand = (scores - scores.max()).exp() / (scores - scores.max()).exp().sum()
    measured = f"scores {figures(scores.tolist())}: naively {figures(naive.tolist())}, here {figures(weights.tolist())}"
    right = torch.allclose(weights, by_hand, atol=1e-6) and abs(float(weights.sum()) - 1) < 1e-6
    return Finding(bool(naive.isnan().any()) and right, measured)


# --- the weighted sum --------------------------------------------------------------------------------


def output_is_a_weighted_sum() -> Finding:
    """Each number of the output is the sum of that number in all values, each times its weight."""
    length, width = 5, 32
    layer = attention(14, n_head=1)
    x = normal(1, length, width, claim=14)
    q, k, v = (part[0, 0] for part in layer.queries_keys_values(x))  # (T, D) each
    weights, total = attention_weights(q, k), torch.zeros(length, width, dtype=torch.float64)
    for i in range(length):
        for j in range(length):
            total[i] += weights[i, j] * v[j]
    error = largest(layer.proj(total) - layer(x)[0])
    parts = " + ".join(f"{figure(w)}·{figure(number)}" for w, number in zip(weights[2, :3], v[:3, 0], strict=True))
    measured = f"{parts} = {figure(total[2, 0])}; such sums give the model's layer to {figure(error)}"
    return Finding(error < EXACT, measured)


def shape_is_kept() -> Finding:
    """Weights (L, L) times values (L, d) are (L, d) again, which is why such layers can be stacked."""
    layer, shapes = attention(15), []
    for length in (1, 7, 64):
        x = normal(1, length, 32, claim=15)
        q, k, v = layer.queries_keys_values(x)
        weights = attention_weights(q, k)
        kept = layer(x).shape == x.shape and (weights @ v).shape == v.shape
        shapes.append((kept, f"{tuple(weights.shape[2:])}·{tuple(v.shape[2:])} = {tuple((weights @ v).shape[2:])}"))
    return Finding(all(kept for kept, _ in shapes), "; ".join(text for _, text in shapes))


CLAIMS = (
    Claim(2, "The dot product says how alike two vectors are: [2,3]·[1,4] = 14.", ("002",), dot_product),
    Claim(3, "Cosine similarity depends on the angle alone, not on the lengths.", ("002",), cosine_similarity),
    Claim(4, "Scaled by the root of its length, the score of the example is 14/√2.", ("002",), scaled_dot_product),
    Claim(
        5,
        "Every query is compared with every key: the scores are a table of T×T dot products.",
        ("000", "002", "003", "004"),
        score_of_each_pair,
    ),
    Claim(19, "The scaled dot product says how well a query fits one key-value pair.", ("004",), score_of_a_pair),
    Claim(
        7,
        "Dividing by √d_k keeps the scores small, so that more than a few keys get weight.",
        ("001", "002", "003"),
        scale_keeps_many_keys,
    ),
    Claim(8, "Dividing by √d_k keeps gradients through the softmax stable.", ("003",), scale_keeps_gradients),
    Claim(
        9,
        "Dividing by √d_k prevents exploding gradients.",
        ("002",),
        softmax_cannot_explode,
        correction="It prevents vanishing ones: no softmax enlarges a gradient, but a saturated one lets none through.",
    ),
    Claim(
        10,
        "The scores are divided by √768, the width of the model; or d_k is 512 / len(seq).",
        ("002", "003"),
        scale_is_that_of_a_head,
        correction="d_k is the size of a head, the width divided by the number of heads, whatever the length.",
    ),
    Claim(11, "The weights of a query are not negative and sum to 1.", ("001", "002", "003"), rows_sum_to_one),
    Claim(12, "The softmax makes attention non-linear.", ("003",), softmax_is_not_linear),
    Claim(101, "Very large numbers have to be avoided in the softmax.", ("002",), large_scores_stay_finite),
    Claim(
        14,
        "The output is the weighted sum of the values, number by number.",
        ("000", "002", "003"),
        output_is_a_weighted_sum,
    ),
    Claim(15, "(L, L) times (L, d) is (L, d): attention keeps the shape.", ("003",), shape_is_kept),
)
