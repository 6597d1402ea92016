"""Readers for pages of the viewer: their elements, their data, and unpacked weights."""

import base64
import json
from html.parser import HTMLParser
from typing import Any

import numpy as np


class Elements(HTMLParser):
    """The tags of a page, and the content of its scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.contents: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.contents.append((tag, dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style"):
            tag, attributes, before = self.contents[-1]
            self.contents[-1] = (tag, attributes, before + data)

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", {}))


def page_json(page: str) -> str:
    """Return the JSON of a page as text."""
    (content,) = [content for _, attributes, content in Elements(page).contents if attributes.get("id") == "data"]
    return content


def page_data(page: str) -> Any:
    """Return the data of a page."""
    return json.loads(page_json(page))


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """Unpack a weight, as weights.js does."""
    kind = "<i1" if "scale" in packed else "<f4"
    values = np.frombuffer(base64.b64decode(packed["data"]), kind).reshape(packed["shape"]).astype(np.float32)
    return values * np.frombuffer(base64.b64decode(packed["scale"]), "<f4")[:, None] if "scale" in packed else values
