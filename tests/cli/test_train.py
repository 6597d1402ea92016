"""`minigpt train`: texts, names, fitted settings, resuming and stopping."""

import errno
import hashlib
import itertools
import json
import math
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import HANG, SMALL, VERSE, Cli, Done, environment
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from minigpt.errors import UserError
from minigpt.model.gpt import GPT
from minigpt.paths import LOG, TENSORBOARD
from minigpt.storage.runs import checkpoint_steps, step_folder
from minigpt.training import loop
from minigpt.training.loop import Training
from minigpt.training.metrics import Metrics
from minigpt.training.setup import name_stem

ONE_STEP = [*SMALL, "-s", "train.steps=1"]
MORE = ["-s", "train.steps=6"]

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture
def verse(empty_folder: Path) -> str:
    """A text in the current folder."""
    Path("verse.txt").write_text(VERSE, encoding="utf-8")
    return "verse.txt"


def content(folder: Path) -> dict[str, str]:
    """Return a hash of every file but environment.jsonl and the curves of TensorBoard, which record failed starts."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    kept = [
        path
        for path in files
        if path.name != "environment.jsonl" and path.name != LOG and TENSORBOARD not in path.parts
    ]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}


def pasted(cli: Cli, done: Done, label: str, *more: str) -> Done:
    """Run the command that `done` printed after `label`, split as a POSIX shell splits it."""
    (line,) = re.findall(rf"{label}: *minigpt (.*)", done.err)
    return cli(*shlex.split(line), *more)


# ---- texts, settings and names ----


def test_without_arguments_it_trains_on_little_stories(cli: Cli) -> None:
    done = cli("train", *ONE_STEP, "-s", "data.val_fraction=0.0001")
    assert (done.code, done.out) == (0, "")
    assert "run runs/stories-1" in done.err.replace("\\", "/")
    assert 'source:\n  - "builtin:stories"' in Path("runs/stories-1/config.yaml").read_text(encoding="utf-8")


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="needs Linux")
def test_a_text_may_have_a_name_that_is_not_unicode(cli: Cli) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    Path(name).write_text(VERSE, encoding="utf-8")
    assert cli("train", name, *SMALL).code == 0
    assert cli("eval", "last").code == 0
    assert cli("train", "--resume", "last", *MORE).code == 0
    assert r"caf\udce9.txt" in cli("runs").out
    assert r"sample.prompt" in cli("train", name, *SMALL, "-s", f"sample.prompt={name}").error


@pytest.mark.parametrize("length", [1, 3, 4, 5, 10])
def test_a_text_of_a_few_characters_trains_or_is_too_short(cli: Cli, length: int) -> None:
    done = cli("train", "-", *SMALL, stdin=b"abcabcabca"[:length])
    if length < 4:
        assert "too short" in done.error
        assert not Path("runs").exists()
    else:
        assert done.code == 0, done.err
        assert re.search(r"model\.context .* from 16 to [1-8]\b", done.err)
        assert cli("sample", "-l", 5).code == 0


def test_a_text_gets_fitted_settings_below_those_of_the_user(cli: Cli, verse: str) -> None:
    done = cli("train", verse, *ONE_STEP, "-s", "model.dropout=0.5")
    assert "\nfitted settings: 1 layer, 16 wide, context 16; 1 step of 4 sequences, 0.04 epochs\n" in f"\n{done.err}"
    settings = Path("runs/verse-1/config.yaml").read_text(encoding="utf-8")
    assert "dropout: 0.5" in settings
    assert re.search("patience: [1-9]", settings), "fitted settings stop early"
    assert "fitted" not in cli("train", verse, "-c", "tiny", *ONE_STEP).err


@pytest.mark.slow
def test_a_run_within_minutes_is_exact_like_any_other(cli: Cli, verse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock only chooses the duration, so the run's settings repeat it. `--resume` keeps the duration."""
    monkeypatch.setattr("minigpt.cli.train.STARTED", time.perf_counter())
    monkeypatch.setattr("minigpt.training.dial.steps_within", lambda *given: 6)
    at = SMALL.index("train.steps=4")
    done = cli("train", verse, *SMALL[: at - 1], *SMALL[at + 1 :], "--minutes", "0.5", "--name", "timed")
    assert done.code == 0, done.err
    assert "; 6 steps of 4 sequences" in done.err
    cli("train", verse, "-c", "runs/timed/config.yaml", "--name", "again")
    first, second = (Path(f"runs/{name}/metrics.jsonl").read_text(encoding="utf-8") for name in ("timed", "again"))
    losses = [re.findall(r'"validation", "loss": [\d.]+', text) for text in (first, second)]
    assert losses[0] == losses[1] != []
    timed, again = (json.loads(Path(f"runs/{name}/environment.jsonl").read_text()) for name in ("timed", "again"))
    assert timed["measured"].keys() == {"seconds_per_step", "matmul_gflops"}
    assert "measured" not in again
    assert "--resume keeps the duration of the run" in cli("train", "--resume", "timed", "--minutes", "3").error
    both = cli("train", verse, "--minutes", "3", "-s", "train.steps=4")
    assert "--minutes and train.steps=4 both give the duration" in both.error


