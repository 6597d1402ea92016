"""Put data, style and script into one HTML file. Its content security policy allows nothing else."""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from minigpt.errors import ViewError, escape

HERE = Path(__file__).parent


def assemble(
    data: Mapping[str, Any],
    *,
    title: str,
    summary: str,
    warnings: Sequence[str],
    letters: Sequence[str],
    selected: int,
    expected: str,
    image: bytes | None,
) -> str:
    """Return the page as HTML.

    Args:
        data: What the script reads.
        title: The name of the page.
        summary: A line that says what the page shows.
        warnings: Lines to show above the text.
        letters: The text, for browsers without JavaScript, as are the following.
        selected: The index of the letter to mark.
        expected: A sentence about what comes after it.
        image: A PNG of all heads.
    """
    style, script = asset("page.css"), asset("page.js")
    policy = (
        f"default-src 'none'; script-src '{hash_of(script)}'; style-src '{hash_of(style)}'; img-src data:; "
        "worker-src blob:; base-uri 'none'; form-action 'none'"
    )
    shown = [letter if letter == "\n" else _text(letter) for letter in letters]
    shown[selected] = f"<mark>{shown[selected]}</mark>"
    picture = (
        "<p>The attention of all heads: one row per layer, one column per head. In each square, rows are queries and "
        'columns are keys. Darker means more attention.</p>\n<img alt="Attention of all heads, one row per layer and '
        f'one column per head" src="data:image/png;base64,{base64.b64encode(image).decode("ascii")}">'
        if image
        else ""
    )
    return Template(asset("page.html")).substitute(
        policy=policy,
        title=_text(title),
        version=_text(str(data["version"])),
        summary=_text(summary),
        warnings="".join(f"<p>{_text(line)}</p>" for line in warnings),
        text="".join(shown),
        expected=_text(expected),
        picture=picture,
        style=style,
        data=embed_json(data),
        script=script,
    )


def embed_json(data: Mapping[str, Any]) -> str:
    """Return `data` as ASCII JSON that cannot close its script element or open another.

    Raises:
        ViewError: A number is not finite.
    """
    try:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise ViewError("the page cannot show a model that computes numbers that are not finite") from error
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _text(text: str) -> str:
    return html.escape(escape(text))


def asset(name: str) -> str:
    """Return the content of a file beside this module."""
    return (HERE / name).read_text(encoding="utf-8")


def hash_of(content: str) -> str:
    """Return the hash by which a content security policy allows a script or a style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode("ascii")
