"""Hostile files: minigpt fails in one line with exit code 1, or ignores them, and does nothing else.

A damaged checkpoint does not match its hashes. A forged one does, so that minigpt must judge its content.
"""

import codecs
import json
import os
import random
import shutil
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Cli
from forgery import CONFIG, METADATA, MODEL, OPTIMIZER, STEPS, TOKENIZER, entry, forge, safetensors
from numpy.typing import NDArray
from safetensors.numpy import load, save

from minigpt.errors import UserError
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.metadata import FILES, verify
from minigpt.storage.runs import step_folder

if sys.platform != "win32":
    import resource

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX"),
    pytest.mark.usefixtures("empty_folder", "torch_settings"),
]

SAMPLE, EVAL, RESUME = (
    ["sample", "r", "-l", "3"],
    ["eval", "r", "--device", "cpu"],
    ["train", "--resume", "r", "-s", "train.steps=5"],
)
RUNS, VERIFY = ["runs"], ["runs", "verify"]


@pytest.fixture
def run(finished_run: Path, empty_folder: Path) -> Path:
    """A copy of a finished run. It is `r` in runs/ of the current folder."""
    return Path(shutil.copytree(finished_run, empty_folder / "runs/r"))


@pytest.fixture
def checkpoint(run: Path) -> Path:
    return step_folder(run, STEPS[-1])


def fails_in_one_line(cli: Cli, *commands: list[str]) -> None:
    for command in commands:
        assert cli(*command).error


def fails_in_one_line_or_works(cli: Cli, *commands: list[str]) -> None:
    for command in commands:
        done = cli(*command)
        assert done.code == 0 or command == VERIFY or done.error
        assert "Traceback" not in done.err


# --- loading only reads --------------------------------------------------------------------------------

FORBIDDEN = (
    *("exec", "compile", "import", "marshal.loads", "pickle.find_class", "code.__new__", "ctypes.dlopen"),
    *("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "subprocess.Popen", "socket.connect"),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod"),
)
audited: list[str] | None = None


def audit(event: str, arguments: tuple[Any, ...]) -> None:
    is_write = event == "open" and int(arguments[2]) & (os.O_WRONLY | os.O_RDWR)
    if audited is not None and (event in FORBIDDEN or is_write):
        audited.append(f"{event} {arguments!r:.200}")


sys.addaudithook(audit)
for name in ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"):
    codecs.lookup(name)  # json may import these, because it guesses the encoding of bytes


def content_of(folder: Path) -> Any:
    """Check and load a checkpoint. Return its content, or None if that fails in one line.

    Fail the test if loading does more than read.
    """
    global audited
    audited, content, problem = [], None, "none"
    try:
        verify(folder)
        loaded = load_checkpoint(folder)
    except UserError as error:
        problem = str(error)
    else:
        weights = {name: array.tobytes() for name, array in loaded.weights.items()}
        content = weights, loaded.tokenizer.to_json(), loaded.config, loaded.metadata
    finally:
        events, audited = audited, None
    assert events == []
    assert problem.isprintable()
    assert 0 < len(problem) < 3000
    return content


@contextmanager
def memory_limit(extra: int = 1 << 29) -> Iterator[None]:
    """Limit how much more memory this process can take."""
    if sys.platform != "linux":
        yield
        return
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + extra, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


# --- damage ------------------------------------------------------------------------------------------


def damages(content: bytes, count: int) -> Iterator[bytes | None]:
    """Yield what a disk, a copy or an editor can do to a file. None stands for a missing file."""
    yield from (None, b"", content * 2, content + b"\0", content + b"\n", bytes(len(content)))
    generator = random.Random(len(content))
    for at in generator.choices(range(len(content)), k=count):
        before, byte, after = content[:at], content[at], content[at + 1 :]
        yield before + bytes([byte ^ 1 << generator.randrange(8)]) + after
        yield generator.choice((before, before + after, before + b"\0" + content[at:], before + bytes(len(after))))


@contextmanager
def replaced(path: Path, content: bytes | None) -> Iterator[None]:
    """Replace a file by this content while the block runs."""
    before = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    yield
    path.write_bytes(before)


