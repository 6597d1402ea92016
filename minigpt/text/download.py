"""Fetching the corpora that have a name: registry, cache folder, and a download that is whole or absent.

It knows nothing about what is inside a file; `corpus.py` reads it.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit
from uuid import uuid4

import yaml
from tqdm import tqdm

from minigpt.errors import UserError, did_you_mean, escape, reason
from minigpt.files import remove_abandoned, sync
from minigpt.paths import cache_folder, resource_path

CHUNK = 1 << 20


@dataclass(frozen=True)
class Download:
    """One entry of the registry."""

    name: str
    description: str
    url: str
    bytes: int
    """Size of the file at `url`, exactly."""
    sha256: str
    encoding: str = "utf-8"
    member: str = ""
    """The file to read inside the archive, where `url` is a zip; empty where it is the text itself."""
    licence: str = ""

    @property
    def path(self) -> Path:
        """Where it is kept once it is downloaded."""
        return cache_folder() / "downloads" / (self.name + PurePosixPath(urlsplit(self.url).path).suffix)

    @property
    def is_here(self) -> bool:
        """Whether it was downloaded. Its hash was checked then; its size tells of later damage at no cost."""
        return self.path.is_file() and self.path.stat().st_size == self.bytes


def downloads(registry: Path | None = None) -> dict[str, Download]:
    """Every known download by name, in the registry's order. UserError for a malformed registry."""
    path = registry or resource_path("data", "registry.yaml")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{escape(path)}: the registry cannot be read ({reason(error)})") from error
    except yaml.YAMLError as error:
        raise UserError(f"{escape(path)}: the registry is not valid YAML ({reason(error)})") from error
    if not isinstance(content, dict):
        raise UserError(f"{escape(path)}: the registry must map names to downloads")
    return {str(name): _checked(path, str(name), entry) for name, entry in content.items()}


def _checked(path: Path, name: str, entry: object) -> Download:
    """The entry as a Download, or a UserError that says what is wrong with it."""
    where = f"{escape(path)}: {escape(name)}"
    if not isinstance(entry, dict):
        raise UserError(f"{where}: must be a mapping")
    for key, value in entry.items():
        if not isinstance(value, int if key == "bytes" else str):
            raise UserError(f"{where}: {escape(key)} must be {'a whole number' if key == 'bytes' else 'a text'}")
    try:
        item = Download(name=name, **entry)
        scheme = urlsplit(item.url).scheme
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: {reason(error)}") from error
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        raise UserError(f"{where}: a name may hold a-z, 0-9, - and _ only")
    if item.bytes <= 0:
        raise UserError(f"{where}: bytes must be positive")
    if not re.fullmatch(r"[0-9a-f]{64}", item.sha256):
        raise UserError(f"{where}: sha256 must be 64 hexadecimal digits")
    if scheme not in ("http", "https"):
        raise UserError(f"{where}: only http and https addresses are allowed, not {escape(item.url)}")
    return item


def download(name: str, registry: Path | None = None, timeout: float = 30.0) -> Path:
    """The local copy of a named download, fetched on first use.

    `timeout` is in seconds, for each wait on the network. A failure is a UserError and leaves no file behind.
    """
    known = downloads(registry)
    if name not in known:
        near = did_you_mean(name, known)
        raise UserError(f"there is no download named {name!r}{near} (known: {', '.join(known)})")
    item = known[name]
    destination = item.path
    try:
        if item.is_here:
            return destination
        destination.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(destination.parent, ".*.part")
        _publish(item, destination, timeout)
    except OSError as error:
        place = escape(error.filename or destination)
        advice = "set MINIGPT_CACHE to another folder"
        raise UserError(f"cannot write {place} ({reason(error)}); {advice}") from error
    return destination


def _publish(item: Download, destination: Path, timeout: float) -> None:
    """Write the download beside its destination, check it, and rename it into place."""
    # A name of its own lets several processes fetch at once: each renames a whole file, the last one stays.
    part = destination.with_name(f".{destination.name}.{uuid4().hex}.part")
    digest = hashlib.sha256()
    try:
        bar = tqdm(total=item.bytes, unit="B", unit_scale=True, desc=item.name, disable=None, leave=False)
        with part.open("xb") as file, bar:
            for chunk in _received(item, destination, timeout):
                file.write(chunk)
                digest.update(chunk)
                bar.update(len(chunk))
            file.flush()
            sync(file.fileno())
        if digest.hexdigest() != item.sha256:
            found = f"its sha256 is {digest.hexdigest()} instead of {item.sha256}"
            raise UserError(f"{item.url} is not the file it should be: {found}")
        part.replace(destination)
    finally:
        part.unlink(missing_ok=True)


def _received(item: Download, destination: Path, timeout: float) -> Iterator[bytes]:
    """The body of the response, chunk by chunk, and exactly `item.bytes` of it; UserError otherwise."""
    request = urllib.request.Request(item.url, headers={"User-Agent": "minigpt"})
    received = 0
    try:
        with _web_only().open(request, timeout=timeout) as response:
            # One byte more than expected is asked for, so that a longer file shows without being read.
            while chunk := response.read(min(CHUNK, item.bytes + 1 - received)):
                received += len(chunk)
                if received > item.bytes:
                    raise UserError(f"{item.url} is larger than the {item.bytes} bytes it should be")
                yield chunk
    except urllib.error.HTTPError as error:
        error.close()
        raise UserError(f"{item.url} answered {error.code} {escape(error.reason)}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: of a proxy's address
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        because = reason(cause) if isinstance(cause, Exception) else escape(cause)
        advice = f"`minigpt train` alone uses builtin:python; or put the file at {escape(destination)}"
        if destination.is_file():
            advice += f" (what is there has {destination.stat().st_size} bytes, not {item.bytes})"
        raise UserError(f"cannot fetch {item.url} ({because}); without a network, {advice}") from error
    if received < item.bytes:
        raise UserError(f"{item.url} ended after {received} of {item.bytes} bytes; try again")


def _web_only() -> urllib.request.OpenerDirector:
    """An opener without the usual file: and ftp: handlers, so that a redirect cannot reach them either."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener
