"""The file itself: HTML with its style, its scripts and its data inside, and a policy that lets nothing else in."""

import base64
import hashlib
import html
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from minigpt.errors import shown
from minigpt.inside.page.views import shrunk

HERE = Path(__file__).parent
SCRIPTS = (
    *("data", "state", "colours", "text", "matrix", "overview", "tables", "predictions"),
    *("characters", "positions", "worked", "time", "keys", "main"),
)
"""In the order in which they are joined."""
TILE, GAP, MARGIN = 64, 4, 22
"""Pixels of a head, between heads, and for their numbers, in the picture for readers without scripts."""


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


def grid_png(weights: Tensor, layers: Sequence[int]) -> bytes:
    """Return weights (L, H, T, S) as a PNG of small squares, a row for each layer, the darker the larger."""
    small = shrunk(weights, TILE)
    L, H, n, _ = small.shape
    side = max(1, TILE // n) * n
    shades = 15 - np.rint(15 * np.sqrt(small.numpy())).astype(np.uint8)
    image = Image.new("P", (MARGIN + H * (side + GAP), MARGIN + L * (side + GAP)), 15)
    image.putpalette([channel for shade in range(16) for channel in (8 + 16 * shade, 48 + 13 * shade, 107 + 9 * shade)])
    draw = ImageDraw.Draw(image)
    for head in range(H):
        draw.text((MARGIN + head * (side + GAP), 6), str(head), 0)
    for layer in range(L):
        top = MARGIN + layer * (side + GAP)
        draw.text((6, top), str(layers[layer]), 0)
        for head in range(H):
            tile = Image.fromarray(shades[layer, head]).resize((side, side), Image.Resampling.NEAREST)
            image.paste(tile, (MARGIN + head * (side + GAP), top))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True, bits=4)
    return buffer.getvalue()


def _text(words: str) -> str:
    return html.escape(shown(words))


def _asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode("ascii")
