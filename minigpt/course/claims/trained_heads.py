"""Questions about the attention heads of a trained model.

The baselines are uniform attention and the same model with random weights. The best of many heads can score well by
chance. So a check that selects a head uses half of the windows to select it and the other half to measure it.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from minigpt.course.claims.claim import Head, fmt
from minigpt.course.claims.evidence import (
    INCONCLUSIVE,
    MIN_DIFFERENCE,
    NOT_SUPPORTED,
    SUPPORTED,
    Answer,
    Evidence,
    judge,
    judge_rise,
    rank_correlation,
    verdict,
)
from minigpt.interpret.extract import ablate_heads, patch_attention
from minigpt.interpret.scores import clearness, divergence
from minigpt.model.kernels import SDPA

MIN_COST = 0.001
"""The smallest increase in loss, in nats, that counts as evidence that a head is needed."""


def attention_selects(evidence: Evidence) -> Answer:
    """Require the entropy to be at least a tenth below its maximum, and below that of the untrained heads."""
    entropy, uniform = evidence.scores("entropy")
    share = (entropy / uniform[:, None, None]).mean((1, 2))  # (N,)
    before = torch.stack([_entropy(seen.weights) for seen in evidence.untrained_activations]) / uniform
    measured = (
        f"mean entropy {fmt(entropy.mean())} nats, uniform {fmt(uniform.mean())}, "
        f"random weights {fmt((before * uniform).mean())}"
    )
    return Answer(judge(torch.minimum(0.9 - share, before - share)), measured)


def _entropy(weights: Tensor) -> Tensor:
    mean: Tensor = torch.special.entr(weights[:, :, 1:].double()).sum(-1).mean()
    return mean


def hard_attention_suffices(evidence: Evidence) -> Answer:
    """Let each query use only its strongest key. This is enough if it keeps 95% of what attention gains."""

    def strongest(layer: int, sdpa: SDPA) -> SDPA:
        def attend_to_one(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
            future = torch.full((q.size(2), k.size(2)), -math.inf, device=q.device).triu(1)
            key = (q @ k.mT + future).argmax(-1, keepdim=True)  # (B, H, T, 1)
            return v.gather(2, key.expand(-1, -1, -1, v.size(-1)))

        return attend_to_one

    shape, usual = evidence.loaded.config.model, evidence.losses()
    every_head = [(layer, head) for layer in range(shape.n_layer) for head in range(shape.n_head)]
    with patch_attention(evidence.model, strongest):
        hard = evidence.losses()
    with ablate_heads(evidence.model, every_head):
        none = evidence.losses()
    measured = (
        f"loss {fmt(hard.mean())} with the strongest key only, {fmt(usual.mean())} with all keys, "
        f"{fmt(none.mean())} without attention"
    )
    if judge(none - usual, MIN_DIFFERENCE) != SUPPORTED:
        return Answer(INCONCLUSIVE, f"{measured}: attention has no effect")
    return Answer(judge((none - hard) - 0.95 * (none - usual)), measured)


def heads_differ(evidence: Evidence) -> Answer:
    """Compare the Jensen-Shannon divergence between heads before and after training (0 if equal, at most 1)."""
    shape = evidence.loaded.config.model
    if shape.n_layer * shape.n_head < 2:
        return Answer(INCONCLUSIVE, "the model has only one head")
    after = torch.stack([_mean_divergence(seen.weights) for seen in evidence.activations])
    before = torch.stack([_mean_divergence(seen.weights) for seen in evidence.untrained_activations])
    measured = f"mean divergence {fmt(after.mean())}, random weights {fmt(before.mean())}"
    return Answer(judge(after - before, MIN_DIFFERENCE), measured)


def _mean_divergence(weights: Tensor) -> Tensor:
    between = divergence(weights)
    mean: Tensor = between.sum() / (len(between) * (len(between) - 1))
    return mean


def some_head_follows(pattern: str) -> Callable[[Evidence], Answer]:
    """Return a check for a head that follows a pattern (`clearness`)."""

    def check(evidence: Evidence) -> Answer:
        values, uniform = evidence.scores(pattern)  # (N, L, H), (N,)
        half = len(values) // 2
        if half == 0:
            return Answer(INCONCLUSIVE, "the validation split has only one window")
        lift = (values[:half] - uniform[:half, None, None]).nanmean(0)  # nan in windows without the pattern
        if lift.isnan().all():
            return Answer(INCONCLUSIVE, "the pattern does not occur in the windows")
        layer, head = divmod(int(lift.nan_to_num(-math.inf).argmax()), values.size(2))
        occurs = uniform[half:].isfinite()
        found, baseline = values[half:, layer, head][occurs], uniform[half:][occurs]
        measured = f"head {layer}.{head}: {fmt(found.mean())} of its attention, uniform {fmt(baseline.mean())}"
        judged = judge(clearness(found, baseline))
        return Answer(judged, measured, (Head(layer, head),))

    return check


def deeper_attends_further(evidence: Evidence) -> Answer:
    """Compare the mean distance of the layers. In 75% of all pairs of layers the deeper one must attend further back.

    The distance ignores the first token, because idle heads attend to it.
    """
    distance, uniform = evidence.scores("distance without first")
    layers = distance.nanmean(2)  # (N, L)
    measured = f"mean distance by layer: {fmt(layers.mean(0))} characters, uniform {fmt(uniform.mean())}"
    return Answer(judge_rise(layers), measured)


def deeper_leaves_the_line(evidence: Evidence) -> Answer:
    """Compare the share of attention before the current line. In 75% of all pairs of layers, it must rise with depth.

    Attention to the first character does not count. In `builtin:stories`, each sentence has its own line.
    """
    share, uniform = evidence.scores("outside line")
    if uniform.isnan().all():
        return Answer(INCONCLUSIVE, "the windows have only one line")
    layers = share.nanmean(2)  # (N, L)
    measured = f"share of attention outside the line, by layer: {fmt(layers.mean(0))}, uniform {fmt(uniform.mean())}"
    return Answer(judge_rise(layers), measured)


def every_head_helps(evidence: Evidence) -> Answer:
    """Remove one head at a time. Many heads are tested, so each test requires 99.9% confidence."""
    costs = evidence.costs.flatten(1)  # (N, L H)
    verdicts = [judge(cost, MIN_COST, 0.9995) for cost in costs.T]
    found = next((one for one in (NOT_SUPPORTED, INCONCLUSIVE) if one in verdicts), SUPPORTED)
    means = costs.mean(0)  # (L H,)
    more, less, undecided = (verdicts.count(one) for one in (SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE))
    measured = (
        f"of {len(means)} heads, {more} cost more than {MIN_COST} nats, {less} cost less, {undecided} are undecided; "
        f"costs range from {fmt(means.min())} to {fmt(means.max())}"
    )
    return Answer(found, measured)


def larger_outputs_matter_more(evidence: Evidence) -> Answer:
    """Correlate the size of a head's output with the cost of its removal, within each layer.

    The baseline is the same rank correlation with the heads of each layer shuffled.
    """
    sizes = torch.stack([(s.weights * s.output_norms[:, :, None]).sum(-1).mean(-1) for s in evidence.activations]).mean(
        0
    )
    found, shuffled = rank_correlation(sizes, evidence.costs.mean(0))  # of (L, H) each
    measured = f"rank correlation {fmt(found)} within layers; 95% of shuffles are below {fmt(shuffled)}"
    if math.isnan(found) or sizes.numel() < 6:
        return Answer(INCONCLUSIVE, measured)
    return Answer(verdict(found > shuffled, found < -shuffled), measured)