@pytest.mark.parametrize("name", [*FILES, METADATA])
def test_a_damaged_checkpoint_is_rejected_or_equal(checkpoint: Path, name: str) -> None:
    """A change of white space in the metadata, for example, leaves the content equal."""
    expected = content_of(checkpoint)
    for content in damages((checkpoint / name).read_bytes(), 60):
        with replaced(checkpoint / name, content):
            assert content_of(checkpoint) in (None, expected)
    assert content_of(checkpoint) == expected


@pytest.mark.parametrize("name", ["config.yaml", "environment.jsonl", "metrics.jsonl"])
def test_commands_cope_with_a_damaged_run(cli: Cli, run: Path, name: str) -> None:
    backup = Path(shutil.copytree(run, run.parent.parent / "backup"))
    damaged = list(damages((backup / name).read_bytes(), 1))
    for content in (*damaged[:2], *damaged[-2:], b"[" * 200_000, b'{"step": "x"}\n', b"step-" + b"9" * 99):
        with replaced(run / name, content):
            fails_in_one_line_or_works(cli, RUNS, VERIFY, SAMPLE, RESUME)
            shutil.rmtree(run)
            shutil.copytree(backup, run)


# --- forgery -----------------------------------------------------------------------------------------


def weights(change: Callable[[dict[str, NDArray[Any]]], Any]) -> Callable[[bytes], bytes]:
    """Change the tensors of a safetensors file."""

    def changed(content: bytes) -> bytes:
        arrays = dict(load(content))
        change(arrays)
        return save(arrays)

    return changed


def dtype(name: Any) -> Callable[[bytes], bytes]:
    return weights(lambda w: w.update({"norm.weight": w["norm.weight"].astype(name)}))


def text(*pairs: tuple[str, str]) -> Callable[[bytes], bytes]:
    """Replace parts of a text file."""

    def changed(content: bytes) -> bytes:
        found = content.decode()
        for old, new in pairs:
            assert found.count(old) == 1, old
            found = found.replace(old, new)
        return found.encode()

    return changed


def tensor(*args: Any, data: int = 4, **kwargs: Any) -> Callable[[bytes], bytes]:
    return lambda old: safetensors({"norm.weight": entry(*args, **kwargs)}, bytes(data))


