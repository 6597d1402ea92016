"""Put data, styles and scripts into one HTML file. Its content security policy allows nothing else."""

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
SCRIPTS = (
    *("data", "state", "controls", "canvas"),
    *("text", "overview", "matrix", "heads", "distance", "worked", "predictions"),
    *("characters", "positions", "ablation", "training", "compare", "keys", "main"),
)
"""The scripts, in the order in which the page joins them. Tabs appear in the same order."""


def assemble(
    data: Mapping[str, Any], image: bytes, title: str, version: str, facts: Mapping[str, str], warnings: Sequence[str]
) -> str:
    """Return the page as HTML. Browsers without JavaScript show `image`, a PNG of all heads."""
    style = _asset("page.css")
    script = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    items = (f"<div><dt>{_text(name)}</dt><dd><bdi>{_text(value)}</bdi></dd></div>" for name, value in facts.items())
    return Template(_asset("page.html")).substitute(
        policy=policy,
        title=_text(title),
        version=_text(version),
        facts="".join(items),
        warnings="".join(f'<p class="warning">{_text(line)}</p>' for line in warnings),
        image=base64.b64encode(image).decode("ascii"),
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


def _asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode("ascii")
