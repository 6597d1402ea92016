"""The mask: a model must not see the token that it predicts.

A decoder predicts the next token at every position at once. Each position may use itself and the past, but not the
future. Before the softmax, the score of every later key is set to -inf, which the softmax turns into exactly 0. The
mask is the only difference between the self-attention of an encoder and that of a GPT.
"""

import math

import torch

from minigpt.config.schema import FAMILIES
from minigpt.course.claims.claim import Claim, Finding, fmt, max_abs
from minigpt.course.claims.small_models import ENCODER, EXACT, normal, sdpa_unmasked, small_gpt
from minigpt.model.gpt import attention_weights, causal_mask, use_kernels
from minigpt.model.kernels import CPU


def mask_is_a_triangle() -> Finding:
    """Print the mask for five tokens. Row i has ones up to the diagonal: the keys that query i may see."""
    mask = causal_mask(5, 5, torch.device("cpu"))
    by_loops = [[j <= i for j in range(5)] for i in range(5)]
    picture = " ".join("".join("1" if visible else "0" for visible in row) for row in mask.tolist())
    return Finding(mask.tolist() == by_loops and torch.equal(mask, torch.ones(5, 5).tril().bool()), picture)


def future_gets_nothing() -> Finding:
    """Compute weights from large scores. Above the diagonal they are exactly 0, because exp(-inf) is 0.

    The model's fast kernel does not store weights. With unit vectors as values, its output is the weights.
    """
    q, k = 10 * normal(2, 1, 8, 10, 10, claim=50)  # (B, H, T, D) each, with D = T
    weights = attention_weights(q, k)
    by_kernel = CPU.sdpa(q, k, torch.eye(10, dtype=q.dtype).expand(1, 8, 10, 10), 0.0)
    above = [part.triu(1).abs().max().item() for part in (weights, by_kernel)]
    error = max_abs(weights - by_kernel)
    measured = (
        f"largest weight above the diagonal: {fmt(above)} (formula, kernel), below it: "
        f"{fmt(weights.tril(-1).max())}; formula and kernel agree to within {fmt(error)}"
    )
    return Finding(above == [0, 0] and error < EXACT, measured)


def mask_before_softmax() -> Finding:
    """Apply the mask after the softmax instead. It removes the weight of future keys, so rows sum to less than 1."""
    q, k = normal(2, 6, 8, claim=51)
    after = (q @ k.T / math.sqrt(8)).softmax(-1).tril()
    before = attention_weights(q, k)
    error = max_abs(after / after.sum(-1, keepdim=True) - before)
    measured = (
        f"masked after the softmax, rows sum to {fmt(after.sum(-1))}; masked before it, to "
        f"{fmt(before.sum(-1).min())}; after rescaling, the two agree to within {fmt(error)}"
    )
    return Finding(after.sum(-1)[0].item() < 0.9 and max_abs(before.sum(-1) - 1) < EXACT and error < EXACT, measured)


def no_leak() -> Finding:
    """Change all tokens from one position onward. Earlier predictions must not change by a single bit."""
    leak, changed = 0.0, math.inf
    for family in FAMILIES:
        model = small_gpt(49, **{"family": family, **FAMILIES[family], "zero_init": False})
        ids = torch.arange(24)[None] % 12
        for position in range(1, 24):
            other = torch.cat((ids[:, :position], 11 - ids[:, position:]), dim=1)
            difference = (model(ids) - model(other)).abs()[0]  # (T, V)
            leak = max(leak, difference[:position].max().item())
            changed = min(changed, difference[position:].max().item())
    measured = (
        f"with a different future, earlier predictions change by {fmt(leak)}, later ones by {fmt(changed)} or more"
    )
    return Finding(leak == 0 and changed > 0.01, measured)


def no_head_for_the_next() -> Finding:
    """Make each query equal to the next key. An encoder then attends to the next token; a decoder cannot."""
    keys = 30 * torch.eye(10, dtype=torch.float64)
    queries = keys.roll(-1, dims=0)  # query i equals key i + 1
    decoder = attention_weights(queries, keys).diagonal(1)  # (T - 1,), the weight of the next token
    encoder = sdpa_unmasked(queries[None], keys[None], torch.eye(10, dtype=torch.float64)[None], 0.0)[0].diagonal(1)
    measured = f"weight of the next token: {fmt(decoder.max())} in a decoder, {fmt(encoder.min())} in an encoder"
    return Finding(torch.count_nonzero(decoder).item() == 0 and encoder.min().item() > 0.99, measured)


def encoder_and_decoder() -> Finding:
    """Change the last token of a text and compare the first output, with and without the mask."""
    ids = torch.arange(10)[None]
    other = torch.cat((ids[:, :-1], torch.tensor([[0]])), dim=1)
    model = small_gpt(54)
    decoder = max_abs(model(ids)[0, 0] - model(other)[0, 0])
    use_kernels(model, ENCODER)
    encoder = max_abs(model(ids)[0, 0] - model(other)[0, 0])
    pairs = causal_mask(10, 10, torch.device("cpu")).sum().item()
    measured = (
        f"a different last token changes the first output by {fmt(encoder)} in an encoder and by "
        f"{fmt(decoder)} in a decoder; the mask allows {pairs} of 100 pairs"
    )
    return Finding(decoder == 0 and encoder > 1e-3 and pairs == 55, measured)


def all_prefixes_at_once() -> Finding:
    """Run the model on each prefix of a text. One pass over the whole text gives the same predictions."""
    model, ids = small_gpt(80), torch.arange(20)[None] % 12
    at_once = model(ids)[0]  # (T, V)
    by_prefix = torch.stack([model(ids[:, :length])[0, -1] for length in range(1, 21)])
    error = max_abs(at_once - by_prefix)
    measured = f"one pass over 20 tokens differs from 20 passes over the prefixes by {fmt(error)}"
    return Finding(error < EXACT, measured)


CLAIMS = (
    Claim(52, "The mask is a lower triangular matrix of ones", ("004",), mask_is_a_triangle),
    Claim(50, "Scores of future tokens are set to -inf, so their weights are 0", ("002", "004"), future_gets_nothing),
    Claim(51, "The mask is applied after Q K^T and before the softmax", ("002",), mask_before_softmax),
    Claim(
        49,
        "The predictions of a decoder do not depend on later tokens",
        ("002", "003", "004"),
        no_leak,
        notes_say="A decoder must not see the future.",
    ),
    Claim(
        35,
        "No head of a GPT attends to the next token",
        ("000",),
        no_head_for_the_next,
        notes_say="Some heads always attend to the next token.",
        mistake="Only an encoder such as BERT can have such heads. In a GPT the mask makes that weight exactly 0.",
    ),
    Claim(54, "An encoder has no causal mask; a decoder has one", ("003",), encoder_and_decoder),
    Claim(80, "A transformer reads the whole input at once, not word by word", ("001",), all_prefixes_at_once),
)
