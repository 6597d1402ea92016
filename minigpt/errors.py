"""Errors to show to a user. Each says what is wrong; `cli/hints.py` may add what to type next."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_TERMINAL_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f]")
"""Control characters but tab and newline, line separators, and characters that change the text direction."""


@dataclass(eq=False)
class UserError(Exception):
    """An error to show to a user. The command line prints it, perhaps with a hint, and exits with code 1."""

    problem: str
    """What is wrong. Only a ConfigError may have several lines."""

    def __str__(self) -> str:
        return self.problem


@dataclass(eq=False)
class ConfigError(UserError):
    """Settings that are unknown, invalid or contradictory. `resolve` gives each problem its own line."""

    wrong: Mapping[str, str] = field(default_factory=dict)
    """The problem with each wrong setting, by its key. The problem begins with the key."""


class TextError(UserError):
    """A text that cannot be found, read or used."""


@dataclass(eq=False)
class TextNotFoundError(TextError):
    """No text has this name."""

    name: str
    has_similar: bool = False


@dataclass(eq=False)
class EncodingError(TextError):
    """Bytes that are not valid in a text's encoding."""

    suggestion: str = ""


class UnknownCharacterError(TextError):
    """Characters outside the vocabulary of a model."""


@dataclass(eq=False)
class DownloadError(TextError):
    """A download that failed."""

    destination: Path | None = None
    """Where minigpt looks for the file if the user downloads it manually."""


@dataclass(eq=False)
class TextMismatchError(TextError):
    """The text of a run is missing, or differs from the text that the run was trained on."""

    checkpoint: Path | None = None


@dataclass(eq=False)
class RunNotFoundError(UserError):
    """No run has this name."""

    names: tuple[str, ...] = ()
    """The names of the newest runs."""
    name: str = ""

    def __str__(self) -> str:  # for Python: the command line may have a better hint
        return f"{self.problem}; available runs: {', '.join(map(escape, self.names))}" if self.names else self.problem


@dataclass(eq=False)
class RunExistsError(UserError):
    """A run with this name already exists."""

    run: Path
    is_resumable: bool = False


class RunLockedError(UserError):
    """Another process has locked this run."""


@dataclass(eq=False)
class FilmError(UserError):
    """A film of a reader's GPT that minigpt cannot reproduce or measure."""

    run: Path | None = None
    """The run that minigpt has made of the film."""


@dataclass(eq=False)
class RunFinishedError(UserError):
    """The run has reached its last step or stopped early."""

    run: Path
    settings: tuple[str, ...] = ()
    """Settings, as KEY=VALUE, that allow the run to be resumed."""


@dataclass(eq=False)
class CheckpointError(UserError):
    """A checkpoint that is missing, damaged or incompatible."""

    run: Path | None = None
    """The run of a damaged checkpoint. The run may have intact checkpoints."""


@dataclass(eq=False)
class TrainingError(UserError):
    """A run that had to stop."""

    run: Path
    saved_step: int | None = None
    """Step of the newest checkpoint, from which the run can be resumed."""
    settings: tuple[str, ...] = ()
    """Settings, as KEY=VALUE, that may avoid the problem."""


class DivergedError(TrainingError):
    """A run whose loss, gradients or weights are not finite."""


class LostProcessError(TrainingError):
    """Another process of the run has exited or stopped responding."""


class OtherProcessError(UserError):
    """Another process of the run has failed. That process prints the problem."""


class DeviceError(UserError):
    """A device that is not available."""


@dataclass(eq=False)
class InsufficientMemoryError(UserError):
    """A model or batch that does not fit in memory."""

    settings: tuple[str, ...] = ()
    """Settings, as KEY=VALUE, that may make the run fit."""


@dataclass(eq=False)
class NoAttentionError(UserError):
    """A recurrent network, where a transformer is needed."""

    checkpoint: Path


class NoCounterpartError(UserError):
    """A model that another program's format cannot express."""


@dataclass(eq=False)
class NoOptimizerError(UserError):
    """An imported run, which cannot be resumed."""

    run: Path


class ViewError(UserError):
    """A page that cannot show a model."""


def escape(name: object) -> str:
    """Escape line breaks and other unprintable characters in `name`, for a one-line message."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(name))


def sanitize_terminal(text: str) -> str:
    """Escape terminal control characters in `text` in the form \\u001b. Keep newlines and tabs."""
    return _TERMINAL_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def reason(error: Exception) -> str:
    """Return a one-line reason for `error`: the operating system's message if there is one."""
    return escape(getattr(error, "strerror", None) or str(error) or type(error).__name__)


def count(number: int, noun: str) -> str:
    """Return a number and its noun, such as "1 file" or "2,000 files"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return `"; did you mean NAME?"` for the other name most similar to `word`, or an empty string.

    `word` may omit the part of a name before its last dot or colon.
    """
    endings = {part: name for name in names if name != word for part in (re.split("[.:]", name)[-1], name)}
    near = difflib.get_close_matches(word, endings, n=1, cutoff=0.75)
    return f"; did you mean {escape(endings[near[0]])}?" if near else ""
