"""All claims, by theme, and the function that checks them.

If a claim is about minigpt's own model, its check uses that model and so also tests it. If the model has no option for
something, such as attention without a mask, the check builds it. Recorded runs of the lab notebook decide claims that
depend on training.
"""

from collections.abc import Collection
from types import ModuleType

import torch

from minigpt.course.claims import blocks, formula, heads, positions, recurrence
from minigpt.course.claims.claim import Claim, Result, decide

THEMES = (formula, heads, positions, recurrence, blocks)
"""The modules with claims, in reading order. Each file starts with its title and an introduction."""
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
