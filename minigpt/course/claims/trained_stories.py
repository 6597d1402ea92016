"""Questions about the heads of a model that was trained on `builtin:stories`.

There the text shows what a head must look for: a repeated name or word, and whom a pronoun means. As in
`trained_heads.py`, half of the windows select a head, and the other half measure it. These are the first windows with
links of both kinds.
"""

import torch
from torch import Tensor

from minigpt.course.claims.claim import Head, fmt
from minigpt.course.claims.evidence import INCONCLUSIVE, NOT_APPLICABLE, NOT_SUPPORTED, Answer, Evidence, judge
from minigpt.interpret.links import is_on_stories
from minigpt.interpret.scores import MIN_MARGIN

ELSEWHERE = Answer(NOT_APPLICABLE, "this run was not trained on builtin:stories")
TOO_SHORT = Answer(INCONCLUSIVE, "fewer than two windows of the validation split have links")
LEARNED = 0.5
"""A model has learned a kind of link if it gives the character at its end at least this mean probability."""
PRONOUN_TEXTS = {
    "he": 'Anna has a red kite. Jakob has a new boat. He says: "I am ',
    "she": 'Jakob has a new boat. Anna has a red kite. She says: "I am ',
}


def some_head_copies(evidence: Evidence) -> Answer:
    """Look for a head that finds what comes next in an invented word. It must exceed uniform attention by 0.15."""
    if not is_on_stories(evidence.loaded.config.data):
        return ELSEWHERE
    if len(evidence.linked_windows) < 2:
        return TOO_SHORT
    now, then, uniform = evidence.link_scores("copy")
    _, answer = _best_head(now, then, uniform, uniform[:, None, None].expand_as(now), "of its attention")
    return _if_learned(evidence, "copy", answer)


def some_head_links(evidence: Evidence) -> Answer:
    """Look for a head that finds the name of the person whom He, or She, means.

    After `He says: "I am `, the name of the boy is next. The head must attend to his earlier names there, 0.15 more
    than uniform attention, and 0.15 more than to the girl's names. A head that follows one of the two pronouns is
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
        lead, answer = _best_head(now, then, uniform, other, of, "on the other name", text)
        found.append((lead, _if_learned(evidence, pronoun, answer)))
    _, best = max(found, key=lambda pair: pair[0])
    answers = [answer for _, answer in found if answer.heads]
    if not answers:
        return TOO_SHORT
    lines = [f"{one.measured} ({one.verdict})" if one.verdict != best.verdict else one.measured for one in answers]
    return Answer(best.verdict, "\n".join(lines), tuple(head for one in answers for head in one.heads))


def _if_learned(evidence: Evidence, kind: str, answer: Answer) -> Answer:
    """Return the answer. If no head follows the links, and the model has not learned them, it needs more training."""
    if answer.verdict != NOT_SUPPORTED or (probability := evidence.link_probability(kind)) >= LEARNED:
        return answer
    needs = f"the model gives the right character a probability of {fmt(probability)}, so it needs more training"
    return Answer(INCONCLUSIVE, f"{answer.measured}; {needs}", answer.heads)


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
    verdict = judge(found - torch.maximum(other, uniform[half:]) - MIN_MARGIN)
    return lead.max().item(), Answer(verdict, measured, (Head(layer, head, text),))
