"""Files from a stranger, or from a disk that lost something: refused in one line, or harmless; nothing else happens.

A damaged checkpoint is one whose hashes tell; a forged one has been given matching hashes, so that only what
it says can be judged. Every load runs under a watch that fails the test when a file is written, a program
started, code compiled or a module imported.
"""

import codecs
import itertools
import json
import os
import random
import shutil
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Cli
from forgery import CONFIG, MODEL, OPTIMIZER, STEPS, TOKENIZER, forge
from safetensors.torch import load, save
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from minigpt.config.resolve import changed_on_resume
from minigpt.errors import UserError
from minigpt.model import memory as room
from minigpt.model.load import load_model
from minigpt.sampling.generate import generate
from minigpt.storage import runs
from minigpt.storage.checkpoint import Checkpoint, load_checkpoint
from minigpt.storage.metadata import FILES, METADATA, read_metadata, verify
from minigpt.storage.runs import record_start, step_folder, summaries
from minigpt.storage.verify import verify_runs
from minigpt.training.metrics import Metrics
from minigpt.training.setup import prepare_resume

if sys.platform != "win32":
    import resource

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="limits, links and pipes as POSIX has them"),
    pytest.mark.usefixtures("empty_folder"),
]

ALL = (*FILES, METADATA)


@pytest.fixture
def run(finished_run: Path, empty_folder: Path) -> Path:
    """A copy of the finished run, to be spoilt; it is `r` under runs/ of the current folder."""
    return Path(shutil.copytree(finished_run, empty_folder / "runs/r"))


@pytest.fixture
def checkpoint(run: Path) -> Path:
    return step_folder(run, STEPS[-1])


# --- the watch ---------------------------------------------------------------------------------------

FORBIDDEN = (
    *("exec", "compile", "import", "marshal.loads", "pickle.find_class", "code.__new__", "ctypes.dlopen"),
    *("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "subprocess.Popen", "socket.connect"),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod"),
)
watched: list[str] = []
watching = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if watching and (event in FORBIDDEN or (event == "open" and int(arguments[2]) & (os.O_WRONLY | os.O_RDWR))):
        watched.append(f"{event} {arguments!r:.200}")


sys.addaudithook(_audit)
for _name in ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"):
    codecs.lookup(_name)  # by which json decodes bytes, as it guesses from the first of them


@contextmanager
def nothing_happens() -> Iterator[None]:
    """Fail where the block does more than read."""
    global watching
    watched.clear()
    watching = True
    try:
        yield
    finally:
        watching = False
    assert watched == []


@contextmanager
def little_memory(extra: int = 1 << 29) -> Iterator[None]:
    """Let this process have so many bytes more and no others, where the system counts them."""
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


def one_line(error: UserError) -> str:
    message = str(error)
    assert message.isprintable(), f"not one line: {message!r}"
    assert 0 < len(message) < 3000
    return message


def attempt(act: Callable[[], Any]) -> Any:
    """What `act` returns while it only reads, quickly; or the line with which it refuses."""
    started = time.process_time()
    try:
        with nothing_happens():
            result = act()
    except UserError as error:
        result = one_line(error)
    assert time.process_time() - started < 2
    return result


def told(loaded: Checkpoint) -> dict[str, Any]:
    """All that a checkpoint in memory holds, to the last bit."""
    weights = {name: tensor.numpy().tobytes() for name, tensor in load_model(loaded).state_dict().items()}
    return {"weights": weights, "text": loaded.tokenizer.to_json(), "config": loaded.config, "meta": loaded.metadata}


def load_all(folder: Path) -> dict[str, Any]:
    """Load a checkpoint, and check the file that only a resume reads too."""
    verify(folder)
    return told(load_checkpoint(folder))


# --- damage ------------------------------------------------------------------------------------------


def regions(name: str, content: bytes) -> list[tuple[int, int]]:
    """Where the parts of a file begin and end: header length, header and tensors, or fields."""
    if name.endswith(".safetensors"):
        header = 8 + struct.unpack("<Q", content[:8])[0]
        ends = [0, 8, *(i for i in range(9, header) if content[i : i + 1] in b"{,"), header]
        entries = json.loads(content[8:header]).values()
        ends += sorted({header + end for entry in entries if "data_offsets" in entry for end in entry["data_offsets"]})
    else:
        ends = [0, *(i + 1 for i in range(len(content)) if content[i : i + 1] in b'\n,:"'), len(content)]
    return [(start, end) for start, end in itertools.pairwise(ends) if end > start]


