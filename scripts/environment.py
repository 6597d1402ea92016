"""Create, fill and repair the Python environment of this checkout, `.venv`, for quickstart and test.

Uses only the standard library, and no new syntax: an old Python must get as far as the message about its version.
"""

import hashlib
import importlib.util
import os
import signal
import subprocess
import sys
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

# An environment without its pyvenv.cfg is the system's Python, where nothing may be installed.
HEALTH = (
    "import sys, pip._internal.cli.main; "
    "sys.exit(sys.prefix == sys.base_prefix or not (3, 10) <= sys.version_info[:2] <= (3, 14))"
)


def program(name: str) -> Path:
    """Return the path of a program in the environment, such as `python` or `minigpt`."""
    if os.name == "nt":
        return VENV / "Scripts" / f"{name}.exe"
    return VENV / "bin" / name


def prepare(extra: str = "") -> Path:
    """Install what pyproject.toml and constraints.txt ask for into `.venv`, and return its Python."""
    state = STAMP.read_text(encoding="utf-8") if STAMP.is_file() else ""
    if state == UNFINISHED or not _healthy():
        _create()
        state = ""
    if state not in (_fingerprint(extra), _fingerprint(TOOLS)):
        _install(extra)
    return program("python")


def run(*command: "str | Path") -> int:
    """Print a command, run it in the root of the checkout, and return its exit code."""
    print("$", _shown(command), flush=True)
    return _call(*command)


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


def _healthy() -> bool:
    """Return whether `.venv` has an isolated Python of a supported version, with a working pip."""
    try:
        check = subprocess.run([program("python"), "-c", HEALTH], capture_output=True, env=_env())
    except OSError:
        return False
    return check.returncode == 0


def _create() -> None:
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        fail(
            f"this Python ({sys.executable}) comes without {' and '.join(missing)}; "
            "on Debian and Ubuntu install it with: sudo apt install python3-venv"
        )
    print("Repairing .venv, which is incomplete or broken" if VENV.exists() else "Creating .venv", flush=True)
    code = _call(sys.executable, "-m", "venv", "--clear", VENV)
    if code:
        fail(f"could not create {VENV} (exit code {code})", code)


def _install(extra: str) -> None:
    print("Installing minigpt into .venv (PyTorch is large, so this takes minutes the first time)", flush=True)
    STAMP.write_text(UNFINISHED, encoding="utf-8")
    target = f".[{extra}]" if extra else "."
    pip = (program("python"), "-m", "pip", "install", "--disable-pip-version-check")
    code = _call(*pip, "-c", "constraints.txt", "-e", target)
    if code == 0:
        STAMP.write_text(_fingerprint(extra), encoding="utf-8")
        return
    # If pip gave up on its own, no package is incomplete, and the next attempt can keep the environment.
    if code < 128:
        STAMP.unlink()
    fail(f"installing minigpt's packages failed (pip's exit code {code})", code)


def _fingerprint(extra: str) -> str:
    """Return a hash of what is installed. It includes the folder, because an editable install breaks when it moves."""
    digest = hashlib.sha256(os.fsencode(ROOT))
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return f"{digest.hexdigest()} {extra}".strip()


def _call(*command: "str | Path") -> int:
    """Run a command. Return its exit code, 130 after Ctrl-C, or 128 + n after signal n."""
    interrupted = False
    with subprocess.Popen(command, cwd=ROOT, env=_env()) as process:
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        while True:
            try:
                code = process.wait()
                break
            except KeyboardInterrupt:  # the command receives it too, and may save a run first
                interrupted = True
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if interrupted and code:
        return 130
    return 128 - code if code < 0 else code


def _env() -> "dict[str, str]":
    """Return the environment variables without those that point Python or pip away from `.venv`.

    The tests start many processes, and each would compile all files again if Python may not write the results.
    """
    ignored = ("PYTHONHOME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PIP_USER", "PIP_TARGET", "PIP_PREFIX")
    env = {name: value for name, value in os.environ.items() if name not in ignored}
    env["VIRTUAL_ENV"] = str(VENV)
    env["PATH"] = str(program("python").parent) + os.pathsep + env.get("PATH", os.defpath)
    return env
