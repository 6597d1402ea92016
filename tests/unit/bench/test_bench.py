"""What the benchmarks promise: sides in turn in processes of their own, the same work on each, consistent figures."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from minigpt.bench import data, sample, sides
from minigpt.cli.main import app
from minigpt.config.resolve import parse_overrides, resolve
from minigpt.errors import UserError
from minigpt.sampling.draft import Draft

pytestmark = pytest.mark.alone

SHAPE = ["-s", "model.n_layer=1", "-s", "model.n_head=1", "-s", "model.n_embd=16", "-s", "model.context=16"]
MIXED = "Grüße, 世界 🎉\r\nthe quick brown fox\n" * 200


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def found(*arguments: object) -> Any:
    """The document of a benchmark."""
    done = bench(*arguments, "--json")
    if done.exception:
        raise done.exception
    return json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def check(document: Any, rate: str, rounds: int) -> None:
    """Whether what is summarised is what the rounds say."""
    assert document["machine"].keys() == {"processor", "cores", "system", "python", "torch", "minigpt"}
    for comparison in document["comparisons"]:
        ours, *others = comparison["sides"]
        for side in comparison["sides"].values():
            assert len(side["rounds"]) == rounds
            values = sorted(one[rate] for one in side["rounds"])
            assert values[0] <= side["summary"][rate] <= values[-1]
        assert list(comparison["ratios"]) == others
        for name, ratio in comparison["ratios"].items():
            pairs = zip(comparison["sides"][ours]["rounds"], comparison["sides"][name]["rounds"], strict=True)
            assert ratio["rounds"] == pytest.approx([ours[rate] / other[rate] for ours, other in pairs])
            assert ratio["min"] <= ratio["median"] <= ratio["max"]


# ---- sides ----


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")  # what nobody waited for is still listed
    return not (status.exists() and ") Z" in status.read_text())


def wait_until(reached: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_sides_work_in_turn_in_processes_of_their_own_that_end() -> None:
    said: list[str] = []
    build = "sides_for_bench.working"
    with sides.side("a", build, 0.02, say=said.append) as a, sides.side("b", build, 0.04, say=said.append) as b:
        pids = {a.facts["pid"], b.facts["pid"], os.getpid()}
        assert len(pids) == 3
        result = sides.take_turns([a, b], 3, "megabytes_per_second", what="naps")
    assert not any(is_running(pid) for pid in pids - {os.getpid()})
    spans = sorted((one["began"], one["ended"]) for side in (a, b) for one in side.rounds)
    assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(spans))
    assert [line for line in said if line != "ready"] == said[2:]
    assert len(said) == 5
    check(sides.document("naps", {}, [result], "cpu"), "megabytes_per_second", 3)


@pytest.mark.parametrize(
    ("how", "raised", "says"),
    [
        ("user", UserError, "^no such text$"),
        ("disk", OSError, "full"),
        ("memory", UserError, "out of memory on the side of a"),
        ("bug", RuntimeError, "Traceback(.|\n)*KeyError"),
        pytest.param(
            *("killed", UserError, r"the process of a ended \(SIGKILL\)"),
            marks=pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL"),
        ),
    ],
)
def test_what_fails_on_a_side_is_raised_here_and_leaves_no_process(
    how: str, raised: type[Exception], says: str
) -> None:
    with pytest.raises(raised, match=says), sides.side("a", "sides_for_bench.failing", how, say=print) as side:
        side.measure()
    assert not side.process.is_alive()


def test_a_side_that_ended_while_it_waited_is_told_of() -> None:
    """The system may end it for its memory while another works; to write to it then is no output that nobody reads."""
    with sides.side("a", "sides_for_bench.napping", say=print) as side:
        side.process.kill()
        side.process.join()
        with pytest.raises(UserError, match="the process of a ended"):
            side.measure()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_a_side_ends_silently_with_the_process_that_asks(name: str) -> None:
    """Ctrl-C reaches both; the traceback of a side, or a side that lives on, would be noise."""
    code = f"""
import sys
sys.path.append({str(Path(__file__).parents[2] / "support")!r})
from minigpt.bench.sides import side
with side("a", "sides_for_bench.napping", say=print) as one:
    print(one.facts["pid"], flush=True)
    sys.stdin.read()
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    number = signal.Signals[name]
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as asking:  # fmt: skip
        assert asking.stdout
        assert asking.stderr
        pid = int(asking.stdout.readline())
        if number == signal.SIGINT:
            os.killpg(asking.pid, number)
        else:
            asking.kill()
        wait_until(lambda: not is_running(pid))
        assert asking.stderr.read().count("Traceback") == (number == signal.SIGINT)


# ---- the benchmarks ----