def damages(name: str, content: bytes, other: bytes, draws: random.Random) -> Iterator[tuple[str, bytes | None]]:
    """What a disk, a copy or a hand does to a file, with words for it; None is a file that is gone."""
    yield from (("gone", None), ("empty", b""), ("of another step", other), ("twice", content * 2))
    yield from (("longer", content + b"\0"), ("with a line end", content + b"\n"), ("all zero", bytes(len(content))))
    for start, end in regions(name, content):
        for at in {start, end - 1, draws.randrange(start, end)}:
            before, byte, after = content[:at], content[at], content[at + 1 :]
            yield f"bit flipped at {at}", before + bytes([byte ^ 1 << draws.randrange(8)]) + after
            yield f"cut at {at}", before
            kind = draws.randrange(3)
            if kind == 0:
                yield f"byte {at} lost", before + after
            elif kind == 1:
                yield f"byte put in at {at}", before + draws.randbytes(1) + content[at:]
            else:
                yield f"zero from {at}", before + bytes(min(512, len(content) - at)) + content[at + 512 :]


@contextmanager
def holding(path: Path, content: bytes | None) -> Iterator[None]:
    """Give a file this content for the length of the block."""
    before = path.read_bytes()
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def sampled(path: Path, other: Path, most: int) -> Iterator[tuple[str, bytes | None]]:
    """At most so many damages of a file, of every kind and region alike, the same ones each time."""
    draws = random.Random(path.name)
    found = list(damages(path.name, path.read_bytes(), other.read_bytes(), draws))
    yield from found[:7]
    yield from draws.sample(found[7:], min(most, len(found) - 7))


def test_every_kind_of_damage_to_a_checkpoint_is_detected_or_harmless(run: Path) -> None:
    """More than two thousand; harmless are those after which every weight and word is what it was."""
    older, folder = (step_folder(run, step) for step in STEPS)
    expected, tried, wrong = load_all(folder), 0, []
    attempt(lambda: load_all(folder))
    for name in ALL:
        for what, content in sampled(folder / name, older / name, 600):
            tried += 1
            with holding(folder / name, content):
                try:
                    result = attempt(lambda: load_all(folder))
                except Exception as error:
                    wrong.append(f"{name} {what}: {error!r}")
                else:
                    if not isinstance(result, str) and result != expected:
                        wrong.append(f"{name} {what}: believed")
    assert wrong == []
    assert tried > 2000
    assert attempt(lambda: load_all(folder)) == expected


def test_a_damaged_run_goes_on_from_what_is_intact_or_is_refused(run: Path) -> None:
    """Whichever file is damaged: from a whole checkpoint, and under the settings it was trained with."""
    steps, trained, wrong = [load_all(step_folder(run, step)) for step in STEPS], load_checkpoint(run).config, []
    newest = step_folder(run, STEPS[-1])
    for path in (run / "config.yaml", run / "checkpoints/last", *(newest / name for name in ALL)):
        for what, content in sampled(path, step_folder(run, STEPS[0]) / FILES[2], 30):
            with holding(path, content):
                try:
                    start = prepare_resume(run, [])
                    assert start.checkpoint is not None
                    if changed_on_resume(trained, start.config) or load_all(start.checkpoint) not in steps:
                        wrong.append(f"{path.name} {what}: believed")
                except UserError as error:
                    one_line(error)
                except Exception as error:
                    wrong.append(f"{path.name} {what}: {error!r}")
    assert wrong == []


def test_a_damaged_pointer_leads_to_a_whole_checkpoint(run: Path) -> None:
    known = [told(load_checkpoint(step_folder(run, step))) for step in STEPS]
    for name, other in (("last", "best"), ("best", "last")):
        pointer = run / "checkpoints" / name
        for what, content in [*sampled(pointer, pointer.with_name(other), 200), ("far", b"step-" + b"9" * 99)]:
            with holding(pointer, content):
                result = attempt(lambda name=name: told(load_checkpoint(run, name)))  # type: ignore[misc]
            assert isinstance(result, str) or result in known, f"{name} {what}"