UNICODE = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
BOMB = "l0: &l0 [1]\n" + "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]\n" for i in range(1, 30))
FORGED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "header longer than the file": (MODEL, lambda old: struct.pack("<Q", 1 << 40) + old[8:]),
    "header of 2^63 bytes": (MODEL, lambda old: struct.pack("<Q", 1 << 63) + old[8:]),
    "header without content": (MODEL, lambda old: safetensors(b"")),
    "header with a list": (MODEL, lambda old: safetensors([1])),
    "header with deep nesting": (MODEL, lambda old: safetensors(b"[" * 200_000)),
    "shape with deep nesting": (MODEL, lambda old: safetensors(b'{"a":{"shape":' + b"[" * 200_000)),
    "shape of 2^80": (MODEL, tensor(shape=(1 << 40, 1 << 40))),
    "shape and offsets of 2^42": (MODEL, tensor(shape=(1 << 40,), offsets=(0, 1 << 42))),
    "negative shape": (MODEL, tensor(shape=(-1,))),
    "unknown dtype": (MODEL, tensor("F31")),
    "backward offsets": (MODEL, tensor(offsets=(4, 0))),
    "gap between tensors": (MODEL, tensor(offsets=(4, 8), data=8)),
    "overlapping tensors": (MODEL, lambda old: safetensors({"a": entry(), "b": entry()}, bytes(4))),
    "50,000 tensors": (MODEL, lambda old: safetensors({f"t{i}": entry("F32", (0,), (0, 0)) for i in range(50_000)})),
    "tensor name with escapes": (MODEL, lambda old: safetensors({"\x1b[2J\n": entry()}, bytes(4))),
    "a million more weights": (MODEL, weights(lambda w: w.update({"more": np.zeros(1_000_000, np.float32)}))),
    "missing weight": (MODEL, weights(lambda w: w.pop("norm.weight"))),
    "weight with one more axis": (MODEL, weights(lambda w: w.update({"norm.weight": w["norm.weight"][None]}))),
    "float64 weight": (MODEL, dtype(np.float64)),
    "NaN weights": (MODEL, weights(lambda w: w.update({"norm.weight": w["norm.weight"] + np.float32("nan")}))),
    "width of 10^9": (CONFIG, text(("n_embd: 8", "n_embd: 1000000000"))),
    "width of 400 digits": (CONFIG, text(("n_embd: 8", f"n_embd: 1{'0' * 400}"))),
    "context of 10^12": (CONFIG, text(("context: 8", "context: 1000000000000"))),
    "model of petabytes": (CONFIG, text(("n_layer: 1", "n_layer: 1000"), ("n_embd: 8", "n_embd: 100000"))),
    "another position encoding": (CONFIG, text(("position: rotary", "position: learned"))),
    "another activation": (CONFIG, text(("activation: relu2", "activation: swiglu"))),
    "heads that do not divide the width": (CONFIG, text(("n_head: 1", "n_head: 3"))),
    "YAML tag that runs a program": (
        CONFIG,
        text(("n_layer: 1", "n_layer: !!python/object/apply:os.system ['touch ran']")),
    ),
    "YAML alias bomb": (CONFIG, lambda old: BOMB.encode()),
    "YAML with deep lists": (CONFIG, lambda old: b"model: " + b"[" * 100_000),
    "YAML of 2 MB": (CONFIG, lambda old: old + b"#" * (2 << 20)),
    "YAML with an unknown section": (CONFIG, lambda old: old + b"extra: {a: 1}\n"),
    "larger vocabulary": (TOKENIZER, lambda old: b'{"kind": "char", "chars": "\\nabcdefs"}'),
    "byte tokenizer": (TOKENIZER, lambda old: b'{"kind": "byte"}'),
    "vocabulary of all of Unicode": (TOKENIZER, lambda old: json.dumps({"kind": "char", "chars": UNICODE}).encode()),
    "tokenizer with deep nesting": (TOKENIZER, lambda old: b'{"kind":' * 200_000),
    "tokenizer of 64 MB": (TOKENIZER, lambda old: old + b" " * (64 << 20)),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_checkpoint_is_rejected_with_little_memory(cli: Cli, run: Path, what: str) -> None:
    name, change = FORGED[what]
    content_of(step_folder(run, STEPS[-1]))  # so that modules are imported
    for step in STEPS:
        folder = step_folder(run, step)
        forge(folder, {name: change((folder / name).read_bytes())})
    with memory_limit():
        content_of(step_folder(run, STEPS[-1]))
        fails_in_one_line(cli, SAMPLE, RESUME)
        fails_in_one_line_or_works(cli, VERIFY)
    assert not Path("ran").exists()


def test_a_context_longer_than_the_text_is_not_resumed(cli: Cli, run: Path) -> None:
    """Rotary positions have no weights, so only the text shows that this context was not trained."""
    for step in STEPS:
        folder = step_folder(run, step)
        forge(folder, {CONFIG: text(("context: 8", "context: 99999"))((folder / CONFIG).read_bytes())})
    fails_in_one_line(cli, RESUME)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.clear(),
        lambda t: [t.pop(name) for name in list(t) if name.startswith("step/")],
        lambda t: t.update({name: array[:1] for name, array in t.items() if array.ndim}),
        lambda t: t.update({name: array.astype(np.int8) for name, array in t.items()}),
        lambda t: t.update({name: np.full_like(array, np.nan) for name, array in t.items()}),
        lambda t: t.update({"/": np.ones(1), "x": np.ones(1), "exp_avg/nothing": np.ones(1)}),
        lambda t: t.update({"more": np.zeros(3_000_000, np.float32)}),
    ],
    ids=["empty", "no step", "short", "int8", "NaN", "unknown names", "large"],
)
def test_a_forged_optimizer_state_is_rejected_or_ignored(
    cli: Cli, run: Path, change: Callable[[dict[str, NDArray[Any]]], Any]
) -> None:
    for step in STEPS:
        folder = step_folder(run, step)
        forge(folder, {OPTIMIZER: weights(change)((folder / OPTIMIZER).read_bytes())})
    fails_in_one_line_or_works(cli, RESUME)


