"""The one exception that is meant for people, and the helpers that keep a message short, useful and harmless."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import subprocess
from collections.abc import Iterable

_DRIVES_A_TERMINAL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters, separators of lines, and those that turn the direction of what follows."""


class UserError(Exception):
    """One line for the person at the keyboard: what is wrong, where, and what to do.

    The command line prints it to stderr and exits 1. What no user can cause is an assert instead.
    """


def shown(name: object) -> str:
    """`name` fit for a one-line message: line breaks and other unprintable characters are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(name))


def quoted(name: str) -> str:
    """Return `name` as this system's shell reads it back in one piece."""
    return subprocess.list2cmdline([name]) if os.name == "nt" else shlex.quote(name)


def visible(text: str) -> str:
    """Return `text` with nothing in it that drives a terminal: control characters as \\u001b, also in JSON.

    Line ends and tabs stay, and so does all that is written from right to left by itself.
    """
    return _DRIVES_A_TERMINAL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def reason(error: Exception) -> str:
    """Why `error` happened, in one line; the system's own words where it has some."""
    return shown(getattr(error, "strerror", None) or str(error) or type(error).__name__)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """`"; did you mean NAME?"` for the name nearest to `word`, or an empty string when none is near."""
    near = difflib.get_close_matches(word, list(names), n=1, cutoff=0.6)
    return f"; did you mean {shown(near[0])}?" if near else ""
