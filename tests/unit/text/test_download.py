"""A download is whole and verified, or it is absent: tried against a real server that misbehaves."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from minigpt.errors import UserError
from minigpt.paths import cache_folder, resource_path
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
    """Answers each path in the way its name says."""

    protocol_version = "HTTP/1.1"
    requests: list[str]

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

    def send_toftp(self) -> None:
        self.start(0, 302, location="ftp://127.0.0.1/etc/hosts")

    def send_silent(self) -> None:
        self.start(len(BODY))
        time.sleep(1)

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
    """A registry of every misbehaviour, and an empty cache."""
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    Handler.requests = []
    names = [name.removeprefix("send_") for name in vars(Handler) if name.startswith("send_")]
    sha256 = hashlib.sha256(BODY).hexdigest()
    plain = {"description": "d", "bytes": len(BODY), "sha256": sha256}
    entries: dict[str, dict[str, object]] = {name: plain | {"url": f"{address}/{name}.txt"} for name in names}
    entries["archive"] = {
        "description": "d", "bytes": len(ZIP), "sha256": hashlib.sha256(ZIP).hexdigest(),
        "url": f"{address}/archive.zip", "member": "inside",
    }  # fmt: skip
    entries["refused"] = plain | {"url": "http://127.0.0.1:9/closed.txt"}
    path = tmp_path / "registry.yaml"
    path.write_text(yaml.safe_dump(entries), encoding="utf-8")
    return path


def error(name: str, registry: Path, timeout: float = 5.0) -> str:
    """The message of a download that fails: one line, and nothing is left behind."""
    with pytest.raises(UserError) as caught:
        download(name, registry, timeout)
    message = str(caught.value)
    assert message.isprintable(), f"not one line: {message!r}"
    if cache_folder().is_dir():
        assert [path for path in cache_folder().rglob("*") if path.is_file()] == []
    return message


def test_a_download_is_fetched_once_and_again_when_its_size_is_wrong(registry: Path) -> None:
    path = download("whole", registry)
    assert path == cache_folder() / "downloads" / "whole.txt"
    assert path.read_bytes() == BODY
    assert list(path.parent.iterdir()) == [path]
    assert download("whole", registry) == path
    assert Handler.requests == ["/whole.txt"]
    path.write_bytes(BODY[:-1])
    assert download("whole", registry).read_bytes() == BODY
    assert download("moved", registry).read_bytes() == BODY


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("short", f"ended after 1000 of {len(BODY)} bytes"),
        ("cut", f"ended after 70000 of {len(BODY)} bytes"),
        ("chunks", "cannot fetch"),
        ("endless", f"larger than the {len(BODY)} bytes"),
        ("other", "is not the file it should be"),
        ("missing", "answered 404 Not Found"),
        ("tofile", "answered 302"),
        ("toftp", "unknown url type: ftp"),
        ("garbage", "cannot fetch"),
        ("refused", "`minigpt train` alone uses builtin:python"),
    ],
)
def test_a_failed_download_leaves_nothing(registry: Path, name: str, says: str) -> None:
    assert says in error(name, registry)


def test_a_file_put_where_a_download_belongs_that_is_another_is_told_of(registry: Path) -> None:
    there = cache_folder() / "downloads" / "refused.txt"
    there.parent.mkdir(parents=True)
    there.write_bytes(BODY[:-7])
    with pytest.raises(UserError, match=rf"\(what is there has {len(BODY) - 7} bytes, not {len(BODY)}\)$"):
        download("refused", registry)
    assert there.read_bytes() == BODY[:-7]


def test_a_proxy_whose_address_is_none_is_one_line(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", "http:/127.0.0.1:9")
    assert "(proxy URL with no authority" in error("whole", registry)


def test_a_server_that_stops_answering(registry: Path) -> None:
    started = time.monotonic()
    assert "timed out" in error("silent", registry, timeout=0.2)
    assert time.monotonic() - started < 0.9


def test_an_archive_is_read_without_unpacking(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.text.download.shipped", lambda *_: registry)
    corpus = open_corpus("download:archive", encoding="utf-16")
    assert "".join(corpus.blocks()).encode() == BODY, "the registry's encoding counts, not the user's"
    assert corpus.name == "download:archive"
    path = download("archive")
    assert list(path.parent.iterdir()) == [path]
    path.write_bytes(b"\0" * len(ZIP))
    with pytest.raises(UserError, match=r"damaged or cut short .*; delete .*archive\.zip to fetch it again"):
        open_corpus("download:archive")
    with pytest.raises(UserError, match=r"no download named 'archiv'; did you mean archive\? \(known: "):
        open_corpus("download:archiv")


def test_many_at_once_get_one_whole_file(registry: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: download("whole", registry), range(8)))
    assert len(set(paths)) == 1
    assert paths[0].read_bytes() == BODY
    assert list(paths[0].parent.iterdir()) == [paths[0]]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no such permissions")
def test_no_permission_to_write(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.parent.chmod(0o755)
    monkeypatch.chdir(registry.parent)
    # Not in tmp_path, whose own parents are closed to everybody else.
    with tempfile.TemporaryDirectory() as cache:
        monkeypatch.setenv("MINIGPT_CACHE", cache)
        _fails_as_somebody_who_may_not_write(Path(registry.name), Path(cache))


def _fails_as_somebody_who_may_not_write(registry: Path, cache: Path) -> None:
    folder = cache / "downloads"
    folder.mkdir()
    folder.chmod(0o555)
    cache.chmod(0o755)
    root = os.geteuid() == 0
    if root:  # root may write anywhere: be somebody else for a moment
        os.seteuid(65534)
    try:
        with pytest.raises(UserError, match=r"cannot write .*\.part \(Permission denied\); set MINIGPT_CACHE"):
            download("whole", registry)
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)
    assert list(folder.iterdir()) == []


def test_a_cache_that_cannot_be_a_folder(registry: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is in the way", encoding="utf-8")
    with pytest.raises(UserError, match=r"cannot write .*cache"):
        download("whole", registry)


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files")
def test_a_full_disk(registry: Path) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        assert "(File too large); set MINIGPT_CACHE" in error("whole", registry)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.alone
@pytest.mark.skipif(sys.platform == "win32", reason="no signals between threads")
def test_an_interrupt_leaves_nothing(registry: Path) -> None:
    program = (
        "import signal, sys, threading; from pathlib import Path; from minigpt.download import download\n"
        "stop = lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)\n"
        "threading.Timer(0.3, stop).start()\n"
        "download('silent', Path(sys.argv[1]))"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    command = [sys.executable, "-c", program, str(registry)]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert b"KeyboardInterrupt" in done.stderr
    assert list((cache_folder() / "downloads").iterdir()) == []


def test_the_shipped_registry_is_well_formed() -> None:
    known = downloads()
    assert list(known) == ["shakespeare", "text8", "enwik8"]
    assert {item.path.name for item in known.values()} == {"shakespeare.txt", "text8.zip", "enwik8.zip"}
    for name, item in known.items():
        assert item.description, name
        assert item.licence, name
    assert resource_path("data", "registry.yaml").is_file()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"url": "file:///etc/passwd"}, "only http and https"),
        ({"url": "http://[bad"}, "x: "),
        ({"sha256": "abc"}, "64 hexadecimal digits"),
        ({"bytes": "many"}, "bytes must be a whole number"),
        ({"bytes": 0}, "bytes must be positive"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_malformed_registry_is_named(tmp_path: Path, change: dict[str, object], says: str) -> None:
    entry = {"description": "d", "url": "http://127.0.0.1/x", "bytes": 1, "sha256": "0" * 64} | change
    path = tmp_path / "registry.yaml"
    for content, expected in (
        (yaml.safe_dump({"x": entry}), says),
        ("[", "not valid YAML"),
        ("1", "must map"),
    ):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(UserError) as caught:
            downloads(path)
        assert expected in str(caught.value)
        assert str(caught.value).isprintable()
    path.write_text(yaml.safe_dump({"../x": entry | {"url": "http://h/x", "sha256": "0" * 64}}), encoding="utf-8")
    with pytest.raises(UserError):
        downloads(path)


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    assert not (cache_folder() / "downloads").exists()
    monkeypatch.delenv("MINIGPT_CACHE")
    variable = {"win32": "LOCALAPPDATA", "darwin": "HOME"}.get(sys.platform, "XDG_CACHE_HOME")
    monkeypatch.setenv(variable, str(tmp_path))
    inside = {"darwin": tmp_path / "Library" / "Caches"}.get(sys.platform, tmp_path)
    assert cache_folder() == inside / "minigpt"
    if variable == "XDG_CACHE_HOME":
        monkeypatch.setenv(variable, "relative")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert cache_folder() == tmp_path / ".cache" / "minigpt"