HUGE = 9 * 10**4299
"""The largest power of ten, times nine, that Python prints."""
ODD_METADATA = {
    "state.best_step": (HUGE, 10**15),
    "state.best_loss": (None, -1e308),
    "runtime.device": ("cuda:99", "\x1b[2J"),
    "corpus": ("\ud800\x1b[2J\n",),
    "fingerprint": ("../../../x", "+"),
}


def forge_metadata(run: Path, field: str, value: Any) -> None:
    for step in STEPS:
        fields = json.loads((step_folder(run, step) / METADATA).read_bytes())
        *parents, last = field.split(".")
        part = fields
        for parent in parents:
            part = part[parent]
        part[last] = value
        forge(step_folder(run, step), metadata=fields)


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in ODD_METADATA.items() for v in values])
def test_odd_metadata_makes_no_command_crash(cli: Cli, run: Path, field: str, value: Any) -> None:
    forge_metadata(run, field, value)
    fails_in_one_line_or_works(cli, RUNS, VERIFY, SAMPLE, EVAL, RESUME)


# --- sizes, links, pipes, devices --------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FILES, METADATA])
def test_a_checkpoint_file_of_64_gb_is_not_read(cli: Cli, checkpoint: Path, run: Path, name: str) -> None:
    """Sparse files cost nothing to send."""
    for step in STEPS:
        os.truncate(step_folder(run, step) / name, 1 << 36)
    with memory_limit():
        fails_in_one_line(cli, RESUME, *([] if name == OPTIMIZER else [SAMPLE]))


@pytest.mark.parametrize("name", ["config.yaml", "environment.jsonl", "metrics.jsonl"])
def test_a_run_file_of_64_gb_is_not_read(cli: Cli, run: Path, name: str) -> None:
    os.truncate(run / name, 1 << 36)
    with memory_limit():
        fails_in_one_line_or_works(cli, RUNS, VERIFY, RESUME)


REPLACEMENTS: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, outside: path.symlink_to(outside),
    "pipe": lambda path, outside: os.mkfifo(path),
    "folder": lambda path, outside: path.mkdir(),
    "endless device": lambda path, outside: path.symlink_to("/dev/zero"),
    "link to itself": lambda path, outside: path.symlink_to(path.name),
    "broken link": lambda path, outside: path.symlink_to(outside.with_name("nothing")),
}


@contextmanager
def no_wait_at_a_pipe(folder: Path, seconds: float = 5) -> Iterator[None]:
    """Fail if the block still runs after some seconds and `folder` has a pipe. End the wait."""
    pipes = []

    def release() -> None:
        pipes.extend(path for path in folder.rglob("*") if path.is_fifo())
        for path in pipes:
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))

    timer = threading.Timer(seconds, release)
    timer.start()
    yield
    timer.cancel()
    assert pipes == []


def tree(path: Path) -> dict[str, bytes]:
    """Return the content of a file, or of every file in a folder."""
    return {str(file): file.read_bytes() for file in [path, *path.rglob("*")] if file.is_file()}


@pytest.mark.parametrize("kind", REPLACEMENTS)
@pytest.mark.parametrize("name", [*FILES, METADATA])
def test_what_is_not_a_file_of_the_folder_is_rejected(checkpoint: Path, tmp_path: Path, name: str, kind: str) -> None:
    outside = tmp_path / "outside"
    (checkpoint / name).rename(outside)
    REPLACEMENTS[kind](checkpoint / name, outside)
    with no_wait_at_a_pipe(checkpoint), memory_limit():
        assert content_of(checkpoint) is None


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "link to itself"])
@pytest.mark.parametrize(
    "name",
    [
        *("config.yaml", "environment.jsonl", "metrics.jsonl", "log.txt", "tensorboard", ".lock", "checkpoints"),
        *(f"checkpoints/step-{step:08d}" for step in STEPS),
    ],
)
def test_a_resume_writes_nothing_outside_the_run(cli: Cli, run: Path, tmp_path: Path, name: str, kind: str) -> None:
    outside = tmp_path / "outside"
    (run / name).rename(outside)
    before = tree(outside)
    REPLACEMENTS[kind](run / name, outside)
    with no_wait_at_a_pipe(run):
        fails_in_one_line_or_works(cli, RESUME, RUNS, VERIFY, SAMPLE)
    assert tree(outside) == before
