"""`minigpt plan`."""

import re
from pathlib import Path

import pytest
from command_line import SMALL, VERSE, Cli

from minigpt.cli import forecast
from minigpt.training import timing

pytestmark = pytest.mark.usefixtures("empty_folder", "torch_settings")


@pytest.fixture(autouse=True)
def no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "measure_step", lambda *_: (0.5, 1.0))
    monkeypatch.setattr(forecast, "peak_memory", lambda: 1)
    monkeypatch.setattr(forecast, "LIBRARIES", 0)


def test_a_table_and_the_time(cli: Cli) -> None:
    done = cli("plan", "-c", "tiny", *SMALL)
    head, *rows = done.out.splitlines()
    assert head.split() == ["memory", "of", "a", "process", "size"]
    assert [row.split("  ")[0] for row in rows if "B" in row][:2] == ["program", "weights"]
    assert re.search(r"GFLOP per step, 3 s per step, 12 s for 4 steps without evaluations$", done.out)
    assert re.match(r"[\d,]+ parameters with a vocabulary of 65 .*, on cpu", done.err)


def test_the_vocabulary_size_is_assumed(cli: Cli) -> None:
    assert "vocabulary of 65 (assumed" in cli("plan", "-c", "tiny", *SMALL).err
    assert cli("plan", "-c", "tiny", *SMALL, "-s", "data.tokenizer=byte", "--json").json["vocab_size"] == 256


def test_several_processes_exchange_gradients(cli: Cli) -> None:
    shards = ("-s", "train.shards=2", "--processes", "2")
    found = cli("plan", "-c", "tiny", *SMALL, *shards, "--json").json
    assert found["memory"]["exchange"] == found["memory"]["weights"]
    assert found["seconds"] == 4 * found["seconds_per_step"]
    out = cli("plan", "-c", "tiny", *SMALL, *shards).out
    assert re.match(r"memory of a process +size\n", out)
    assert out.endswith("not measured: communication between processes\n")


def test_a_length_in_epochs(cli: Cli) -> None:
    base = ("plan", "-c", "tiny", "-s", "runtime.device=cpu", "--json")
    assert cli(*base, "-s", "train.epochs=2").json["seconds"] is None
    said = cli(*base[:-1], "-s", "train.epochs=2").err.splitlines()[-1]
    assert said == "the steps of train.epochs depend on the text, which was not read; to read it, add builtin:pydoc"


def test_without_a_text_it_plans_what_train_does(cli: Cli) -> None:
    said = cli("plan", "-s", "data.source=builtin:stories").err
    assert said.startswith("fitted settings: ")
    assert "a vocabulary of 52, on" in said


def test_a_text_gives_the_steps_the_vocabulary_and_fitted_settings(cli: Cli) -> None:
    Path("verse.txt").write_text(VERSE, encoding="utf-8")
    done = cli("plan", "verse.txt", *SMALL, "-s", "train.steps=null", "-s", "train.epochs=2")
    assert "parameters with a vocabulary of 26, on cpu" in done.err
    steps = -(-2 * int(0.9 * len(VERSE)) // (4 * 16))
    assert re.search(rf"3 s per step, 3 min for {steps} steps without evaluations\n", done.out)
    found = cli("plan", "verse.txt", "--json").json
    assert (found["vocab_size"], found["steps"], found["seconds"]) == (26, 107, 107 * found["seconds_per_step"])


def test_a_text_is_planned_for_a_device_that_is_not_here(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.model.device.available_devices", lambda: ["cpu"])
    Path("verse.txt").write_text(VERSE, encoding="utf-8")
    arguments = ("plan", "verse.txt", "-s", "runtime.device=cuda")
    done = cli(*arguments)
    assert "time and free memory are unknown, because cuda is not on this machine" in done.out
    assert "runtime.device=cuda is not available" in cli(*arguments, "--minutes", "1").error
    assert "runtime.device=cuda is not available" in cli("train", "verse.txt", "-s", "runtime.device=cuda").error


def test_a_plan_shows_what_minutes_would_choose(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("verse.txt").write_text(VERSE * 20, encoding="utf-8")
    base = ("plan", "verse.txt", "-s", "runtime.device=cpu", "--minutes")
    measured = iter([(0.5, 1.0), (5.0, 10.0)])
    with monkeypatch.context() as patch:
        patch.setattr(timing, "measure_step", lambda *_: next(measured))
        patch.setattr("minigpt.model.memory.peak_memory", lambda: 10**6)
        patch.setattr(forecast, "peak_memory", lambda: 10**9)
        done = cli(*base, "50")
    chosen = (
        r"^chosen: 4 layers, 128 wide, context 64; [\d,]+ steps of 16 sequences, .* epochs; "
        r"dropout 0\.2, weight decay 1\nbecause a step takes 9 s here, and matrix products run at \S+ GFLOP/s$"
    )
    assert re.search(chosen, done.err, re.MULTILINE), done.err
    assert "GFLOP per step, 9 s per step" in done.out, "a step was measured twice"
    assert re.search(r"^program +1\.0 MB$", done.out, re.MULTILINE), "the measured step counts as the program"
    for wrong in ("0", "-1", "nan", "1e9"):
        assert "--minutes must be more than 0" in cli(*base, wrong).error
    assert "--minutes and --set train.epochs=2 both give the duration" in cli(*base, "5", "-s", "train.epochs=2").error
    assert cli("plan", "-c", "tiny", "--minutes", "5").error.startswith("--minutes needs a text")


def test_a_device_that_is_not_here_has_no_time(cli: Cli) -> None:
    arguments = ("plan", "-c", "tiny", "-s", "runtime.device=cuda:77")
    assert cli(*arguments, "--json").json["seconds_per_step"] is None
    assert "cuda:77 is not on this machine" in cli(*arguments).out


def test_a_run_that_does_not_fit_says_what_to_type(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("plan", "-c", "tiny", *SMALL, "-s", "model.context=256", "-s", "train.batch_size=64")
    peak = cli(*arguments, "--json").json["memory"]["peak"]
    monkeypatch.setattr(forecast, "free_memory_bytes", lambda device: peak // 2)
    assert re.search(r"it does not fit; try --set train\.micro_batch_size=\d+\n$", cli(*arguments).out)
    monkeypatch.setattr(forecast, "free_memory_bytes", lambda device: 1000)
    assert "try a smaller train.batch_size" in cli(*arguments).out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("-c nosuch", "nosuch"),
        ("nosuch.txt", "nosuch.txt"),
        ("-s model.n_layr=2", r"model\.n_layer"),
        ("-c tiny --processes 3", "3 processes cannot divide train.shards=3|must be a multiple"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, arguments: str, problem: str) -> None:
    assert re.search(problem, cli("plan", *arguments.split()).error)


def test_wrong_usage(cli: Cli) -> None:
    assert "--processes" in cli("plan", "--processes", "0").err
    assert "--set train.steps=VALUE" in cli("plan", "--steps", "3").err
