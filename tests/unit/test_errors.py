"""Errors: one harmless line each, typed, and without the syntax of the command line."""

import ast
import re
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import minigpt
from minigpt.cli.app import app
from minigpt.errors import count, did_you_mean, escape, reason, sanitize_terminal

CORE = [path for path in Path(minigpt.__file__).parent.rglob("*.py") if not {"cli", "node_modules"} & set(path.parts)]
COMMANDS: Any = typer.main.get_command(app)


def syntax(command: Any) -> Iterator[str]:
    """Yield the long options of a command and its subcommands."""
    yield from (option for param in command.params for option in param.opts if option.startswith("--"))
    for below in getattr(command, "commands", {}).values():
        yield from syntax(below)


COMMAND_LINE = re.compile(
    rf"(?<![\w-])({'|'.join(map(re.escape, syntax(COMMANDS)))})(?![\w-])|\bminigpt ({'|'.join(COMMANDS.commands)})\b"
)


def strings(source: str) -> Iterator[ast.Constant]:
    """Yield the strings of a module except docstrings."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node


def test_one_thing_is_singular() -> None:
    assert [count(number, "token") for number in (0, 1, 2, 2000)] == ["0 tokens", "1 token", "2 tokens", "2,000 tokens"]


def test_only_the_command_line_knows_its_syntax() -> None:
    """A Python user of `load_checkpoint` must not read "--checkpoint"; `cli/hints.py` adds what to type."""
    found = [
        f"{path.name}:{node.lineno}: {node.value}"
        for path in CORE
        if path.name != "aliases.py"  # a table for the command line
        for node in strings(path.read_text(encoding="utf-8"))
        if COMMAND_LINE.search(node.value)
    ]
    assert not found


CHARACTERS = [chr(number) for number in (*range(0x3100), *range(0x3100, sys.maxunicode + 1, 97))]
"""All characters of alphabets and controls, and some of the others."""


def test_escape_leaves_one_printable_line() -> None:
    for char in CHARACTERS:
        text = escape(char)
        assert text == char if char.isprintable() else (text.isascii() and text.isprintable()), hex(ord(char))
    assert escape("a\nb\x1b[31m\u202ec\x85\ud800") == r"a\nb\x1b[31m\u202ec\x85\ud800"
    assert escape(ValueError("x\ty")) == r"x\ty"


def test_sanitize_terminal_escapes_controls_line_separators_and_direction_changes() -> None:
    for char in CHARACTERS:
        number = ord(char)
        is_control = (
            (unicodedata.category(char) == "Cc" and char not in "\n\t")
            or unicodedata.category(char) in ("Zl", "Zp")
            or unicodedata.bidirectional(char) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
            or char in "\u061c\u200e\u200f"  # marks of a direction
            or 0x206A <= number <= 0x206F  # deprecated, and still obeyed by some terminals
        )
        assert sanitize_terminal(char) == (f"\\u{number:04x}" if is_control else char), hex(number)


def test_a_reason_is_one_line() -> None:
    assert reason(OSError(28, "No space left on device")) == "No space left on device"
    assert reason(ValueError("two\nlines")) == r"two\nlines"
    assert reason(KeyError()) == "KeyError"


def test_a_similar_name_is_suggested_and_escaped() -> None:
    assert did_you_mean("shakespaere", ["shakespeare", "tiny"]) == "; did you mean shakespeare?"
    assert did_you_mean("xyz", ["shakespeare"]) == ""
    assert did_you_mean("loop", ["loop"]) == "", "a name is no suggestion for itself"
    assert did_you_mean("abcde", ["abcd\n"]) == r"; did you mean abcd\n?"
