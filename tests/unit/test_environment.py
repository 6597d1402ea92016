"""What scripts/quickstart and scripts/test install and refuse. No test uses the network."""

import http.server
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import environment
import pytest

DEFAULT, CPU = "2.13.0", "2.13.0+cpu"
LARGER = "installing pip's choice of PyTorch, which can be gigabytes larger than the CPU build\n"
CLOSED = "http://127.0.0.1:9"  # nothing answers at the port of the discard protocol


def write_wheel(folder: Path, version: str) -> None:
    """Write a wheel of PyTorch without code."""
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as archive:
        about = f"torch-{version}.dist-info"
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """Serve two package indexes: `default` and `cpu`."""
    write_wheel(tmp_path / "indexes/default/torch", DEFAULT)
    write_wheel(tmp_path / "indexes/cpu/torch", CPU)
    serve = partial(Quiet, directory=tmp_path / "indexes")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Linux without a GPU, a proxy or settings of pip. `PIP_PYPI_URL` replaces PyPI, and is no choice of a user."""
    for name in os.environ:
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")  # so that monkeypatch restores it
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL")
    monkeypatch.setattr(environment, "VENV", Path(sys.prefix))
    monkeypatch.setattr(environment, "ROOT", Path(sys.prefix).parent)
    monkeypatch.setattr(environment, "CALL_DRIVER", "raise SystemExit(1)")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, "argv", ["scripts/quickstart"])
    return monkeypatch


@pytest.mark.slow
@pytest.mark.parametrize("does_answer", [True, False])
def test_pip_takes_the_cpu_build_if_its_index_answers(
    does_answer: bool,
    index: str,
    machine: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cpu_index = f"{index}/cpu" if does_answer else CLOSED
    machine.setattr(environment, "CPU_INDEX", cpu_index)
    machine.setenv("PIP_PYPI_URL", f"{index}/default")
    environment.choose_torch()
    told = f"Cannot reach {cpu_index}: {LARGER}"
    assert capsys.readouterr().out == ("" if does_answer else told)
    code, text = environment.output(
        Path(sys.executable), "-m", "pip", "download", "--no-deps", "-d", str(tmp_path), f"torch=={DEFAULT}"
    )
    assert code == 0, text
    assert [file.name for file in tmp_path.glob("*.whl")] == [
        f"torch-{CPU if does_answer else DEFAULT}-py3-none-any.whl"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("reason", ["GPU", "index", "system"])
def test_pip_takes_the_default_build_with_a_gpu_another_index_or_another_system(
    reason: str, index: str, machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.setattr(environment, "CPU_INDEX", f"{index}/cpu")
    machine.setenv("PIP_INDEX_URL" if reason == "index" else "PIP_PYPI_URL", f"{index}/default")
    if reason == "GPU":
        machine.setattr(environment, "CALL_DRIVER", "")
    elif reason == "system":
        machine.setattr(sys, "platform", "darwin")
    environment.choose_torch()
    assert "PIP_EXTRA_INDEX_URL" not in os.environ
    told = f"Your settings of pip say where packages come from: {LARGER}" if reason == "index" else ""
    assert capsys.readouterr().out == told


def failure(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the only line that a script printed when it failed."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.removeprefix("quickstart: ").strip()


def test_no_network_is_one_line(machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    machine.setenv("PIP_PYPI_URL", CLOSED)
    with pytest.raises(SystemExit, match="1"):
        environment.choose_torch()
    assert failure(capsys).startswith("pip finds no PyTorch: check your network")


def test_a_full_disk_is_one_line(
    tmp_path: Path, machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.setattr(environment, "VENV", tmp_path / ".venv")
    machine.setattr(environment, "STAMP", tmp_path / ".venv" / "minigpt-setup.txt")
    machine.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    with pytest.raises(SystemExit, match="1"):
        environment.prepare()
    assert failure(capsys).endswith("has 1.0 GB free and needs at least 2 GB: make space, then type this again")
    assert not environment.VENV.exists()


@pytest.mark.parametrize("version", [(3, 9, 18), (3, 15, 0)])
def test_a_python_that_is_too_old_or_too_new_is_one_line(version: tuple[int, ...]) -> None:
    code = f"import sys; sys.path.insert(0, 'scripts'); sys.version_info = {version}; import environment"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=environment.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout + done.stderr == done.stderr.splitlines(keepends=True)[0]
    assert done.stderr.startswith("minigpt needs Python 3.10 to 3.14")
