"""Put data, style and script into one HTML file. Its content security policy forbids connections."""

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from minigpt.errors import ViewError, escape

HERE = Path(__file__).parent


def assemble(data: Mapping[str, Any], title: str) -> str:
    """Return the page as HTML. The script reads `data`."""
    style, script = asset("page.css"), asset("page.js")
    policy = (
        f"default-src 'none'; script-src '{hash_of(script)}'; style-src '{hash_of(style)}'; img-src data:; "
        "worker-src blob:; base-uri 'none'; form-action 'none'"
    )
    return Template(asset("page.html")).substitute(
        policy=policy,
        title=html.escape(escape(title)),
        version=html.escape(data["version"]),
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


def asset(name: str) -> str:
    """Return the content of a file beside this module."""
    return (HERE / name).read_text(encoding="utf-8")


def hash_of(content: str) -> str:
    """Return the hash by which a content security policy allows a script or a style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode("ascii")