@pytest.mark.parametrize("name", ["metrics.jsonl", "environment.json", "config.yaml"])
def test_what_a_run_tells_about_itself_may_be_damaged_in_any_way(
    run: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table, its check and the next start live with it: whole lines of curves stay, and no start is lost."""
    monkeypatch.chdir(run.parent.parent)
    monkeypatch.setattr(runs, "_commit", lambda: None)
    path = run / name
    deep = [("deep", b"[" * 200_000), ("deep line", b'{"step":' * 100_000 + b"\n"), ("words", b'{"step": "x"}\n')]
    for what, content in [*sampled(path, run / "config.yaml", 150), *deep]:
        with holding(path, content):
            list(summaries())
            assert all(row.problem is None or row.problem.isprintable() for row in verify_runs()), what
            if name == "metrics.jsonl":
                Metrics(run, 2, 0, 4).close()
                left = path.read_bytes()
                assert (content or b"").startswith(left), what
                assert left.endswith(b"\n") or not left, what
                shutil.rmtree(run / "tensorboard")
            elif name == "environment.json":
                try:
                    record_start(run, 4, ["minigpt"], "cpu")
                except UserError as error:
                    one_line(error)
                    assert path.read_bytes() == content, what
                else:
                    assert json.loads(path.read_bytes())[-1]["step"] == 4, what


# --- forgery -----------------------------------------------------------------------------------------


def tensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def other_weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[bytes], bytes]:
    """The stored weights, changed."""

    def changed(content: bytes) -> bytes:
        weights = load(content)
        change(weights)
        return save({name: tensor.contiguous() for name, tensor in weights.items()})

    return changed


def first_as(dtype: torch.dtype) -> Callable[[bytes], bytes]:
    return other_weights(lambda w: w.update({"norm.weight": w["norm.weight"].to(dtype)}))


def said(*pairs: tuple[str, str]) -> Callable[[bytes], bytes]:
    """The text, with these lines changed."""

    def changed(content: bytes) -> bytes:
        text = content.decode()
        for old, new in pairs:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        return text.encode()

    return changed


BOMB = "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]\n" for i in range(1, 30))
FORGED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "header longer than the file": (MODEL, lambda old: struct.pack("<Q", 1 << 40) + old[8:]),
    "header of 2^63": (MODEL, lambda old: struct.pack("<Q", 1 << 63) + old[8:]),
    "no header": (MODEL, lambda old: tensors(b"")),
    "a list for a header": (MODEL, lambda old: tensors([1])),
    "a deep header": (MODEL, lambda old: tensors(b"[" * 200_000)),
    "a deep shape": (MODEL, lambda old: tensors(b'{"a":{"shape":' + b"[" * 200_000)),
    "a huge shape": (MODEL, lambda old: tensors({"norm.weight": entry(shape=(1 << 40, 1 << 40))}, bytes(4))),
    "a huge tensor": (MODEL, lambda old: tensors({"norm.weight": entry(shape=(1 << 40,), offsets=(0, 1 << 42))})),
    "a negative shape": (MODEL, lambda old: tensors({"norm.weight": entry(shape=(-1,))}, bytes(4))),
    "a shape of words": (MODEL, lambda old: tensors({"norm.weight": entry(shape=("8",))}, bytes(4))),
    "overlap": (MODEL, lambda old: tensors({"a": entry(), "b": entry()}, bytes(4))),
    "a hole": (MODEL, lambda old: tensors({"a": entry(offsets=(4, 8))}, bytes(8))),
    "offsets backwards": (MODEL, lambda old: tensors({"a": entry(offsets=(4, 0))}, bytes(4))),
    "unknown type": (MODEL, lambda old: tensors({"norm.weight": entry("F31")}, bytes(4))),
    "many tensors": (MODEL, lambda old: tensors({f"t{i}": entry(shape=(0,), offsets=(0, 0)) for i in range(50_000)})),
    "names that move the cursor": (MODEL, lambda old: tensors({"\x1b[2J\n": entry()}, bytes(4))),
    "a million more weights": (MODEL, other_weights(lambda w: w.update({"more": torch.zeros(1_000_000)}))),
    "a weight too few": (MODEL, other_weights(lambda w: w.pop("norm.weight"))),
    "a weight turned": (MODEL, other_weights(lambda w: w.update({"norm.weight": w["norm.weight"][None]}))),
    "int8": (MODEL, first_as(torch.int8)),
    "bool": (MODEL, first_as(torch.bool)),
    "float64": (MODEL, first_as(torch.float64)),
    "complex": (MODEL, first_as(torch.complex64)),
    "a layer for each atom": (CONFIG, said(("n_layer: 1", "n_layer: 1000000000"))),
    "a wide model": (CONFIG, said(("n_embd: 8", "n_embd: 100000"))),
    "a model wider than the sea": (CONFIG, said(("n_embd: 8", "n_embd: 1000000000"))),
    "a model wider than numbers": (CONFIG, said(("n_embd: 8", f"n_embd: 1{'0' * 400}"))),
    "a long context": (CONFIG, said(("context: 8", "context: 1000000000000"))),
    "a context longer than numbers": (CONFIG, said(("context: 8", f"context: 1{'0' * 400}"))),
    "learned positions": (CONFIG, said(("position: rotary", "position: learned"))),
    "many layers": (CONFIG, said(("n_layer: 1", "n_layer: 1000"))),
    "a model of petabytes": (CONFIG, said(("n_layer: 1", "n_layer: 1000"), ("n_embd: 8", "n_embd: 100000"))),
    "heads that do not divide": (CONFIG, said(("n_head: 1", "n_head: 3"))),
    "more heads than width": (CONFIG, said(("n_head: 1", "n_head: 16"))),
    "another activation": (CONFIG, said(("activation: relu2", "activation: swiglu"))),
    "a tag that runs": (CONFIG, said(("n_layer: 1", "n_layer: !!python/object/apply:os.system ['touch ran']"))),
    "a tag of a module": (CONFIG, said(("n_layer: 1", "n_layer: !!python/module:antigravity x"))),
    "an explicit tag": (CONFIG, said(("n_layer: 1", "n_layer: !!int 1"))),
    "an alias": (CONFIG, said(("n_layer: 1", "n_layer: &a 1"), ("n_head: 1", "n_head: *a"))),
    "merged": (CONFIG, lambda old: old + b"<<: {model: {n_layer: 9}}\n"),
    "aliases by the billion": (CONFIG, lambda old: b"l0: &l0 [1]\n" + BOMB.encode()),
    "deep": (CONFIG, lambda old: b"model: " + b"[" * 100_000),
    "deep maps": (CONFIG, lambda old: b"{a: " * 100_000),
    "very long": (CONFIG, lambda old: old + b"#" * (2 << 20)),
    "half a million values": (CONFIG, lambda old: b"a: [" + b"1," * 500_000 + b"]"),
    "not text": (CONFIG, lambda old: old + b"\xff"),
    "an unknown section": (CONFIG, lambda old: old + b"extra: {a: 1}\n"),
    "a number with a million digits": (CONFIG, said(("seed: 1337\n  log", f"seed: {'9' * 900_000}\n  log"))),
    "a larger vocabulary": (TOKENIZER, lambda old: b'{"kind": "char", "chars": "\\nabcdefs"}'),
    "bytes": (TOKENIZER, lambda old: b'{"kind": "byte"}'),
    "all of Unicode": (TOKENIZER, lambda old: json.dumps(
        {"kind": "char", "chars": "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))}
    ).encode()),
    "the same twice": (TOKENIZER, lambda old: b'{"kind": "char", "chars": "aabcsu"}'),
    "half a character": (TOKENIZER, lambda old: b'{"kind": "char", "chars": "abcsu\\ud800"}'),
    "no order": (TOKENIZER, lambda old: b'{"kind": "char", "chars": "cba\\nus"}'),
    "a deep tokenizer": (TOKENIZER, lambda old: b'{"kind":' * 200_000),
    "a long tokenizer": (TOKENIZER, lambda old: old + b" " * (64 << 20)),
}  # fmt: skip


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_file_is_refused_in_one_line_with_bounded_memory_and_time(checkpoint: Path, what: str) -> None:
    name, change = FORGED[what]
    forge(checkpoint, {name: change((checkpoint / name).read_bytes())})
    with little_memory():
        result = attempt(lambda: told(load_checkpoint(checkpoint)))
    assert isinstance(result, str), f"{what} was believed"
    assert "Traceback" not in result
    assert not Path("ran").exists()


@pytest.mark.parametrize("what", ["a wide model", "a model of petabytes", "a long context"])
def test_a_forged_size_is_refused_where_the_system_does_not_say_what_memory_is_free(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """As on macOS and Windows, where a buffer of the size that the configuration implies was once asked for."""
    monkeypatch.setattr(room, "free_memory_bytes", lambda device: None)
    test_a_forged_file_is_refused_in_one_line_with_bounded_memory_and_time(checkpoint, what)


def meta_with(path: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    *parents, last = path.split(".")

    def change(meta: dict[str, Any]) -> None:
        for parent in parents:
            meta = meta[parent]
        meta.pop(last) if value is ... else meta.update({last: value})

    return change


WRONG_TYPES: tuple[Any, ...] = (..., None, "x", [], {}, [1], {"a": {}}, True, -1, 1.5, float("nan"), float("inf"))
FIELDS = (
    *("format", "step", "characters_seen", "corpus", "corpus.name", "corpus.fingerprint", "vocab_size", "parameters"),
    *("runtime", "runtime.device", "runtime.dtype", "runtime.compile", "runtime.threads", "state", "state.step"),
    *("state.tokens_seen", "state.seconds", "state.best_loss", "state.best_step", "state.loss_count"),
)


def is_a_value(field: str, value: Any) -> bool:
    """Whether a field of metadata.json may be this."""
    optional = ("state.best_loss", "state.seconds")
    left_out_of_state = (field.startswith("state.") and value is ...) or (field == "state" and value == {})
    number = value == 1.5 or type(value) is int
    text = value == "x" and field in ("corpus.name", "corpus.fingerprint", "runtime.device", "runtime.dtype")
    flag = value is True and field == "runtime.compile"
    return (
        left_out_of_state or text or flag or (field in optional and number) or (field == optional[0] and value is None)
    )


@pytest.mark.parametrize("field", FIELDS)
def test_each_field_of_a_forged_description_has_its_type(
    run: Path, checkpoint: Path, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `minigpt runs` too, where one such checkpoint must not hide the other runs."""
    monkeypatch.chdir(run.parent.parent)
    original = (checkpoint / METADATA).read_bytes()
    for value in WRONG_TYPES:
        meta = json.loads(original)
        meta_with(field, value)(meta)
        forge(checkpoint, meta=meta)
        result = attempt(lambda: told(load_checkpoint(checkpoint)))
        assert is_a_value(field, value) or isinstance(result, str), f"{field} {value!r} was believed"
        assert len(list(summaries())) == 1
        assert all(row.problem is None or row.problem.isprintable() for row in verify_runs())


@pytest.mark.parametrize(
    "content",
    [
        *("[" * 100_000, '{"sha256":' * 100_000, '{"step": ' + "9" * 5000 + "}", '"\\ud800"', "\ufeff{}", "NaN"),
        *(" " * (3 << 20), '{"sha256": {"metadata.json": "\\ud800"}}', '{"sha256": "metadata.json"}', "\x1b[2J"),
    ],
    ids=lambda content: ascii(content[:20]),
)
def test_a_description_that_is_nothing_of_the_kind_is_refused(checkpoint: Path, content: str) -> None:
    (checkpoint / METADATA).write_bytes(content.encode("utf-8", "surrogatepass"))
    assert isinstance(attempt(lambda: read_metadata(checkpoint)), str)
    assert isinstance(attempt(lambda: load_checkpoint(checkpoint)), str)


HUGE = 9 * 10**4299
"""As many digits as Python prints; twice that it does not."""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("state.step", HUGE), ("step", HUGE), ("state.tokens_seen", HUGE), ("parameters", HUGE)),
        *(("state.seconds", 1e308), ("state.seconds", -1e308), ("state.best_step", HUGE), ("state.loss_count", HUGE)),
        *(("state.evaluations_since_best", HUGE), ("runtime.threads", 10**6), ("runtime.threads", HUGE)),
        *(("runtime.device", "\x1b[2J"), ("runtime.device", "cuda:99"), ("runtime.dtype", "int8")),
        *(("runtime.dtype", "\x1b[2J"), ("runtime.kernels", "\x1b[2J")),
        *(("corpus.name", "\ud800\x1b[2J\n"), ("corpus.fingerprint", "../../../x"), ("corpus.fingerprint", "+")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["train", "eval", "sample", "runs", "verify"])
