"""Questions about the heads of a model that was trained on `builtin:stories`.

There the text shows what a head must look for: a repeated name or word, and whom a pronoun means. As in
`trained_heads.py`, half of the windows select a head, and the other half measure it. These are the first windows with
both kinds of links.
"""

import torch
from torch import Tensor

from minigpt.claims.claim import fmt
from minigpt.claims.evidence import INCONCLUSIVE, NOT_APPLICABLE, Evidence, judge
from minigpt.interpret.scores import MIN_MARGIN

ELSEWHERE = NOT_APPLICABLE, "this run was not trained on builtin:stories"
TOO_SHORT = INCONCLUSIVE, "fewer than two windows of the validation split have links"


def some_head_copies(evidence: Evidence) -> tuple[str, str]:
    """Look for a head that finds what comes next in an invented word. It must exceed uniform attention by 0.15."""
    if not evidence.is_on_stories:
        return ELSEWHERE
    if len(evidence.linked_windows) < 2:
        return TOO_SHORT
    now, then, uniform = evidence.link_scores("copy")
    return _best_head(now, then, uniform, uniform[:, None, None].expand_as(now), "of its attention")


def some_head_links(evidence: Evidence) -> tuple[str, str]:
    """Look for a head that finds the name of the person that a pronoun means.

    After `He says: "I am `, the name of the boy is next. The head must attend to his earlier names there, 0.15 more
    than uniform attention, and 0.15 more than to the girl's names.
    """
    if not evidence.is_on_stories:
        return ELSEWHERE
    if len(evidence.linked_windows) < 2:
        return TOO_SHORT
    now, then, uniform = evidence.link_scores("pronoun")
    other, _, _ = evidence.link_scores("other person")
    return _best_head(now, then, uniform, other, "of its attention on the right name", "on the other name")


def _best_head(now: Tensor, then: Tensor, uniform: Tensor, rival: Tensor, of: str, on: str = "") -> tuple[str, str]:
    """Judge the head that is furthest above its rival scores, (N, L, H) each."""
    half = len(now) // 2
    layer, head = divmod(int((now - rival)[:half].mean(0).argmax()), now.size(2))
    found, before, other = (scores[half:, layer, head] for scores in (now, then, rival))
    measured = f"head {layer}.{head}: {fmt(found.mean())} {of}, " + (f"{fmt(other.mean())} {on}, " if on else "")
    measured += f"uniform {fmt(uniform[half:].mean())}, before training {fmt(before.mean())}"
    return judge(found - torch.maximum(other, uniform[half:]) - MIN_MARGIN), measured
