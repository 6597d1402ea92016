"""Questions about the heads of a model that was trained on `builtin:stories`.

There the text shows what a head must look for: a repeated name or word, and whom a pronoun means. As in
`trained_heads.py`, half of the windows select a head, and the other half measure it. These are the first windows with
links of both kinds.
"""

import torch
from torch import Tensor

from minigpt.course.claims.claim import Head, fmt
from minigpt.course.claims.evidence import INCONCLUSIVE, NOT_APPLICABLE, Answer, Evidence, judge
from minigpt.interpret.links import is_on_stories
from minigpt.interpret.scores import clearness

ELSEWHERE = Answer(NOT_APPLICABLE, "this run was not trained on builtin:stories")
TOO_SHORT = Answer(INCONCLUSIVE, "fewer than two windows of the validation split have links")
PRONOUN_TEXTS = {
    "he": 'Anna has a red kite. Jakob has a new boat. He says: "I am ',
    "she": 'Jakob has a new boat. Anna has a red kite. She says: "I am ',
}


def some_head_copies(evidence: Evidence) -> Answer:
    """Look for a head that finds what comes next in an invented word (`clearness`)."""
    if not is_on_stories(evidence.loaded.config.data):
        return ELSEWHERE
    if len(evidence.linked_windows) < 2:
        return TOO_SHORT
    now, then, uniform = evidence.link_scores("copy")
    return _best_head(now, then, uniform, uniform[:, None, None].expand_as(now), "of its attention")[1]


def some_head_links(evidence: Evidence) -> Answer:
    """Look for a head that finds the name of the person whom He, or She, means.

    After `He says: "I am `, the name of the boy is next. The head must follow his earlier names there (`clearness`),
    against uniform attention and against the girl's names. A head that follows one of the two pronouns is
    enough. Each pronoun has its own head, or both have the same one.
    """
    if not is_on_stories(evidence.loaded.config.data):
        return ELSEWHERE
    if len(evidence.linked_windows) < 2:
        return TOO_SHORT
    found = []
    for pronoun, text in PRONOUN_TEXTS.items():
        now, then, uniform = evidence.link_scores(pronoun)
        other, _, _ = evidence.link_scores(f"not {pronoun}")
        of = f"of its attention on the name that {pronoun.title()} means"
        found.append(_best_head(now, then, uniform, other, of, "on the other name", text))
    _, best = max(found, key=lambda pair: pair[0])
    answers = [answer for _, answer in found if answer.heads]
    if not answers:
        return TOO_SHORT
    lines = [f"{one.measured} ({one.verdict})" if one.verdict != best.verdict else one.measured for one in answers]
    return Answer(best.verdict, "\n".join(lines), tuple(head for one in answers for head in one.heads))


def _best_head(
    now: Tensor, then: Tensor, uniform: Tensor, rival: Tensor, of: str, on: str = "", text: str | None = None
) -> tuple[float, Answer]:
    """Judge the head that is furthest above its rival scores, (N, L, H) each. Windows without the link are NaN.

    Returns:
        How far it is above them in the windows that select it, and the answer, measured on the other windows.
    """
    occurs = uniform.isfinite()
    now, then, uniform, rival = now[occurs], then[occurs], uniform[occurs], rival[occurs]
    half = len(now) // 2
    if half == 0:
        return -1.0, TOO_SHORT
    lead = (now - rival)[:half].mean(0)
    layer, head = divmod(int(lead.argmax()), now.size(2))
    found, before, other = (scores[half:, layer, head] for scores in (now, then, rival))
    measured = f"head {layer}.{head}: {fmt(found.mean())} {of}, " + (f"{fmt(other.mean())} {on}, " if on else "")
    measured += f"uniform {fmt(uniform[half:].mean())}, random weights {fmt(before.mean())}"
    verdict = judge(clearness(found, torch.maximum(other, uniform[half:])))
    return lead.max().item(), Answer(verdict, measured, (Head(layer, head, text),))