def test_no_value_in_a_forged_description_makes_a_command_fail_but_in_one_line(
    cli: Cli, run: Path, field: str, value: Any, command: str
) -> None:
    arguments = {
        "train": ["train", "--resume", "r", "-s", "train.steps=5"],
        "eval": ["eval", "r", "--device", "cpu"],
        "sample": ["sample", "r", "-l", "5"],
        "runs": ["runs"],
        "verify": ["runs", "--verify"],
    }[command]
    for step in STEPS:
        meta = json.loads((step_folder(run, step) / METADATA).read_bytes())
        meta_with(field, value)(meta)
        if field == "step":
            meta_with("state.step", value)(meta)
        forge(step_folder(run, step), meta=meta)
    done = cli(*arguments)
    assert done.code in (0, 1)
    assert "\x1b" not in done.out + done.err or command == "runs"
    if done.code and command != "verify":
        assert done.err.splitlines()[-1].startswith("minigpt: ")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38])
def test_weights_that_are_no_numbers_are_one_line(cli: Cli, checkpoint: Path, run: Path, value: float) -> None:
    change = other_weights(lambda w: w["token_embedding.weight"].fill_(value))
    for step in STEPS:
        folder = step_folder(run, step)
        forge(folder, {MODEL: change((folder / MODEL).read_bytes())})
    try:
        loaded = load_checkpoint(checkpoint)
        list(generate(load_model(loaded), loaded.tokenizer, "a"))
    except UserError as error:
        one_line(error)
    done = cli("eval", "r", "--json", "--device", "cpu")
    if done.code:
        assert done.error
    else:
        assert done.json["characters"] > 0  # fails on NaN, which is no JSON


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.clear(),
        lambda t: [t.pop(name) for name in list(t) if name.startswith("step/")],
        lambda t: t.update({name: tensor[:1] for name, tensor in t.items() if tensor.ndim}),
        lambda t: t.update({name: tensor.to(torch.int8) for name, tensor in t.items()}),
        lambda t: t.update({name: tensor + float("nan") for name, tensor in t.items()}),
        lambda t: t.update({"/": torch.ones(1), "x": torch.ones(1), "exp_avg/nothing": torch.ones(1)}),
        lambda t: t.update({"weights/norm.weight": torch.ones(3)}),
        lambda t: t.update({"more": torch.zeros(3_000_000)}),
    ],
    ids=["nothing", "no step", "short", "int8", "NaN", "odd names", "weights", "large"],
)
def test_a_forged_optimizer_is_refused_or_passed_over(
    cli: Cli, run: Path, change: Callable[[dict[str, torch.Tensor]], Any]
) -> None:
    for step in STEPS:
        folder = step_folder(run, step)
        forge(folder, {OPTIMIZER: other_weights(change)((folder / OPTIMIZER).read_bytes())})
    done = cli("train", "--resume", "r", "-s", "train.steps=6")
    if done.code:
        assert done.error


