"""The file itself: HTML with its style, its scripts and its data inside, and a policy that lets nothing else in."""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from minigpt.errors import escape

HERE = Path(__file__).parent
SCRIPTS = (
    *("data", "state", "colours", "text", "matrix", "overview", "tables", "predictions"),
    *("characters", "positions", "worked", "time", "keys", "main"),
)
"""In the order in which they are joined."""


def assemble(
    data: Mapping[str, Any], picture: bytes, title: str, version: str, facts: Mapping[str, str], warnings: Sequence[str]
) -> str:
    """Return the page for `data`, with a PNG of all heads for where scripts do not run."""
    style = _asset("page.css")
    script = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    said = (f"<div><dt>{_text(name)}</dt><dd><bdi>{_text(value)}</bdi></dd></div>" for name, value in facts.items())
    return Template(_asset("page.html")).substitute(
        policy=policy,
        title=_text(title),
        version=_text(version),
        facts="".join(said),
        warnings="".join(f'<p class="warning">{_text(line)}</p>' for line in warnings),
        picture=base64.b64encode(picture).decode("ascii"),
        style=style,
        data=embedded(data),
        script=script,
    )


def embedded(data: Mapping[str, Any]) -> str:
    """Return JSON in ASCII that is safe between script tags: none of its characters can end or open one."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _text(words: str) -> str:
    return html.escape(escape(words))


def _asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode("ascii")