def test_both_sides_of_training_compute_the_same_and_their_figures_agree(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(MIXED, encoding="utf-8")
    settings = ["-s", "train.batch_size=4", "-s", "runtime.dtype=float32", "-s", "runtime.compile=false"]
    # A run of two steps: the blocks are longer than the run that they measure.
    document = found("train", text, *SHAPE, *settings, "-s", "train.steps=2", "--rounds", 2, "--seconds", 0.05)
    check(document, "characters_per_second", 2)
    (comparison,) = document["comparisons"]
    ours, plain = comparison["sides"]["minigpt"], comparison["sides"]["plain loop"]
    assert ours["loss_at_start"] == pytest.approx(plain["loss_at_start"], abs=1e-5)
    assert (ours["dtype"], plain["dtype"]) == ("float32", "float32")
    for one in [*ours["rounds"], *plain["rounds"]]:
        per_second = one["steps"] / one["seconds"]
        assert one["ms_per_step"] * per_second == pytest.approx(1000)
        assert one["characters_per_second"] == pytest.approx(4 * 16 * per_second)
        assert one["share_of_matmul"] == pytest.approx(one["flops_per_second"] / one["matmul_flops_per_second"])
    flops = [
        side["rounds"][0]["flops_per_second"] / side["rounds"][0]["characters_per_second"] for side in (ours, plain)
    ]
    assert flops[0] == pytest.approx(flops[1])


def test_sampling_with_and_without_the_cache_draws_the_same_also_without_transformers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sample, "find_spec", lambda name: None)
    document = found("sample", *SHAPE, "--length", 16, "--streams", 2, "--rounds", 2)
    check(document, "characters_per_second", 2)
    sides = document["comparisons"][0]["sides"]
    ours, afresh = ([one["crc32"] for one in side["rounds"]] for side in sides.values())
    assert ours == afresh
    assert ours[0] != ours[1]  # a text of its own each round
    assert {one["characters"] for side in sides.values() for one in side["rounds"]} == {2 * 16}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The name of a run in the current folder, whose text is in the cache."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("to be or not to be, that is the question\n" * 20, encoding="utf-8")
    settings = [*SHAPE, "-s", "train.steps=2", "-s", "runtime.device=cpu", "-s", "runtime.compile=false"]
    assert CliRunner().invoke(app, ["train", "text.txt", "--name", "small", *settings]).exit_code == 0
    return "small"


@pytest.mark.parametrize("streams", [1, 2])
def test_a_trained_run_is_also_measured_without_guesses_and_draws_the_same(
    monkeypatch: pytest.MonkeyPatch, trained: str, streams: int
) -> None:
    monkeypatch.setattr(sample, "find_spec", lambda name: None)
    document = found("sample", trained, "--length", 8, "--rounds", 2, "--streams", streams)
    check(document, "characters_per_second", 2)
    sides = document["comparisons"][0]["sides"]
    assert list(sides) == ["minigpt", "minigpt without guesses", "minigpt without its cache"]
    assert len({tuple(one["crc32"] for one in side["rounds"]) for side in sides.values()}) == 1
    assert ["and guesses, " in side["about"] for side in sides.values()] == [True, False, False]


def test_many_streams_are_measured_without_guesses(monkeypatch: pytest.MonkeyPatch, trained: str) -> None:
    monkeypatch.setattr(sample, "find_spec", lambda name: None)
    streams = bench("sample", trained, "--rounds", 1, "--streams", 17)
    assert "measured without guesses, which take at most 16 streams, a CPU, and the run's text" in streams.stderr
    assert "16 characters in 17 streams" in streams.stdout  # all of the context, which is shorter than 256


def test_only_the_side_with_guesses_guesses(monkeypatch: pytest.MonkeyPatch, trained: str) -> None:
    config = resolve(sample.DEFAULTS, parse_overrides([*SHAPE[1::2], "runtime.threads=1"])).config
    asked: list[int] = []
    monkeypatch.setattr(Draft, "guess", lambda self, recent, gumbel, temperature: asked.append(len(gumbel)) or [])
    for guesses in (True, False):
        measure, _ = sample.ours(config, 16, 1, Path("runs", trained), True, guesses, print)
        asked.clear()
        measure()
        assert bool(asked) == guesses


def test_transformers_draws_as_much_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    config = resolve(sample.DEFAULTS, parse_overrides(SHAPE[1::2])).config
    with warnings.catch_warnings():
        measure, facts = sample.theirs(config, 16, 2, sample.VOCABULARY, "cpu", torch.get_num_threads(), print)
        assert measure()["characters"] == 2 * 16  # up to the last place in the context
    assert "GPT-2" in facts["about"]
    assert capfd.readouterr() == ("", "")


def test_both_sides_of_encoding_give_the_same_tokens(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\ufeff" + MIXED, encoding="utf-8", newline="")
    document = found("data", text, "--rounds", 2)
    check(document, "megabytes_per_second", 2)
    rounds = [one for side in document["comparisons"][0]["sides"].values() for one in side["rounds"]]
    assert {one["tokens"] for one in rounds} == {len(MIXED)}
    assert {one["crc32"] for one in rounds} == {rounds[0]["crc32"]}
    assert document["comparisons"][0]["bytes"] == len(MIXED.encode())


def test_the_texts_that_are_made_are_compared_in_a_table_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "MADE", [(name, 1, letters) for name, _, letters in data.MADE])
    done = bench("data", "--rounds", 1)
    assert done.exit_code == 0, done.exception
    tables = done.stdout.split("\n\n")
    for table, name in zip(tables, ("ASCII", "mixed UTF-8"), strict=False):
        head, ours, plain, ratio, *about = table.splitlines()
        assert head.startswith(f"{name}, 1.0 MB")
        assert ours.split()[0] == "minigpt"
        assert plain.startswith("plain Python ")
        assert "x as fast as plain Python (" in ratio
        assert len(about) == 2
    assert "torch" in tables[2]
    assert done.stderr.count("round 1 of 1") == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "--seconds", "nan"], "--seconds nan: expected 0 to 3600"),
        (["train", "-c", "shakespear"], "no preset and no file"),
        (["train", "nowhere.txt"], "nowhere.txt"),
        (["train", "-s", "model.n_layr=1"], "did you mean model.n_layer"),
        (["sample", "--length", "300"], "--length 300 exceeds the context; --set model.context=300"),
        (["sample", "-s", "train.steps=3"], "--set train.steps: here only model"),
        (["sample", "-s", "model.n_head=5"], "must be divisible"),
        (["data", "nowhere.txt"], "nowhere.txt"),
        (["data", "empty.txt"], "empty"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_measured_is_said_in_one_line(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").touch()
    done = bench(*arguments)
    assert isinstance(done.exception, UserError)
    assert says in str(done.exception)
    assert "\n" not in str(done.exception)
