"""Lecture notes on attention as checks that anyone can run: no training, no checkpoint, a few seconds.

Five sets of lecture notes started this project. Each of their claims that can be decided by a computation stands
here with the computation, and where the notes are wrong, with what is right instead. The files are meant to be
read, in this order, and each begins with what its claims are about:

    similarity_and_softmax   the formula: product, scale, softmax, weighted sum
    projections              where queries, keys and values come from
    heads                    several of them at once
    mask                     why a GPT cannot see the future
    positions                how it knows what comes first
    recurrence               what it replaced, and why
    embeddings_and_blocks    what stands around it

A check computes with minigpt's own model where the claim is about it, so that the claims also say whether this
model is what it says it is. What the model has no switch for, such as attention without a mask, is written out
beside the claim. What only a trained model can tell is asked in trained.py.
"""

import torch

from minigpt.claims import (
    embeddings_and_blocks,
    heads,
    mask,
    positions,
    projections,
    recurrence,
    similarity_and_softmax,
)
from minigpt.claims.claim import Claim, Finding, Result, decide

__all__ = ["CLAIMS", "THEMES", "Claim", "Finding", "Result", "run_claims"]

THEMES = (similarity_and_softmax, projections, heads, mask, positions, recurrence, embeddings_and_blocks)
"""The files of claims, in the order in which they explain each other."""
CLAIMS: tuple[Claim, ...] = tuple(claim for theme in THEMES for claim in theme.CLAIMS)
"""All claims, in that order."""


def run_claims() -> list[Result]:
    """Decide all claims, and return their results in the order of their numbers.

    The results are the same each time. torch's random numbers, threads and modes are left as they were found.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums in one order whatever the machine; these matrices are too small to share
    try:
        with torch.inference_mode(False), torch.enable_grad():
            return [decide(claim) for claim in sorted(CLAIMS, key=lambda claim: claim.id)]
    finally:
        torch.set_num_threads(threads)
