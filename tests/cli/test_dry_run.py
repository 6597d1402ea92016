"""`minigpt train --dry-run`: the same arguments and checks as a run, a forecast, and no run."""

import re
from pathlib import Path

import pytest
from command_line import SMALL, VERSE, Cli

from minigpt.cli import forecast
from minigpt.training import timing

pytestmark = pytest.mark.usefixtures("torch_settings")


@pytest.fixture(autouse=True)
def no_measurement(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "measure_step", lambda *_: (0.5, 1.0))
    monkeypatch.setattr("minigpt.model.memory.peak_memory", lambda: 10**6)
    monkeypatch.setattr(forecast, "LIBRARIES", 0)
    Path("verse.txt").write_text(VERSE, encoding="utf-8")


def test_a_table_and_the_time(cli: Cli) -> None:
    done = cli("train", "verse.txt", *SMALL, "--dry-run")
    head, *rows = done.out.splitlines()
    assert head.split() == ["memory", "of", "a", "process", "size"]
    assert [row.split("  ")[0] for row in rows if "B" in row][:2] == ["program", "weights"]
    assert re.search(r"^program +1\.0 MB$", done.out, re.MULTILINE), "what reads the text is not the program"
    assert re.search(r"GFLOP per step, 3 s per step, 12 s for 4 steps without evaluations$", done.out)
    assert re.search(r"^[\d,]+ parameters, on cpu", done.err, re.MULTILINE)
    assert not Path("runs").exists()


def test_json_has_the_fitted_steps(cli: Cli) -> None:
    found = cli("train", "verse.txt", "--dry-run", "--json").json
    assert (found["vocab_size"], found["steps"], found["seconds"]) == (26, 107, 107 * found["seconds_per_step"])


def test_minutes_measure_once(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = iter([(0.5, 1.0)])
    monkeypatch.setattr(timing, "measure_step", lambda *_: next(measured))
    done = cli("train", "verse.txt", "--device", "cpu", "--minutes", "50", "--dry-run")
    assert re.search(r"^because a step takes 17 s here, and matrix multiplications run at", done.err, re.MULTILINE), (
        done.err
    )
    assert "GFLOP per step, 17 s per step" in done.out


def test_a_device_that_is_not_here_has_no_time(cli: Cli) -> None:
    arguments = ("train", "verse.txt", "--device", "cuda:77")
    assert cli(*arguments, "--dry-run", "--json").json["seconds_per_step"] is None
    assert "cuda:77 is not on this machine" in cli(*arguments, "--dry-run").out
    for more in ((), ("--dry-run", "--minutes", "1")):
        assert "runtime.device=cuda:77 is not available" in cli(*arguments, *more).error


def test_a_run_that_does_not_fit_says_what_to_type(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("train", "verse.txt", *SMALL, "-s", "model.context=256", "-s", "train.batch_size=64", "--dry-run")
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
        ("-s model.n_layr=2", "model.n_layer"),
        ("--resume last", "--dry-run forecasts a new run"),
    ],
)
def test_bad_input_is_that_of_train(cli: Cli, arguments: str, problem: str) -> None:
    assert problem in cli("train", "--dry-run", *arguments.split()).error