def test_files_as_large_as_a_disk_are_not_read(run: Path, checkpoint: Path) -> None:
    """Holes cost a stranger nothing to send; 64 GB of them were once hashed, or taken into memory, first of all."""
    forged = {MODEL: tensors({"x": entry("U8", (1 << 36,), (0, 1 << 36))})}
    for name in (*ALL, MODEL):
        folder = Path(shutil.copytree(checkpoint, run.parent / "copy"))
        if name in forged:
            (folder / name).write_bytes(forged.pop(name))
        os.truncate(folder / name, 1 << 36)
        with little_memory():
            result = attempt(lambda folder=folder: load_checkpoint(folder))  # type: ignore[misc]
        assert name == OPTIMIZER or isinstance(result, str), name
        shutil.rmtree(folder)


@pytest.mark.parametrize("which", ["config.yaml", "environment.json", "metrics.jsonl", "tensorboard/events*"])
def test_files_of_a_run_as_large_as_a_disk_are_one_line(cli: Cli, run: Path, which: str) -> None:
    """Also with a first record that claims all of it, by a checksum that is right."""
    place, claim = next(run.glob(which)), struct.pack("<Q", 1 << 35)
    if "events" in which:
        place.write_bytes(claim + struct.pack("<I", masked_crc32c(claim)))
    os.truncate(place, 1 << 36)
    for arguments in (["runs", "--verify"], ["train", "--resume", "r", "-s", "train.steps=5"]):
        with little_memory():
            done = cli(*arguments)
        assert done.code == 0 or done.err.splitlines()[-1].startswith("minigpt: ")


