"""Questions about the embeddings and the residual stream of a trained model."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.course.claims.claim import fmt
from minigpt.course.claims.evidence import (
    INCONCLUSIVE,
    MIN_DIFFERENCE,
    NOT_APPLICABLE,
    SHUFFLES,
    Answer,
    Evidence,
    judge,
    kendall_tau,
    verdict,
)
from minigpt.interpret.excerpt import characters
from minigpt.interpret.extract import Activations, capture_residual, logit_lens
from minigpt.model.gpt import GPT
from minigpt.seeds import mix_seed
from minigpt.text.tokenizer import Ids

SHORT_CONTEXT = 16
"""The number of tokens in a short context."""


def embeddings_learn(evidence: Evidence) -> Answer:
    """Measure how far training moved the embeddings of the tokens in the windows.

    Weight decay alone also changes an embedding, but not its direction. So only the part orthogonal to the initial
    embedding counts.
    """
    if evidence.loaded.metadata.origin or evidence.loaded.metadata.imported:
        return Answer(NOT_APPLICABLE, "this run did not start from random weights")
    ids = torch.cat([seen.ids for seen in evidence.activations]).unique()
    models = (evidence.model, evidence.untrained_model)
    now, then = (model.token_embedding.weight.detach().cpu()[ids] for model in models)
    moved = (now - then).norm(dim=-1) / then.norm(dim=-1)  # (tokens,)
    cosine = F.cosine_similarity(now, then, dim=-1)
    measured = (
        f"moved by {fmt(moved.mean())} times their initial length; cosine to the initial embedding {fmt(cosine.mean())}"
    )
    direction = F.normalize(then, dim=-1)
    turned = (now - (now * direction).sum(-1, keepdim=True) * direction).norm(dim=-1) / then.norm(dim=-1)
    return Answer(verdict(turned.quantile(0.05) > 0.1, turned.max() < 0.1), measured)


def vectors_become_contextual(evidence: Evidence) -> Answer:
    """Compare the cosine between two positions of the same token before the first block and after the last."""
    cosines = torch.tensor([_cosine_of_equal_tokens(seen) for seen in evidence.activations])  # (N, L + 1)
    measured = f"cosine between equal tokens, by layer: {fmt(cosines.mean(0))}"
    return Answer(judge(cosines[:, 0] - cosines[:, -1], MIN_DIFFERENCE), measured)


def _cosine_of_equal_tokens(seen: Activations) -> list[float]:
    pairs = (seen.ids[:, None] == seen.ids).triu(1)  # (T, T)
    units = F.normalize(seen.residual, dim=-1)  # (L + 1, T, C)
    return [(layer @ layer.T)[pairs].mean().item() for layer in units]


def embeddings_group_characters(evidence: Evidence) -> Answer:
    """Compare cosines within and between the groups of ASCII vowels, consonants and capitals.

    The baseline is shuffled letters. Capitals are also rare, and rare characters may be similar for that reason alone.
    """
    signs = characters(evidence.loaded.tokenizer, np.arange(evidence.loaded.tokenizer.vocab_size, dtype=np.uint32))
    group = torch.tensor([_group(sign) for sign in signs])
    letters = group >= 0
    units = F.normalize(evidence.model.token_embedding.weight.detach().cpu()[letters], dim=-1)
    group, cosine = group[letters], units @ units.T
    if len(group) < 10 or group.unique().numel() < 2:
        return Answer(INCONCLUSIVE, "the vocabulary has too few letters or only one group of them")

    def gap(group: Tensor) -> float:
        same = (group[:, None] == group).fill_diagonal_(False)
        other = group[:, None] != group
        return (cosine[same].mean() - cosine[other].mean()).item()

    generator = torch.Generator().manual_seed(mix_seed("claim", "kinds"))
    shuffled = [gap(group[torch.randperm(len(group), generator=generator)]) for _ in range(SHUFFLES)]
    found, limit = gap(group), float(np.quantile(shuffled, 0.99))
    measured = f"the mean cosine is {fmt(found)} higher within groups; 99% of shuffles are below {fmt(limit)}"
    return Answer(verdict(found > limit, found < 0), measured)


def _group(sign: str) -> int:
    if len(sign) != 1 or not (sign.isascii() and sign.isalpha()):
        return -1
    return 2 if sign.isupper() else int(sign in "aeiou")


def residual_gains_information(evidence: Evidence) -> Answer:
    """Predict from the residual stream after each block (the logit lens). The loss must fall with depth."""
    losses = torch.stack([_lens_losses(evidence.model, seen) for seen in evidence.activations])  # (N, L + 1)
    measured = f"loss by layer: {fmt(losses.mean(0))}"
    gain = losses[:, 0] - losses[:, -1] - MIN_DIFFERENCE
    return Answer(judge(torch.minimum(kendall_tau(-losses) - 0.5, gain)), measured)


def _lens_losses(model: GPT, seen: Activations) -> Tensor:
    logits = logit_lens(model, seen.residual)[:, :-1]  # (L + 1, T - 1, V)
    return torch.stack([F.cross_entropy(layer, seen.ids[1:]) for layer in logits])


def layers_add_context(evidence: Evidence) -> Answer:
    """Measure what a long context gains after each layer: loss with a short context minus loss with the full one."""
    length = len(evidence.windows[0])
    if length < 2 * SHORT_CONTEXT:
        return Answer(INCONCLUSIVE, f"a window has {length} tokens; {2 * SHORT_CONTEXT} are needed")
    gains = torch.stack([context_gain(evidence.model, window) for window in evidence.windows])[:, 1:]  # (N, L)
    measured = f"gain from context beyond {SHORT_CONTEXT} tokens, by layer: {fmt(gains.mean(0))} nats"
    if gains.size(1) < 2:
        return Answer(INCONCLUSIVE, measured)
    return Answer(judge(torch.minimum(kendall_tau(gains) - 0.5, gains[:, -1] - gains[:, 0] - MIN_DIFFERENCE)), measured)


@torch.no_grad()
def context_gain(model: GPT, window: Ids) -> Tensor:
    """Return the loss with a short context minus the loss with the full context, by layer, (L + 1), in nats.

    Both losses are measured on the second half of the window.
    """
    ids = torch.from_numpy(window.astype(np.int64)).to(model.token_embedding.weight.device)
    half = len(ids) // 2
    short = ids.unfold(0, SHORT_CONTEXT, 1)[half - SHORT_CONTEXT : -1]  # (targets, SHORT_CONTEXT)
    losses = []
    for batch in (short, ids[None, :-1]):
        with capture_residual(model) as residual:
            model(batch)
        points = torch.stack(residual)  # (L + 1, B, T, C)
        last = points[:, :, -1] if len(batch) > 1 else points[:, 0, half - 1 :]  # (L + 1, targets, C)
        logits = logit_lens(model, last)
        losses.append(torch.stack([F.cross_entropy(layer, ids[half:].cpu()) for layer in logits]))
    return losses[0] - losses[1]
