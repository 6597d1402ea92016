"""Several processes train one run: the same bits, and one clear line for everything that goes wrong."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command_line import HANG, SMALL, VERSE, environment, wait_until
from forgery import forge
from safetensors.numpy import load, save
from several import Job, at_step, file_limit, no_weights, other_argument, own_steps, together
from small_runs import ending

from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.metadata import OPTIMIZER
from minigpt.storage.runs import checkpoint_steps, step_folder

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX")]

TRAIN = (
    "train", "verse.txt", "--resume", "auto", *SMALL, "-s", "train.steps=6", "-s", "train.batch_size=16",
    "-s", "train.log_every=2", "-s", "train.shards=8", "-s", "runtime.threads=1", "-s", "train.keep_last=9",
)  # fmt: skip
CONFIGURATIONS = {
    "muon": ["-s", "model.dropout=0.1", "-s", "optim.grad_clip=0.3"],
    "adamw": ["-s", "model.family=classic", "-s", "optim.name=adamw", "-s", "model.dropout=0.2"],
    "long": ["-s", "data.val_source=long.txt"],  # five batches to evaluate
    "micro": ["-s", "train.micro_batch_size=1", "-s", "runtime.dtype=bfloat16", "-s", "model.dropout=0.1"],
    "lstm": ["-s", "model.family=lstm", "-s", "model.dropout=0.1", "-s", "data.tokenizer=byte"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "verse.txt").write_text(VERSE, encoding="utf-8")
    (tmp_path / "long.txt").write_text(VERSE[::-1] * 10, encoding="utf-8")
    os.utime(tmp_path / "verse.txt", (1, 1))
    return tmp_path


def train(folder: Path, name: str, *more: str, size: int = 2, **setup: Any) -> Any:
    return together(folder, *TRAIN, "--name", name, *more, size=size, **setup)


def succeed(folder: Path, name: str, *more: str, size: int) -> dict[str, Any]:
    ranks = train(folder, name, *more, size=size)
    assert [rank.code for rank in ranks] == [0] * size, ranks
    assert [rank.err for rank in ranks[1:]] == [""] * (size - 1)
    return ending(folder / "runs" / name)


def test_processes_agree_that_a_lost_best_checkpoint_is_forgotten(folder: Path) -> None:
    """Otherwise one of them saves a new best, and waits for the others in vain."""
    more = ["optim.embedding_lr=5", "optim.schedule=constant", "train.steps=8", "train.save_every=5"]
    more = [f"--set={setting}" for setting in (*more, "train.eval_every=2")]
    succeed(folder, "run", *more, size=2)
    run = folder / "runs/run"
    state = load_checkpoint(step_folder(run, 5)).metadata.state
    assert state.validation_loss > state.best_loss, "the loss must rise"
    for step in {state.best_step, *checkpoint_steps(run)} - {0, 5}:
        shutil.rmtree(step_folder(run, step))
    succeed(folder, "run", *more, size=2)


def printed_samples(folder: Path) -> list[str]:
    """Return the samples that the last main process has printed."""
    lines = (folder / "err-0.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("    ")]


# --- the same bits -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["muon", "adamw", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("long", "micro", "lstm"))]
)
def test_one_two_and_four_processes_end_in_the_same_bits(folder: Path, name: str) -> None:
    """Weights, optimizer state, logged and validation losses, and samples."""
    settings = CONFIGURATIONS[name]
    expected = succeed(folder, "one", *settings, size=1)
    samples = printed_samples(folder)
    assert len(samples) == 4
    for size in (2, 4):
        assert succeed(folder, f"on-{size}", *settings, size=size) == expected
        assert printed_samples(folder) == samples


def test_a_run_moves_between_process_counts(folder: Path) -> None:
    """Started on one process, resumed on four, finished on two."""
    settings = CONFIGURATIONS["adamw"]
    expected = succeed(folder, "still", *settings, size=1)
    for step, size in ((2, 1), (4, 4)):
        ranks = train(folder, "stopped", *settings, size=size, setup=at_step, argument=(0, step, "SIGTERM"))
        assert [rank.code for rank in ranks] == [143] * size
        assert checkpoint_steps(folder / "runs/stopped")[-1] == step + 1
    assert succeed(folder, "stopped", *settings, size=2) == expected


def test_shards_change_only_rounding_and_dropout(folder: Path) -> None:
    one = succeed(folder, "one", "-s", "train.shards=1", "-s", "model.dropout=0", size=1)
    eight = succeed(folder, "eight", "-s", "model.dropout=0", size=1)
    assert one["model"] != eight["model"]
    assert one["state"]["validation_loss"] == pytest.approx(eight["state"]["validation_loss"], rel=1e-6)


def test_plain_all_reduce_differs_by_rounding_only_and_is_reported(folder: Path) -> None:
    exact = succeed(folder, "exact", size=1)
    (main, _) = train(folder, "plain", "-s", "runtime.exact=false")
    assert "runtime.exact=false: rounding depends on the number of processes" in main.err
    plain = ending(folder / "runs/plain")["state"]
    assert plain["validation_loss"] == pytest.approx(exact["state"]["validation_loss"], rel=1e-5)


def test_without_shards_each_process_gets_one_and_the_run_says_so(folder: Path) -> None:
    arguments = [word for word in TRAIN if word != "train.shards=8"]
    arguments = [
        w for w, after in zip(arguments, [*arguments[1:], ""], strict=True) if not (w == "-s" and after == "-s")
    ]
    main, _ = together(folder, *arguments, "--name", "run")
    assert main.code == 0, main
    assert "train.shards=2, one for each process: the run cannot be resumed on more processes" in main.err
    assert load_checkpoint(folder / "runs/run").config.train.shards == 2


def test_the_main_process_chooses_what_fits_into_minutes(folder: Path) -> None:
    """Each process would measure another time."""
    pairs = zip(TRAIN[2::2], TRAIN[3::2], strict=True)
    own = [word for pair in pairs if "--resume" not in pair and "train.steps" not in pair[1] for word in pair]
    arguments = [*TRAIN[:2], *own]
    ranks = together(folder, *arguments, "--name", "run", "--minutes", "5", setup=own_steps)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    assert load_checkpoint(folder / "runs/run").config.train.steps == 5
    assert ending(folder / "runs/run")["state"]["step"] == 5


def test_fine_tuning_starts_from_the_same_weights(folder: Path) -> None:
    """Only the main process reads them."""
    succeed(folder, "start", "-s", "train.steps=2", size=1)
    expected = succeed(folder, "one", "--from", "start", size=1)
    ranks = train(folder, "two", "--from", "start", setup=no_weights, argument=1)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    assert ending(folder / "runs/two") == expected


# --- signals, kills and hangs ------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_others_with_one_line(folder: Path, victim: int) -> None:
    ranks = train(folder, "run", setup=at_step, argument=(victim, 3, "SIGKILL"))
    assert ranks[victim].code == -signal.SIGKILL
    survivor = ranks[1 - victim]
    assert survivor.code == 1
    (line,) = survivor.errors
    assert line.startswith("minigpt: process 1: lost contact" if victim == 0 else "minigpt: lost contact")
    assert line.endswith("to resume from step 2: minigpt train --resume run")


def test_a_process_that_hangs_ends_the_others_within_the_timeout(folder: Path) -> None:
    job = Job(folder, *TRAIN, "--name", "run", "-s", "runtime.timeout=10", setup=at_step, argument=(1, 3, "SIGSTOP"))
    job.processes[0].join(HANG)
    job.kill(1, signal.SIGKILL)
    main, _ = job.wait()
    assert main.code == 1
    (line,) = main.errors
    assert line.startswith(
        "minigpt: lost contact with another process: it exited or stopped responding; to resume from step 2: "
    )


@pytest.mark.parametrize("receivers", [(0, 1), (1,)])
def test_sigterm_to_one_or_all_saves_the_same_step(folder: Path, receivers: tuple[int, ...]) -> None:
    job = Job(folder, *TRAIN, "--name", "run", "-s", "train.steps=100000")
    wait_until(lambda: checkpoint_steps(folder / "runs/run")[1:])
    for rank in receivers:
        job.kill(rank, signal.SIGTERM)
    main, other = job.wait()
    assert (main.code, other.code, other.err) == (143, 143, ""), (main, other)
    step = checkpoint_steps(folder / "runs/run")[-1]
    assert f"Stopped by SIGTERM at step {step}. Everything is saved in runs/run." in main.err


# --- bad input ---------------------------------------------------------------------------------------


def the_only_line(ranks: Any) -> str:
    """Return the only line that any of the processes prints about its error."""
    assert all(rank.code == 1 for rank in ranks), ranks
    (line,) = [line for rank in ranks for line in rank.errors]
    return str(line)


@pytest.mark.parametrize(
    ("more", "size", "expected"),
    [
        (["-s", "train.shards=4"], 3, "3 processes cannot divide train.shards=4; use 1, 2 or 4 processes"),
        (["-s", "train.shards=1"], 2, "2 processes cannot divide train.shards=1; use one process"),
        (
            ["-s", "train.shards=3", "-s", "train.batch_size=12"],
            3,
            "bitwise identical to those of one process; use one process, or set runtime.exact=false",
        ),
        (["-s", "train.shards=6"], 2, "a multiple of train.shards (6), by default the number of processes"),
        (["-s", "model.n_layer=none"], 2, 'model.n_layer is "none"'),
        (["-s", "runtime.device=cuda"], 2, "runtime.device=cuda is not available"),
        (["-s", "optim.lr=1e18", "-s", "optim.embedding_lr=1e18", "-s", "optim.schedule=constant"], 2, "optim.lr"),
    ],
)
def test_an_error_of_all_processes_is_one_line(folder: Path, more: list[str], size: int, expected: str) -> None:
    line = the_only_line(train(folder, "run", *more, size=size))
    assert line.startswith("minigpt: ")
    assert expected in line


@pytest.mark.parametrize("words", [["-"], ["-s", "data.source=-"], ["verse.txt", "-s", "data.val_source=-"]])
def test_standard_input_cannot_be_shared(folder: Path, words: list[str]) -> None:
    line = the_only_line(together(folder, "train", *words, *SMALL))
    assert line == "minigpt: 2 processes cannot share standard input; save the text to a file"


def test_processes_with_another_text_are_refused(folder: Path) -> None:
    (folder / "other.txt").write_text(VERSE[::-1], encoding="utf-8")
    line = the_only_line(train(folder, "run", setup=other_argument, argument=(1, ["other.txt"])))
    problem = "this process has another text than process 0; give all processes the same files"
    assert line.startswith(f"minigpt: process 1: {problem}")
    assert not (folder / "runs/run").exists()


def test_processes_use_the_settings_of_the_main_one(folder: Path) -> None:
    expected = succeed(folder, "one", size=1)
    ranks = train(folder, "run", setup=other_argument, argument=(1, ["-s", "train.seed=5"]))
    assert [rank.code for rank in ranks] == [0, 0], ranks
    assert ending(folder / "runs/run") == expected


def test_optimizer_state_that_does_not_fit_ends_all_processes(folder: Path) -> None:
    succeed(folder, "run", "-s", "train.steps=4", size=1)
    step = step_folder(folder / "runs/run", 4)
    state = load((step / OPTIMIZER).read_bytes())
    forge(step, {OPTIMIZER: save({**state, "exp_avg/norm.weight": state["exp_avg/norm.weight"][1:]})})
    line = the_only_line(train(folder, "run"))
    assert "cannot resume: exp_avg/norm.weight of the checkpoint does not fit the model" in line


def test_a_folder_that_cannot_be_written_is_one_line(folder: Path) -> None:
    (folder / "runs").touch()
    assert the_only_line(train(folder, "run")) == "minigpt: runs: File exists"


def test_a_full_disk_of_the_main_process_is_one_line(folder: Path) -> None:
    line = the_only_line(train(folder, "run", setup=file_limit, argument=(0, 2000)))
    assert re.search("cannot save the checkpoint at step 0: .*File too large", line.splitlines()[-1])


@pytest.mark.parametrize(("wrong", "value"), [("MASTER_ADDR", ""), ("RANK", ""), ("RANK", "2")])
def test_without_a_rendezvous_the_error_says_how_to_start(folder: Path, wrong: str, value: str) -> None:
    variables = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", wrong: value}
    done = subprocess.run(
        [sys.executable, "-m", "minigpt", *TRAIN, "--name", "run"],
        cwd=folder, env=environment() | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert re.match("minigpt: (process 2: )?cannot join the other processes .WORLD_SIZE=2.: ", line)
    assert f"{wrong}=2 must be less" in line if value else wrong in line
    assert line.endswith("use torchrun, or unset WORLD_SIZE to train in one process")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_process_that_waits_for_the_others(folder: Path, number: signal.Signals) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def listens() -> bool:
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    variables = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with subprocess.Popen(
        [sys.executable, "-m", "minigpt", *TRAIN], cwd=folder, env=environment() | variables
    ) as waits:
        wait_until(listens)
        waits.send_signal(number)
        assert waits.wait(HANG) == -number


# --- torchrun ----------------------------------------------------------------------------------------


def test_torchrun_gives_the_bits_of_one_process_and_prints_how_to_resume(folder: Path) -> None:
    own = ["-s", "train.shards=2"]
    expected = succeed(folder, "one", *own, size=1)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "minigpt"]
    command = [*launch, *TRAIN, *own, "--name", "run"]
    long = [*command, "-s", "train.steps=100000"]
    with subprocess.Popen(long, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True) as running:
        wait_until(lambda: checkpoint_steps(folder / "runs/run")[1:])
        running.send_signal(signal.SIGTERM)  # torchrun passes it on
        _, err = running.communicate(timeout=HANG)
    step = checkpoint_steps(folder / "runs/run")[-1]
    assert err.count(f"Stopped by SIGTERM at step {step}. Everything is saved in runs/run.") == 1, err
    assert "torchrun --nproc-per-node 2 -m minigpt train --resume run\n" in err
    shutil.rmtree(folder / "runs/run")
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 processes, each on cpu (1 thread" in done.stderr
    assert done.stderr.count("Finished at step 6") == 1
    assert ending(folder / "runs/run") == expected