@pytest.mark.slow
def test_longer_repeats_a_run_of_nothing_but_a_text(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """With other settings, nothing is suggested: to resume does not lower the loss."""
    monkeypatch.setattr("minigpt.training.dial.steps_within", lambda *given: 3)
    small = {"model.n_layer": 1, "model.n_head": 1, "model.n_embd": 16, "model.context": 16}
    small |= {"train.batch_size": 4, "train.steps": 2}
    monkeypatch.setattr("minigpt.training.setup.fit", lambda *given, longest: small)
    monkeypatch.setattr("minigpt.cli.report.LONGER", 1e-6)  # 1 minute, however busy the machine is
    Path("one line.txt").write_text("all in one line " * 40, encoding="utf-8")
    done = cli("train", "one line.txt")
    assert re.search(
        r"^A run of 1 minute would .* of about [12]\.\d\d\.\n(.*\n)+  longer: .*'one line.txt' --minutes 1$",
        done.err,
        re.M,
    )
    assert pasted(cli, done, "longer").code == 0
    done = cli("train", "one line.txt", "-s", "model.n_embd=8")
    assert "Finished at step 2" in done.err
    assert "longer:" not in done.err
    with monkeypatch.context() as patch:
        patch.setattr("minigpt.cli.report.is_overfitting", lambda state: True)
        assert "would reach" not in cli("train", "one line.txt").err
    monkeypatch.setattr("minigpt.training.fit.most_steps", lambda *given: 2)
    done = cli("train", "one line.txt")
    assert "Finished at step 2" in done.err
    assert "would reach" not in done.err
    assert "longer:" not in done.err


def test_after_training_tables_of_ngrams_are_compared(cli: Cli, verse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = (
        r"^On the validation text, counting pairs would give a loss of (\d\.\d\d), and counting 5-grams (\d\.\d\d)\. "
        r"The model predicts worse than pairs: train it for more steps\.$"
    )
    pairs, longest = re.search(told, cli("train", verse, *ONE_STEP).err, re.MULTILINE).groups()  # type: ignore[union-attr]
    assert float(longest) < float(pairs) < 3
    monkeypatch.setattr("minigpt.interpret.simple.MOST_TOKENS", 10)
    assert "counting pairs" not in cli("train", verse, *ONE_STEP).err


def test_a_text_names_the_run_and_no_loss_of_the_first_weights_is_beside_a_training_loss(
    cli: Cli, verse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[int, set[str]]] = []

    def progress(self: Metrics, step: int, steps: int, losses: dict[str, float | None], activity: str) -> None:
        shown.append((step, {name for name, loss in losses.items() if loss is not None}))

    monkeypatch.setattr(Metrics, "progress", progress)
    cli("train", verse, "--config", "tiny", *SMALL, "-s", "train.log_every=1")
    assert Path("runs", f"{Path(verse).stem}-1").is_dir()
    assert [step for step, names in shown if "val" in names and step < 2] == []
    assert {step for step, names in shown if names == {"loss", "val"}} >= {3, 4}


@pytest.mark.parametrize(
    ("source", "stem"),
    [
        *[("my.txt", "my"), ("../x.txt", "x"), ("a b.txt", "a-b"), ("düsseldorf.txt", "düsseldorf")],
        *[("春.txt.gz", "春"), (".hidden", "hidden"), ("folder/", "folder"), ("download:text8", "text8")],
        *[("builtin:stories", "stories"), ("builtin:stories:5000:2", "stories-5000-2")],
        *[("-", "text"), ("..", "text"), ("*.txt", "text"), ("--x--.txt", "x"), ("nanogpt-cpu", "nanogpt-cpu")],
    ],
)
def test_a_run_is_named_after_its_preset_or_text(source: str, stem: str) -> None:
    assert name_stem(source) == stem


def test_runs_of_a_preset_are_numbered(cli: Cli, verse: str) -> None:
    for number in (1, 2):
        assert cli("train", "-c", "tiny", *ONE_STEP, "-s", f"data.source={verse}").code == 0
        assert Path(f"runs/tiny-{number}").is_dir()


def test_a_name_is_checked_before_the_text_is_read(cli: Cli, run: Path) -> None:
    before = content(run)
    error = cli("train", "nosuch.txt", "--name", "verse-1").error
    assert "minigpt train --resume verse-1" in error
    assert "nosuch" not in error
    assert "'a/b'" in cli("train", "nosuch.txt", "--name", "a/b").error
    assert content(run) == before


def test_an_empty_option_is_not_a_missing_one(cli: Cli, verse: str) -> None:
    """As in `-c "$PRESET"` if the variable is not set."""
    for text in ([verse], []):
        assert "''" in cli("train", *text, "-c", "").error
    assert "only with settings" in cli("train", "--resume", "last", "-c", "").error
    assert "only with settings" in cli("train", "--resume", "last", "--name", "").error


@pytest.mark.parametrize("kernels", ["torch", "cpu"])
def test_eval_uses_the_kernels_of_the_run(cli: Cli, verse: str, monkeypatch: pytest.MonkeyPatch, kernels: str) -> None:
    assert cli("train", verse, *ONE_STEP, "-s", f"runtime.kernels={kernels}").code == 0
    found = cli("eval", "--json").json
    metadata = json.loads((Path(found["checkpoint"]) / "metadata.json").read_text(encoding="utf-8"))
    assert found["loss"] == metadata["state"]["validation_loss"]


def test_tensorboard_gets_a_sample_at_each_evaluation(cli: Cli, verse: str) -> None:
    done = cli("train", verse, *SMALL, "--name", "short")
    assert done.code == 0, done.err
    curves = EventAccumulator("runs/short/tensorboard/validation", size_guidance={"tensors": 0}).Reload()
    assert [event.step for event in curves.Tensors("sample/text_summary")] == [0, 2, 4]


# ---- messages ----


def test_settings_in_the_place_of_a_text_are_not_trained_on(cli: Cli, empty_folder: Path) -> None:
    Path("my.yaml").write_text("model: {n_layer: 2}\nmax_iters: 3\n", encoding="utf-8")
    use = "minigpt train --config my.yaml"
    assert cli("train", "my.yaml").error == f"my.yaml has settings, not a text; to use them: {use}"
    Path("text.yaml").write_text("a: b\n" * 9, encoding="utf-8")
    assert "settings, not a text" not in cli("train", "text.yaml", *ONE_STEP).err


def test_a_prompt_with_unknown_characters_is_an_error_in_sample_only(cli: Cli, verse: str) -> None:
    assert cli("train", verse, *ONE_STEP, "-s", "sample.prompt=Zé").code == 0
    assert "'Z'" in cli("sample").error
    assert cli("sample", "--unknown", "skip", "-l", 5).code == 0


@pytest.mark.slow
def test_overfitting_is_reported(cli: Cli) -> None:
    Path("noise.txt").write_text("".join(random.Random(1).choices("abcdefgh", k=300)), encoding="utf-8")
    lengths = ("train.steps=80", "train.eval_every=10", "train.log_every=10", "train.patience=0")
    others = ("optim.lr=0.02", "optim.schedule=constant", "optim.weight_decay=0", "model.dropout=0")
    done = cli("train", "noise.txt", *SMALL, *(word for one in (*lengths, *others) for word in ("-s", one)))
    assert re.search(r"^Overfitting since step (\d+): .*\nAdd text, .*sample uses step \1\.$", done.err, re.MULTILINE)
    assert "longer:" not in done.err


def test_a_text_of_one_character_has_nothing_to_predict(cli: Cli) -> None:
    Path("a.txt").write_text("a" * 20_000, encoding="utf-8")
    done = cli("train", "a.txt", *ONE_STEP)
    assert "the text repeats one character, so there is nothing to predict: its loss is 0\n" in done.err
    assert "a loss of 0.00, and counting 5-grams 0.00." in done.err
    assert "-0.0" not in done.err + cli("eval").out


@pytest.mark.parametrize(("tokenizer", "tokens"), [("char", "26 characters"), ("byte", "256 bytes")])
def test_the_loss_is_explained(cli: Cli, verse: str, tokenizer: str, tokens: str) -> None:
    done = cli("train", verse, *SMALL, "-s", f"data.tokenizer={tokenizer}")
    number, unit = r"([\d.]*\d)", tokens.split()[1].removesuffix("s")
    told = f"{number}; a loss of {number} is like guessing among {number} .{number} bits per {unit}.\\."
    found = re.search(f"^Guessing equally among all {tokens} would give {told}$", done.err, re.MULTILINE)
    assert found, done.err
    guess, loss, among, bits = map(float, found.groups())
    assert guess == pytest.approx(math.log(int(tokens.split()[0])), abs=0.005)
    assert (among, bits) == pytest.approx((math.exp(loss), loss / math.log(2)), rel=0.01)


def test_the_printed_commands_work_when_pasted(cli: Cli) -> None:
    """The text has no line end, so the default prompt of `sample` is outside the vocabulary."""
    Path("one line.txt").write_text("all in one line " * 40, encoding="utf-8")
    done = cli("train", "one line.txt", "--name", "one line", *SMALL)
    assert (done.code, done.out) == (0, "")
    assert pasted(cli, done, "sample").code == 0
    assert re.search(r"curves: +minigpt board$", done.err, re.MULTILINE)
    (finished,) = re.findall(r"minigpt (train --resume .*)", cli("train", "--resume", "one line").error)
    assert cli(*shlex.split(finished)).code == 0
    assert checkpoint_steps(Path("runs/one line"))[-1] == 8


def test_each_evaluation_prints_one_line_of_text_that_fits(
    cli: Cli, verse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    err = cli("train", verse, *SMALL, "-s", "sample.preview=200").err.splitlines()
    previews = [after for line, after in itertools.pairwise(err) if re.match(r"step \d+: ", line)]
    assert [len(line) <= 60 and line.startswith("    ") for line in previews] == [True] * 3
    assert max(map(len, previews)) == 60


# ---- resuming ----


@pytest.mark.parametrize("name", ["last", "verse-1", "runs/verse-1"])
def test_resume_continues_to_the_new_length(cli: Cli, run: Path, name: str) -> None:
    done = cli("train", "--resume", name, *MORE)
    assert "step 4" in done.err
    assert checkpoint_steps(run)[-1] == 6
    assert "steps: 6" in (run / "config.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ([], r"minigpt train --resume verse-1 --set train\.steps=8"),
        (["model.n_layer=2", "optim.lr=1"], r"model\.n_layer .*optim\.lr"),
        (["train.steps=2"], "step 4"),
        (["runtime.device=cuda:77", "train.steps=6"], "cuda:77"),
        (["data.source=other.txt"], "other.txt"),
        (["nonsense=1"], "nonsense"),
    ],
)
@pytest.mark.parametrize("has_curves", [True, False], ids=["", "no metrics.jsonl"])
def test_a_refused_resume_leaves_the_run_as_it_was(
    cli: Cli, run: Path, changes: list[str], problem: str, has_curves: bool
) -> None:
    if not has_curves:
        (run / "metrics.jsonl").unlink()
    before = content(run)
    settings = [word for change in changes for word in ("-s", change)]
    assert re.search(problem, cli("train", "--resume", "last", *settings).error)
    assert content(run) == before


def test_a_refused_resume_quarantines_no_checkpoint(cli: Cli, run: Path) -> None:
    (step_folder(run, 4) / "model.safetensors").write_bytes(b"damaged")
    before = content(run)
    assert "cuda:77" in cli("train", "--resume", "last", "-s", "runtime.device=cuda:77").error
    assert content(run) == before


def test_resume_auto_starts_or_resumes(cli: Cli, verse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor can repeat the same command until it succeeds."""
    command = ("train", verse, "--name", "a", "--resume", "auto", *SMALL)
    step = Training.step

    def failing(self: Training) -> None:
        if self.state.step == 3:
            raise UserError("failed")
        step(self)

    monkeypatch.setattr(Training, "step", failing)
    assert cli(*command).error == "failed"
    monkeypatch.setattr(Training, "step", step)
    resumed = cli(*command)
    assert (resumed.code, "resuming at step 2" in resumed.err, checkpoint_steps(Path("runs/a"))[-1]) == (0, True, 4)
    assert "resuming a with its own text and settings\n" in resumed.err
    again = cli(*command)
    assert (again.code, again.err.splitlines()[-1]) == (0, "run a is finished at step 4")
    assert "with its own text" in cli("train", "--name", "a", "--resume", "auto", "--minutes", "3").err
    assert "with its own text" not in cli("train", "--name", "a", "--resume", "auto").err
    assert cli("train", verse, "--resume", "auto").error.startswith("--resume auto needs the --name of the run")
    Path("runs/a").rename("b")
    assert cli("train", "--name", "../b", "--resume", "auto").error.startswith("'../b' is not a valid run name")


@pytest.mark.parametrize("phase", ["choose_loss", "record_start"])
def test_a_start_that_fails_before_its_first_step_removes_only_what_it_wrote(
    cli: Cli, verse: str, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """In the first phase there is no checkpoint yet; in the second there is one."""

    def out_of_memory(*_: object) -> None:
        Path("runs/b/notes.txt").touch() if Path("runs/b").exists() else None
        raise UserError("too large")

    monkeypatch.setattr(loop, phase, out_of_memory)
    for name in "ab":
        assert cli("train", verse, "--name", name, *SMALL).error == "too large"
    assert [path.name for path in Path("runs").rglob("*")] == ["b", "notes.txt"]


def test_a_start_that_fails_later_than_its_first_save_can_be_resumed(
    cli: Cli, verse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loop, "record_start", full)
    error = cli("train", verse, "--name", "a", *SMALL).error
    assert error.endswith("No space left on device; to resume from step 0: minigpt train --resume a")
    assert checkpoint_steps(Path("runs/a")) == [0]


def test_pruning_keeps_a_checkpoint_to_which_someone_added_a_file(cli: Cli, run: Path) -> None:
    note = run / "checkpoints/step-00000002/notes.txt"
    note.write_text("the best one for poems\n", encoding="utf-8")
    assert cli("train", "--resume", run.name, *MORE, "-s", "train.keep_last=1").code == 0
    assert (checkpoint_steps(run), note.exists()) == ([2, 6], True)


def test_the_command_after_a_failed_resume_has_its_settings(
    cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Training) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Training, "step", fail)
    step = checkpoint_steps(run)[-1]
    command = f"to resume from step {step}: minigpt train --resume {run.name} --set train.steps=9"
    assert cli("train", "--resume", "last", "-s", "train.steps=9").error.endswith(command)


def test_resume_accepts_the_same_text_in_another_place_or_encoding(
    cli: Cli, run: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, folder = Path.cwd(), run.absolute()
    Path("verse.txt").rename("moved.txt")
    Path("utf16.txt").write_text(VERSE, encoding="utf-16")
    Path("other.txt").write_text(VERSE.replace("a", "e"), encoding="utf-8")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))

    def resumed(*settings: str) -> Done:
        return cli("train", "--resume", folder, *MORE, *(word for setting in settings for word in ("-s", setting)))

    before = content(folder)
    for wrong in ("gone.txt", "other.txt"):
        assert wrong in resumed(f"data.source={texts / wrong}").error
    assert "builtin:pydoc is not the text" in resumed("data.source=builtin:pydoc").error, "and not from the cache"
    both = (f"data.source={texts / 'moved.txt'}", f"data.val_source={texts / 'other.txt'}")
    assert "other.txt" in resumed(*both).error
    assert content(folder) == before
    assert resumed(f"data.source={texts / 'utf16.txt'}", "data.encoding=utf-16").code == 0
    assert cli("eval", folder).code == 0
    assert cli("train", "--resume", folder, "-s", "train.steps=8").code == 0


def test_a_text_from_standard_input_is_kept_for_resume(cli: Cli) -> None:
    assert cli("train", "-", "--name", "piped", *SMALL, stdin=VERSE.encode()).code == 0
    assert cli("train", "--resume", "piped", *MORE).code == 0


def test_a_device_that_is_not_here_is_an_error_before_all_else(cli: Cli, verse: str) -> None:
    done = cli("train", verse, "-s", "runtime.device=cuda:77")
    assert done.err.startswith("minigpt: runtime.device=cuda:77 is not available")
    assert not Path("runs").exists()


# ---- stopping and failing ----


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_prints_a_command_that_resumes(cli: Cli, verse: str, number: signal.Signals) -> None:
    arguments = ["train", verse, *SMALL, "-s", "train.steps=1000000", "-s", "train.patience=0"]
    command = [sys.executable, "-m", "minigpt", *arguments]
    with subprocess.Popen(
        command, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stderr
        seen = [next(line for line in running.stderr if line.startswith("step 2:"))]
        os.killpg(running.pid, number)  # Ctrl-C in a terminal reaches the whole process group
        seen += running.stderr.readlines()
        assert running.wait(HANG) == 128 + number
    stopped = Done(128 + number, "", "".join(seen))
    (step,) = checkpoint_steps(Path("runs/verse-1"))[-1:]
    assert f"Stopped{' by SIGTERM' * (number == signal.SIGTERM)} at step {step}." in stopped.err
    assert "Traceback" not in stopped.err
    resumed = pasted(cli, stopped, "resume", "-s", f"train.steps={step + 2}")
    assert (resumed.code, checkpoint_steps(Path("runs/verse-1"))[-1]) == (0, step + 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("phase", ["loop.train", "loop.record_start"])
@pytest.mark.parametrize("is_resumed", [False, True], ids=["new", "resumed"])
def test_a_signal_before_the_first_step_ends_at_once_and_undoes_the_start(
    cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch, is_resumed: bool, phase: str, number: signal.Signals
) -> None:
    """In the first phase there is no checkpoint yet; in the second there is one."""

    def interrupted(*_: object, **__: object) -> None:
        signal.raise_signal(number)
        pytest.fail("training continued")

    monkeypatch.setattr(f"minigpt.training.{phase}", interrupted)
    before = content(Path("runs"))
    signal.signal(number, lambda *_: pytest.fail("training does not handle the signal"))
    done = cli("train", *(["--resume", "verse-1"] if is_resumed else ["verse.txt"]), *SMALL[-4:], *MORE)
    assert done.code == 128 + number
    assert "Traceback" not in done.err
    assert done.err.splitlines()[-1].startswith("stopped before the first step; ")
    assert content(Path("runs")) == before
    assert [path.name for path in Path("runs").iterdir()] == ["verse-1"]


def test_a_diverged_run_keeps_its_curves(cli: Cli, run: Path) -> None:
    diverge = ["-s", "optim.lr=1e18", "-s", "optim.embedding_lr=1e18", "-s", "optim.schedule=constant"]
    assert re.search(r"step \d.*optim\.lr", cli("train", "verse.txt", "--name", "up", *SMALL, *diverge).error)
    assert Path("runs/up/metrics.jsonl").stat().st_size > 0
    assert [row["name"] for row in cli("runs", "--json").json] == ["verse-1", "up"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_model_that_does_not_fit_into_memory_is_refused_before_it_is_built(
    cli: Cli, verse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GPT, "__init__", lambda *_, **__: pytest.fail("built"))
    huge = ["-s", "model.n_embd=100000", "-s", "model.n_head=4", "-s", "model.n_layer=1000"]
    assert " GB" in cli("train", verse, *huge).error
    assert not Path("runs/verse-1").exists()
