"""`minigpt runs` and `minigpt board`."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import SMALL, VERSE, Cli, environment


def test_runs_lists_the_newest_run_last(cli: Cli, at_home: Path) -> None:
    _, first, last = cli("runs").out.splitlines()
    assert (first.split()[0], last.split()[:2]) == ("cjk", ["verse-1", "verse.txt"])
    rows = cli("runs", "--json").json
    assert [row["name"] for row in rows] == ["cjk", "verse-1"]
    assert rows[1]["step"] == 4
    assert f"{rows[1]['best_loss']:.4f}" in last


def test_many_texts_are_shortened_in_the_table_only(cli: Cli, empty_folder: Path) -> None:
    names = [f"verse{number}.txt" for number in range(8)]
    for name in names:
        Path(name).write_text(VERSE, encoding="utf-8")
    assert cli("train", *names, *SMALL, "-s", "train.steps=1", "--name", "a").code == 0
    assert "  verse0.txt + verse...e6.txt + verse7.txt  " in cli("runs").out
    assert cli("runs", "--json").json[0]["corpus"] == " + ".join(names)


def test_diff_shows_every_setting_that_differs(cli: Cli, empty_folder: Path) -> None:
    Path("verse.txt").write_text(VERSE, encoding="utf-8")
    settings = {"a": ["data.encoding=utf-8"], "b": ["data.encoding=latin-1", "sample.seed=7", "train.patience=9"]}
    for name, chosen in settings.items():
        options = [word for setting in chosen for word in ("-s", setting)]
        assert cli("train", "verse.txt", *SMALL, "-s", "train.steps=1", "--name", name, *options).code == 0
    head, *rows = [line.split() for line in cli("runs", "--diff").out.splitlines()]
    assert head == ["run", "step", "best", "loss", "encoding", "patience", "seed"]
    assert [[row[0], *row[3:]] for row in rows] == [["a", "utf-8", "4", "1337"], ["b", "latin-1", "9", "7"]]
    assert cli("train", "verse.txt", *SMALL, "-s", "train.steps=1", "--name", "c", "-s", "train.seed=8").code == 0
    assert {"train.seed", "sample.seed"} <= set(cli("runs", "--diff").out.split())


def test_without_runs_json_is_an_empty_list_and_text_an_error(cli: Cli, empty_folder: Path) -> None:
    assert cli("runs", "--json").json == []
    assert "minigpt train" in cli("runs").error


def test_board_passes_its_options_to_tensorboard(cli: Cli, empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    server = SimpleNamespace(configure=lambda argv: seen.extend(argv), main=lambda: 0)
    parts = {
        "default": SimpleNamespace(get_plugins=list),
        "program": SimpleNamespace(TensorBoard=lambda **_: server),
    }
    monkeypatch.setitem(sys.modules, "tensorboard", SimpleNamespace(**parts))
    Path("runs").mkdir()
    assert "set Smoothing to 0" in cli("board", "--port", 7000).err
    assert {"--logdir=runs", "--port=7000", "--host=localhost"} <= set(seen)
    seen.clear()
    cli("board")
    assert not [option for option in seen if "port" in option]  # TensorBoard looks for a free one


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM")
def test_sigterm_stops_the_board(home: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "minigpt", "board", "--port", str(port), "--host", "127.0.0.1"]
    with subprocess.Popen(command, cwd=home, env=environment(), stderr=subprocess.PIPE, text=True) as board:
        try:
            assert b"TensorBoard" in fetch(f"http://127.0.0.1:{port}/", board)
        finally:
            board.send_signal(signal.SIGTERM)
            board.wait(20)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def fetch(address: str, server: "subprocess.Popen[str]") -> bytes:
    """Return the page as soon as the server answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(300):
        try:
            with opener.open(address, timeout=10) as response:
                return bytes(response.read())
        except OSError:
            assert server.poll() is None, server.stderr and server.stderr.read()
            time.sleep(0.1)
    raise AssertionError("the server did not answer")