# --- links, pipes, devices ---------------------------------------------------------------------------


def a_link(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def a_pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def a_folder(path: Path, outside: Path) -> None:
    path.mkdir()


def endless(path: Path, outside: Path) -> None:
    path.symlink_to("/dev/zero")


def a_circle(path: Path, outside: Path) -> None:
    path.symlink_to(path.name)


def nowhere(path: Path, outside: Path) -> None:
    path.symlink_to(outside.with_name("not there"))


KINDS = [a_link, a_pipe, a_folder, endless, a_circle, nowhere]


@contextmanager
def no_hang(pipes: Path, seconds: float = 5) -> Iterator[None]:
    """Let go whoever waits at a pipe below `pipes`, late enough that the time tells."""

    def release() -> None:
        for path in [pipes, *pipes.rglob("*")]:
            if path.is_fifo():
                os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))

    started, timer = time.perf_counter(), threading.Timer(seconds, release)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    assert time.perf_counter() - started < seconds, "it waited"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ALL)
def test_what_is_no_file_of_the_folder_is_no_part_of_a_checkpoint(
    checkpoint: Path, tmp_path: Path, name: str, kind: Callable[[Path, Path], None]
) -> None:
    outside = tmp_path / "outside"
    (checkpoint / name).rename(outside)
    kind(checkpoint / name, outside)
    with no_hang(checkpoint), little_memory():
        assert isinstance(attempt(lambda: load_all(checkpoint)), str)


