"""Create, fill and repair the Python environment of this checkout, `.venv`, for quickstart and test.

Uses only the standard library, and no new syntax: an old Python must get as far as the message about its version.
"""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

if not (3, 10) <= sys.version_info[:2] <= (3, 14):  # constraints.txt has packages for these
    sys.exit(
        f"minigpt needs Python 3.10 to 3.14, and this is Python {sys.version.split()[0]}. "
        f"Start the script with another Python, for example: python3.12 {sys.argv[0]}"
    )

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "minigpt-setup.txt"
UNFINISHED = "unfinished"
TOOLS = "docs,test"
"""The extras of scripts/test."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CALL_DRIVER = "import ctypes, sys; sys.exit(ctypes.CDLL('libcuda.so.1').cuInit(0))"
"""Fails unless NVIDIA's driver is installed and finds a GPU."""

# An environment without its pyvenv.cfg is the system's Python, where nothing may be installed.
HEALTH = (
    "import sys, pip._internal.cli.main; "
    "sys.exit(sys.prefix == sys.base_prefix or not (3, 10) <= sys.version_info[:2] <= (3, 14))"
)


def program(name: str) -> Path:
    """Return the path of a program in the environment, such as `python` or `minigpt`."""
    return VENV / ("Scripts" if os.name == "nt" else "bin") / (f"{name}.exe" if os.name == "nt" else name)


def prepare(extra: str = "") -> Path:
    """Install what pyproject.toml and constraints.txt ask for into `.venv`, and return its Python."""
    state, python = STAMP.read_text(encoding="utf-8") if STAMP.is_file() else "", program("python")
    is_healthy = state != UNFINISHED and python.exists() and not output(python, "-c", HEALTH)[0]
    if is_healthy and state in (_fingerprint(extra), _fingerprint(TOOLS)):
        return python
    for folder, space in ((ROOT, 2), (Path(tempfile.gettempdir()), 0.5)):
        free, needed = shutil.disk_usage(folder).free / 1e9, space / 10 if is_healthy else space
        if free < needed:
            fail(f"{folder} has {free:.1f} GB free and needs at least {needed} GB: make space, then type this again")
    if not is_healthy:
        print("Repairing .venv, which is incomplete or broken" if VENV.exists() else "Creating .venv", flush=True)
        step(sys.executable, "-m", "venv", "--clear", VENV)
    choose_torch()
    print("Installing minigpt into .venv (PyTorch is large, so this takes minutes the first time)", flush=True)
    STAMP.write_text(UNFINISHED, encoding="utf-8")
    pip = (python, "-m", "pip", "install", "--disable-pip-version-check", "-c", "constraints.txt")
    step(*pip, "-e", f".[{extra}]" if extra else ".")
    STAMP.write_text(_fingerprint(extra), encoding="utf-8")
    return python


def choose_torch() -> None:
    """Let pip prefer PyTorch's CPU build on Linux without an NVIDIA GPU, unless the user chose where pip looks."""
    if not _finds_torch():
        fail("pip finds no PyTorch: check your network, then type this again (pip index versions torch says more)")
    _, settings = output(program("python"), "-m", "pip", "config", "list")
    if sys.platform != "linux" or not output(program("python"), "-c", CALL_DRIVER)[0]:
        return
    if re.search(r"\b(index-url|find-links|no-index)=", settings):
        problem = "Your settings of pip say where packages come from"
    elif _finds_torch("--index-url", CPU_INDEX):
        os.environ["PIP_EXTRA_INDEX_URL"] = CPU_INDEX  # its 2.13.0+cpu is later than 2.13.0
        return
    else:
        problem = f"Cannot reach {CPU_INDEX}"
    larger = "which can be gigabytes larger than the CPU build"
    print(f"{problem}: installing pip's choice of PyTorch, {larger}", flush=True)


def run(*command: "str | Path") -> int:
    """Print and run a command in the checkout. Return its exit code: 130 if Ctrl-C ends it, 128 + n if signal n does.

    The command receives Ctrl-C too, and may save a run first.
    """
    print("$", _shown(command), flush=True)
    pressed: list[int] = []
    with subprocess.Popen(command, cwd=ROOT, env=_env()) as process:
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
        code = process.wait()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return 130 if pressed and code else 128 - code if code < 0 else code


def output(*command: "str | Path") -> "tuple[int, str]":
    """Run a command in the root of the checkout. Return its exit code, and the command with what it printed."""
    done = subprocess.run(command, cwd=ROOT, env=_env(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, f"$ {_shown(command)}\n{done.stdout.decode(errors='replace')}"


def step(*command: "str | Path") -> None:
    """Run a command. If it fails, end the script with its exit code."""
    code = run(*command)
    if code:
        fail(f"`{_shown(command)}` ended with exit code {code}", code)


def fail(message: str, code: int = 1) -> NoReturn:
    """End the script with one line on stderr."""
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    sys.exit(code)


def _shown(command: "tuple[str | Path, ...]") -> str:
    """Return a command as a user would type it in the root of the checkout."""
    return subprocess.list2cmdline([word.relative_to(ROOT) if isinstance(word, Path) else word for word in command])


def _finds_torch(*options: str) -> bool:
    """Return whether pip finds PyTorch for this Python and system, without the long wait of its retries."""
    return not output(program("python"), "-m", "pip", "index", "versions", "torch", "--retries", "1", *options)[0]


def _fingerprint(extra: str) -> str:
    """Return a hash of what is installed, and of the checkout's path: an editable install breaks when that changes."""
    digest = hashlib.sha256(os.fsencode(ROOT))
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return f"{digest.hexdigest()} {extra}".strip()


def _env() -> "dict[str, str]":
    """Return the environment variables without those that point Python or pip away from `.venv`.

    PYTHONDONTWRITEBYTECODE is left out, too: each process of the tests would compile all files again.
    """
    ignored = ("PYTHONHOME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PIP_USER", "PIP_TARGET", "PIP_PREFIX")
    env = {name: value for name, value in os.environ.items() if name not in ignored}
    env["VIRTUAL_ENV"] = str(VENV)
    env["PATH"] = str(program("python").parent) + os.pathsep + env.get("PATH", os.defpath)
    return env
