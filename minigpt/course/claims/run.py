"""The claims, and the function that checks them.

Read the themes in this order. Each file starts with an introduction to its claims:

    similarity_and_softmax   the formula: dot product, scale, softmax, weighted sum
    projections              how queries, keys and values are computed
    by_hand                  the whole formula with numbers
    heads                    several attention heads in parallel
    mask                     why a GPT cannot see the future
    positions                how a transformer knows the order of its tokens
    recurrence               the networks that attention replaced
    embeddings_and_blocks    the layers around attention

If a claim is about minigpt's own model, its check uses that model and so also tests it. If the model has no option for
something, such as attention without a mask, the check builds it. Some claims depend on training: recorded runs of the
lab notebook decide them. The questions in `trained.py` need a trained run of the user.
"""

from collections.abc import Collection
from types import ModuleType

import torch

from minigpt.course.claims import (
    by_hand,
    embeddings_and_blocks,
    heads,
    mask,
    positions,
    projections,
    recurrence,
    similarity_and_softmax,
)
from minigpt.course.claims.claim import Claim, Result, decide

THEMES = (similarity_and_softmax, projections, by_hand, heads, mask, positions, recurrence, embeddings_and_blocks)
"""The modules with claims, in reading order."""
CLAIMS: tuple[Claim, ...] = tuple(claim for theme in THEMES for claim in theme.CLAIMS)
"""All claims, in reading order."""


def run_claims(only: Collection[str] = ()) -> list[Result]:
    """Check all claims, or those whose numbers are in `only`. Return the results in reading order.

    The results are deterministic. torch's random state, thread count and gradient modes are restored on return.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same order of summation on every machine
    try:
        with torch.inference_mode(False), torch.enable_grad():
            return [
                decide(claim, title(theme))
                for theme in THEMES
                for claim in theme.CLAIMS
                if not only or str(claim.id) in only
            ]
    finally:
        torch.set_num_threads(threads)


def title(theme: ModuleType) -> str:
    """Return the title of a theme: the first line of its docstring."""
    return str(theme.__doc__).splitlines()[0].rstrip(".")
