"""Downloads from a real server that misbehaves. A file is complete and checked, or absent."""

from __future__ import annotations

import codecs
import hashlib
import io
import re
import sys
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from minigpt.errors import DownloadError, UserError
from minigpt.paths import cache_folder
from minigpt.text.download import download, downloads
from minigpt.text.sources import open_corpus

BODY = ("Every line of this is text, \u65e5\u672c\u8a9e too.\n" * 60_000).encode()


def zipped(body: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inside", body)
    return file.getvalue()


ZIP = zipped(BODY)


class Handler(BaseHTTPRequestHandler):
    """Answer each path with the response in its name."""

    protocol_version = "HTTP/1.1"
    requests: list[str]
    released = threading.Event()

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""

    def do_GET(self) -> None:
        type(self).requests.append(self.path)
        getattr(self, "send_" + self.path.strip("/").partition(".")[0])()

    def start(self, length: int | None, code: int = 200, location: str = "") -> None:
        self.send_response(code)
        if length is not None:
            self.send_header("Content-Length", str(length))
        if location:
            self.send_header("Location", location)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def send_whole(self) -> None:
        self.start(len(BODY))
        self.wfile.write(BODY)

    def send_archive(self) -> None:
        self.start(len(ZIP))
        self.wfile.write(ZIP)

    def send_short(self) -> None:
        self.start(1000)
        self.wfile.write(BODY[:1000])

    def send_cut(self) -> None:
        self.start(len(BODY))
        self.wfile.write(BODY[:70_000])

    def send_chunks(self) -> None:
        self.wfile.write(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nEvery\r\nFFFF\r\nthe rest never comes"
        )
        self.close_connection = True

    def send_endless(self) -> None:
        self.start(None)
        try:
            while True:
                self.wfile.write(b"x" * 65536)
        except OSError:
            Handler.requests.append("hung up")

    def send_other(self) -> None:
        self.start(len(BODY))
        self.wfile.write(BODY[:-2] + b"!\n")

    def send_missing(self) -> None:
        self.start(0, 404)

    def send_moved(self) -> None:
        self.start(0, 302, location="/whole.txt")

    def send_tofile(self) -> None:
        self.start(0, 302, location="file:///etc/hosts")

    def send_silent(self) -> None:
        self.start(len(BODY))
        Handler.released.wait()

    def send_garbage(self) -> None:
        self.wfile.write(b"\x00\x01 this is no HTTP\r\n\r\n")
        self.close_connection = True


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def registry(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry with an entry per response of the server, and an empty cache."""
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    Handler.requests = []
    names = [name.removeprefix("send_") for name in vars(Handler) if name.startswith("send_")]
    sha256 = hashlib.sha256(BODY).hexdigest()
    plain = {"description": "d", "license": "l", "bytes": len(BODY), "sha256": sha256}
    entries: dict[str, dict[str, object]] = {name: plain | {"url": f"{address}/{name}.txt"} for name in names}
    entries["archive"] = {
        "description": "d", "license": "l", "bytes": len(ZIP), "sha256": hashlib.sha256(ZIP).hexdigest(),
        "url": f"{address}/archive.zip", "member": "inside",
    }  # fmt: skip
    entries["refused"] = plain | {"url": "http://127.0.0.1:9/closed.txt"}
    path = tmp_path / "registry.yaml"
    path.write_text(yaml.safe_dump(entries), encoding="utf-8")
    monkeypatch.setattr("minigpt.text.download.resource_path", lambda *_: path)
    return path


def error(name: str) -> str:
    """Return the one line of a download that fails, and check that no file is left."""
    with pytest.raises(UserError) as caught:
        download(name)
    message = str(caught.value)
    assert message.isprintable(), f"not one line: {message!r}"
    if cache_folder().is_dir():
        assert [path for path in cache_folder().rglob("*") if path.is_file()] == []
    return message


def test_a_download_is_cached_until_it_is_damaged(registry: Path) -> None:
    path = download("whole")
    assert path == cache_folder() / "downloads" / "whole.txt"
    assert path.read_bytes() == BODY
    assert list(path.parent.iterdir()) == [path]
    assert download("whole") == path
    assert Handler.requests == ["/whole.txt"]
    for damaged in (BODY[:-1], b"#" + BODY[1:]):
        path.write_bytes(damaged)
        assert not downloads()["whole"].is_cached
        assert download("whole").read_bytes() == BODY
    assert downloads()["whole"].is_cached
    assert download("moved").read_bytes() == BODY


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("short", f"sent 1000 bytes instead of {len(BODY)}"),
        ("cut", f"sent 70000 bytes instead of {len(BODY)}"),
        ("chunks", "cannot download"),
        ("endless", f"sent {len(BODY) + 1} bytes instead of {len(BODY)}"),
        ("other", "has the SHA-256 "),
        ("missing", "HTTP Error 404: Not Found"),
        ("tofile", "HTTP Error 302"),
        ("garbage", "cannot download"),
        ("refused", "Connection refused"),
    ],
)
def test_a_failed_download_leaves_nothing(registry: Path, name: str, says: str) -> None:
    assert says in error(name)


def test_a_wrong_file_in_the_cache_stays_if_the_download_fails(registry: Path) -> None:
    path = cache_folder() / "downloads" / "refused.txt"
    path.parent.mkdir(parents=True)
    path.write_bytes(BODY[:-7])
    with pytest.raises(DownloadError, match="Connection refused") as caught:
        download("refused")
    assert caught.value.destination == path
    assert path.read_bytes() == BODY[:-7]


def test_a_wrong_address_of_a_proxy_is_one_line(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", "http:/127.0.0.1:9")
    assert "proxy URL with no authority" in error("whole")


def test_a_server_that_stops_answering_times_out(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.text.download.TIMEOUT", 0.2)
    try:
        assert "timed out" in error("silent")
    finally:
        Handler.released.set()


def test_an_archive_is_read_without_unpacking(registry: Path) -> None:
    corpus = open_corpus("download:archive", encoding="utf-16")
    assert "".join(corpus.blocks()).encode() == BODY, "the registry has the encoding"
    assert corpus.name == "download:archive"
    path = download("archive")
    assert list(path.parent.iterdir()) == [path]
    path.write_bytes(b"\0" * len(ZIP))
    with pytest.raises(DownloadError, match="damaged or incomplete") as caught:
        next(corpus.blocks())
    assert caught.value.destination == path
    with pytest.raises(DownloadError, match=r"no download is named 'archiv'; did you mean archive\? \(known: "):
        open_corpus("download:archiv")


def test_parallel_downloads_end_with_one_complete_file(registry: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: download("whole"), range(8)))
    assert len(set(paths)) == 1
    assert paths[0].read_bytes() == BODY
    assert list(paths[0].parent.iterdir()) == [paths[0]]


def test_a_cache_that_cannot_be_a_folder(registry: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is in the way", encoding="utf-8")
    with pytest.raises(UserError, match=r"cannot write .*cache.*MINIGPT_CACHE"):
        download("whole")


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX")
def test_a_full_disk(registry: Path) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        assert ": File too large; set MINIGPT_CACHE" in error("whole")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_interrupt_leaves_nothing(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(item: object) -> Iterator[bytes]:
        yield BODY[:1000]
        raise KeyboardInterrupt

    monkeypatch.setattr("minigpt.text.download._chunks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        download("whole")
    assert list((cache_folder() / "downloads").iterdir()) == []


def test_the_shipped_registry_is_valid() -> None:
    """The program reads it without checks."""
    known = downloads()
    assert list(known) == ["shakespeare", "text8", "enwik8"]
    for name, item in known.items():
        assert re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name)
        assert item.url.startswith(("https://", "http://"))
        assert item.bytes > 0
        assert re.fullmatch(r"[0-9a-f]{64}", item.sha256)
        assert item.description
        assert item.license
        assert codecs.lookup(item.encoding)
        assert bool(item.member) == (item.path.suffix == ".zip")