IN_A_RUN = ["config.yaml", "environment.json", "metrics.jsonl", "tensorboard", "checkpoints", ".lock"]
IN_CHECKPOINTS = [
    "tensorboard/events*",
    "checkpoints/last",
    "checkpoints/best",
    "checkpoints/step-00000002",
    "checkpoints/step-00000004",
]


def tree(path: Path) -> dict[str, bytes]:
    """Every file of a folder, or the file itself."""
    files = [path, *path.rglob("*")]
    return {str(file.relative_to(path)): file.read_bytes() for file in files if file.is_file()}


@pytest.mark.parametrize("kind", [a_link, a_pipe, a_folder, a_circle])
@pytest.mark.parametrize("name", ["config.yaml", "environment.json", "tensorboard/vectors.tsv"])
def test_resuming_writes_through_no_link_that_waits_where_a_file_is_gathered(
    cli: Cli, run: Path, tmp_path: Path, name: str, kind: Callable[[Path, Path], None]
) -> None:
    outside, place = tmp_path / "outside", (run / name).parent / f".{Path(name).name}.{os.getpid()}"
    outside.write_text("theirs", encoding="utf-8")
    kind(place, outside)
    with no_hang(run):
        done = cli("train", "--resume", "r", "-s", "train.steps=5")
    assert not done.code or done.error
    assert outside.read_text(encoding="utf-8") == "theirs"


@pytest.mark.parametrize("kind", [a_link, a_pipe, a_folder, a_circle])
@pytest.mark.parametrize("which", [*IN_A_RUN, *IN_CHECKPOINTS])
def test_resuming_a_run_writes_nothing_through_a_link_and_waits_at_no_pipe(
    cli: Cli, run: Path, tmp_path: Path, which: str, kind: Callable[[Path, Path], None]
) -> None:
    """Refused in one line, or gone on with as if it were not there; where a link leads, nothing changes."""
    outside, place = tmp_path / "outside", next(run.glob(which))
    place.rename(outside)
    before = tree(outside)
    kind(place, outside)
    with no_hang(run):
        done = cli("train", "--resume", "r", "-s", "train.steps=5")
    assert tree(outside) == before
    if done.code:
        assert done.error
    with no_hang(run):
        for arguments in (["runs"], ["runs", "--verify"], ["sample", "r", "-l", "3"]):
            assert cli(*arguments).code in (0, 1)
    assert tree(outside) == before
