"""Named downloads: fetch a file once, check its size and hash, and keep it in the cache."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import yaml

from minigpt.errors import DownloadError, did_you_mean, reason
from minigpt.paths import cache_folder, resource_path
from minigpt.text.cache import cached_file

CHUNK = 1 << 20
TIMEOUT = 30.0
"""Seconds to wait for each response from the server."""


@dataclass(frozen=True)
class Download:
    """An entry of data/registry.yaml."""

    name: str
    description: str
    url: str
    bytes: int
    """Size of the file at `url`, in bytes."""
    sha256: str
    license: str
    encoding: str = "utf-8"
    member: str = ""
    """The name of the text in the zip archive, if the file is one."""

    @property
    def path(self) -> Path:
        """The path of the file in the cache."""
        return cache_folder() / "downloads" / (self.name + PurePosixPath(urlsplit(self.url).path).suffix)

    @property
    def is_cached(self) -> bool:
        """True if the file is in the cache and intact."""
        digest = hashlib.sha256()
        try:
            with open(self.path, "rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
        except OSError:
            return False
        return digest.hexdigest() == self.sha256


def downloads() -> dict[str, Download]:
    """Return the known downloads by name."""
    registry = yaml.safe_load(resource_path("data", "registry.yaml").read_text(encoding="utf-8"))
    return {name: Download(name=name, **entry) for name, entry in registry.items()}


def download(name: str) -> Path:
    """Return the path of a named download. Fetch it on first use, or if it is damaged."""
    from tqdm import tqdm  # imported here, so that `minigpt sample` need not import it

    items = downloads()
    if name not in items:
        raise DownloadError(f"no download is named {name!r}{did_you_mean(name, items)} (known: {', '.join(items)})")
    item = items[name]
    if not item.is_cached:
        digest, size = hashlib.sha256(), 0
        bar = tqdm(total=item.bytes, unit="B", unit_scale=True, desc=name, disable=None, leave=False)
        with cached_file(item.path) as file, bar:
            for chunk in _chunks(item):
                file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
                bar.update(len(chunk))
            if size != item.bytes:
                raise DownloadError(f"{item.url} sent {size} bytes instead of {item.bytes}", item.path)
            if digest.hexdigest() != item.sha256:
                problem = f"{item.url} has the SHA-256 {digest.hexdigest()} instead of {item.sha256}"
                raise DownloadError(problem, item.path)
    return item.path


def _chunks(item: Download) -> Iterator[bytes]:
    """Yield the contents of `item.url`, up to one byte more than the expected size."""
    request = urllib.request.Request(item.url, headers={"User-Agent": "minigpt"})
    try:
        with urllib.request.build_opener().open(request, timeout=TIMEOUT) as response:
            rest = item.bytes + 1
            while chunk := response.read(min(CHUNK, rest)):
                rest -= len(chunk)
                yield chunk
    except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: invalid proxy address
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection
        raise DownloadError(f"cannot download {item.url}: {reason(error)}", item.path) from error
