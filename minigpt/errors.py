"""The one exception that is meant for people, and the two helpers that keep its message short and useful."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """One line for the person at the keyboard: what is wrong, where, and what to do.

    The command line prints it to stderr and exits 1. What no user can cause is an assert instead.
    """


def shown(name: object) -> str:
    """`name` fit for a one-line message: line breaks and other unprintable characters are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(name))


def reason(error: Exception) -> str:
    """Why `error` happened, in one line; the system's own words where it has some."""
    return shown(getattr(error, "strerror", None) or str(error) or type(error).__name__)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """`"; did you mean NAME?"` for the name nearest to `word`, or an empty string when none is near."""
    near = difflib.get_close_matches(word, list(names), n=1, cutoff=0.6)
    return f"; did you mean {shown(near[0])}?" if near else ""
