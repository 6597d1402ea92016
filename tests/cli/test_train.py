"""`minigpt train` as its users meet it: texts, names, fitting, resuming, stopping, and the commands it prints."""

import gzip
import hashlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import SMALL, VERSE, Cli, Done, environment
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from minigpt.model.gpt import GPT
from minigpt.model.kernels import CPU, TORCH, Kernels
from minigpt.storage.runs import checkpoint_steps
from minigpt.training.setup import name_stem

MORE = ["-s", "train.steps=6"]

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture
def run(cli: Cli) -> Path:
    """A finished run of four steps on verse.txt."""
    Path("verse.txt").write_text(VERSE, encoding="utf-8")
    assert cli("train", "verse.txt", *SMALL).code == 0
    return Path("runs/verse-1")


def content(folder: Path) -> dict[str, str]:
    """A hash of every file but environment.json, which notes each start, failed or not."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "environment.json"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def pasted(cli: Cli, done: Done, what: str, *more: str) -> Done:
    """Type what follows `what` in the messages of `done`, as a POSIX shell would read it."""
    (line,) = re.findall(rf"{what}: *minigpt (.*)", done.err)
    return cli(*shlex.split(line), *more)


# ---- which text, which settings, which name ----


def test_without_arguments_it_trains_the_quickstart(cli: Cli) -> None:
    Path("quickstart").write_text("#!/bin/sh\nexec true\n")  # a file that nobody named
    brief = [*SMALL, "-s", "train.steps=1", "-s", "data.val_fraction=0.0001"]
    done = cli("train", *brief)
    assert (done.code, done.out) == (0, "")
    assert "run runs/quickstart-1" in done.err.replace("\\", "/")
    assert "source:\n  - builtin:python" in Path("runs/quickstart-1/config.yaml").read_text(encoding="utf-8")


def test_a_name_that_is_taken_is_told_before_the_text_is_read(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("verse.txt").write_text(VERSE, encoding="utf-8")
    assert cli("train", "verse.txt", *SMALL, "--name", "a").code == 0
    monkeypatch.setattr("minigpt.training.setup.load_dataset", lambda *_: pytest.fail("the text was read"))
    assert "run 'a' exists; go on with it: " in cli("train", "verse.txt", "--name", "a").error
    assert "cannot name a run" in cli("train", "verse.txt", "--name", "a/b").error


def test_many_texts_leave_the_table_of_runs_readable(cli: Cli) -> None:
    names = [f"verse{number}.txt" for number in range(30)]
    for name in names:
        Path(name).write_text(VERSE, encoding="utf-8")
    assert cli("train", *names, *SMALL, "--name", "a").code == 0
    assert "  verse0.txt + 29 more  " in cli("runs").out
    assert json.loads(cli("runs", "--json").out)[0]["corpus"] == " + ".join(names)


@pytest.mark.parametrize("text", [["verse.txt"], []])
def test_a_preset_without_a_name_is_no_wish_for_another(cli: Cli, text: list[str]) -> None:
    """As `-c "$PRESET"` gives where the variable is not set."""
    Path("verse.txt").write_text(VERSE, encoding="utf-8")
    assert "no preset and no file is called ''" in cli("train", *text, "-c", "").error
    assert "--set goes with it" in cli("train", "--resume", "last", "-c", "").error
    assert "--set goes with it" in cli("train", "--resume", "last", "--name", "").error


def test_runs_of_a_preset_are_numbered(cli: Cli) -> None:
    for number in (1, 2):
        assert cli("train", "-c", "tiny", *SMALL, "-s", "train.steps=1").code == 0
        assert Path(f"runs/tiny-{number}").is_dir()


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="their file names are Unicode")
def test_a_text_whose_name_is_not_unicode(cli: Cli) -> None:
    """Its checkpoints once had a meta.json that nothing could read back."""
    name = os.fsdecode(b"caf\xe9.txt")
    Path(name).write_text(VERSE, encoding="utf-8")
    assert cli("train", name, *SMALL).code == 0
    assert cli("eval", "last").code == 0
    assert cli("train", "--resume", "last", *MORE).code == 0
    assert r"caf\udce9.txt" in cli("runs").out
    refused = cli("train", name, *SMALL, "-s", f"sample.prompt={name}")
    assert (refused.code, refused.error) == (
        1, r"configuration: sample.prompt: holds bytes that are no characters, got 'caf\udce9.txt'",
    )  # fmt: skip


@pytest.mark.parametrize("kernels", ["torch", "cpu"])
def test_a_run_is_drawn_from_and_measured_with_its_own_kernels(
    cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch, kernels: str
) -> None:
    assert cli("train", "verse.txt", *SMALL, "-s", f"runtime.kernels={kernels}").code == 0
    used: list[Kernels | None] = []
    monkeypatch.setattr(GPT, "use", lambda model, given: used.append(given))
    assert cli("eval", "last").code == cli("sample", "last", "-l", "3").code == 0
    assert used == 2 * [{"torch": TORCH, "cpu": CPU}[kernels]]


@pytest.mark.parametrize(
    ("source", "stem"),
    [
        ("my.txt", "my"),
        ("../x.txt", "x"),
        ("a b.txt", "a-b"),
        ("düsseldorf.txt", "düsseldorf"),
        ("春.txt.gz", "春"),
        (".hidden", "hidden"),
        ("folder/", "folder"),
        ("download:text8", "text8"),
        ("-", "text"),
        ("..", "text"),
        ("*.txt", "text"),
        ("--x--.txt", "x"),
        ("shakespeare-cpu", "shakespeare-cpu"),
    ],
)
def test_a_run_is_named_after_its_preset_or_text(source: str, stem: str) -> None:
    assert name_stem(source) == stem


@pytest.mark.parametrize("texts", [["a.txt"], ["a.txt", "b.txt"], ["folder"], ["*.txt"], ["-"], ["a.gz"]], ids=" ".join)
def test_any_kind_of_text(cli: Cli, texts: list[str]) -> None:
    """Each is read whole, and a run says how much that was."""
    Path("folder").mkdir()
    for name in ("a.txt", "b.txt", "folder/c", "folder/d"):
        Path(name).write_text(VERSE, encoding="utf-8")
    Path("a.gz").write_bytes(gzip.compress(VERSE.encode()))
    done = cli("train", *texts, *SMALL, "-s", "train.steps=1", stdin=VERSE.encode())
    assert done.code == 0, done.err
    files = 1 if texts in (["a.txt"], ["-"], ["a.gz"]) else 2
    assert f"{files * len(VERSE):,} characters, " in done.err


def test_a_text_gets_fitting_settings_and_is_told_which(cli: Cli, run: Path) -> None:
    """What --set decided is not among them."""
    done = cli("train", "verse.txt", *SMALL, "-s", "train.steps=1", "-s", "model.dropout=0.5")
    (line,) = [line for line in done.err.splitlines() if line.startswith("fitted to")]
    assert f"{len(VERSE):,} characters" in line
    assert "train.patience=" in line
    for mine in ("train.steps", "model.n_layer", "model.dropout"):
        assert mine not in line
    assert "dropout: 0.5" in Path("runs/verse-2/config.yaml").read_text(encoding="utf-8")
    assert "fitted" not in cli("train", "verse.txt", "-c", "tiny", *SMALL, "-s", "train.steps=1").err


def test_what_goes_with_the_fitted_settings_alone_is_no_contradiction(cli: Cli) -> None:
    """Of four heads, the default, 36 is no multiple that rotation can use; of the two that fit the text it is."""
    Path("verse.txt").write_text(VERSE, encoding="utf-8")
    done = cli("train", "verse.txt", "-s", "model.n_embd=36", "-s", "model.context=16", "-s", "train.steps=1")
    assert done.code == 0, done.err
    assert "must be divisible" in cli("train", "verse.txt", "-s", "model.n_embd=35").error


def test_tensorboard_has_a_sample_of_each_evaluation_and_attention_where_it_is_wanted(cli: Cli) -> None:
    Path("verse.txt").write_text(VERSE, encoding="utf-8")
    for name, wanted in (("with", "true"), ("without", "false")):
        done = cli("train", "verse.txt", *SMALL, "-s", f"train.attention={wanted}", "--name", name)
        assert done.code == 0, done.err
        curves = EventAccumulator(f"runs/{name}/tensorboard", size_guidance={"tensors": 0}).Reload()
        assert [event.step for event in curves.Tensors("sample/text_summary")] == [0, 2, 4]
        tags = curves.Tags()
        assert ("attention/grid" in tags["images"]) == (wanted == "true")
        assert any(tag.startswith(("heads/", "attention/")) for tag in tags["scalars"]) == (wanted == "true")


def test_a_prompt_of_the_settings_that_the_model_cannot_begin_with_is_told(cli: Cli) -> None:
    """In training by a line, where it is drawn from by an error, as if it stood on the command line."""
    Path("verse.txt").write_text(VERSE, encoding="utf-8")
    said = cli("train", "verse.txt", *SMALL, "-s", "sample.prompt=Zé").err
    assert re.search(r"^sample\.prompt: the model does not know 'Z'.* at position 1 .*begin with", said, re.MULTILINE)
    assert "does not know 'Z'" in cli("sample").error
    assert cli("sample", "--unknown", "skip", "-l", 5).code == 0
    assert "sample.prompt" not in cli("train", "verse.txt", *SMALL, "-s", "sample.prompt=do ").err


def test_a_page_is_no_part_of_the_folder_that_was_trained_on(cli: Cli) -> None:
    """The next run read it as text, and no run on the folder could be gone on with."""
    Path("verse.txt").write_text(VERSE, encoding="utf-8")
    assert cli("train", ".", *SMALL).code == 0
    assert cli("inspect").code == 0
    assert Path("inspect.html").exists()
    assert cli("eval").code == 0
    done = cli("train", ".", *SMALL)
    assert "left out 1 page of minigpt in ./ (first: inspect.html)\n" in done.err
    assert "1,840 characters" in done.err
    assert "holds no text" in cli("train", "*.html", *SMALL).error
    assert cli("eval", "last", "inspect.html", "--unknown", "skip").code == 0  # named itself, it is what was meant


def test_the_speedrun_ends_where_it_is_said_to(cli: Cli, shakespeare: Path) -> None:
    """On the text that it was measured on; of other settings or of another text no range is said."""
    done = cli("train", str(shakespeare), "-c", "speedrun", "-s", "train.seed=1")
    assert re.search(r"^as expected: speedrun reaches 1\.8\d\d to 1\.8\d\d", done.err, re.MULTILINE), done.err
    Path("verse.txt").write_text(VERSE, encoding="utf-8")
    short = ("-s", "train.steps=2")
    for text, settings in ((str(shakespeare), short), ("verse.txt", short)):
        done = cli("train", text, "-c", "speedrun", *settings)
        assert (done.code, "expected" in done.err) == (0, False)


def test_a_run_that_learns_by_heart_is_told_so(cli: Cli) -> None:
    Path("noise.txt").write_text("".join(random.Random(1).choices("abcdefgh", k=300)), encoding="utf-8")
    lengths = ("train.steps=80", "train.eval_every=10", "train.log_every=10", "train.patience=0")
    others = ("optim.lr=0.02", "optim.schedule=constant", "optim.weight_decay=0", "model.dropout=0")
    done = cli("train", "noise.txt", *SMALL, *(word for one in (*lengths, *others) for word in ("-s", one)))
    assert re.search(r"^overfitting since step \d+: ", done.err, re.MULTILINE), done.err


def test_a_name_in_use_shows_how_to_resume_and_touches_nothing(cli: Cli, run: Path) -> None:
    before = content(run)
    assert "minigpt train --resume verse-1" in cli("train", "verse.txt", "--name", "verse-1", *SMALL).error
    assert content(run) == before


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 10])
def test_a_text_of_a_few_characters_trains_or_is_refused_in_one_line(cli: Cli, length: int) -> None:
    done = cli("train", "-", *SMALL, stdin=b"abcabcabca"[:length])
    if length < 4:
        assert "too short" in done.error
        assert not Path("runs").exists()
    else:
        assert done.code == 0, done.err
        assert re.search(r"model\.context shrinks from 16 to [1-8]\b", done.err)
        assert cli("sample", "-l", 5).code == 0


def test_the_printed_commands_work_when_pasted(cli: Cli) -> None:
    """A text without a line end once made the plain `minigpt sample` fail on its own default prompt."""
    Path("one line.txt").write_text("all in one line " * 40, encoding="utf-8")
    done = cli("train", "one line.txt", "--name", "one line", *SMALL)
    assert (done.code, done.out) == (0, "")
    assert pasted(cli, done, "sample").code == 0
    longer = pasted(cli, done, "longer")
    assert (longer.code, checkpoint_steps(Path("runs/one line"))[-1]) == (0, 8)
    assert "  curves:   minigpt board" in done.err
    (on,) = re.findall(r"to go on: minigpt (.*)", cli("train", "--resume", "one line").error)
    assert cli(*shlex.split(on)).code == 0


def test_off_a_terminal_there_is_no_progress_bar(cli: Cli, run: Path) -> None:
    done = cli("train", "--resume", "last", *MORE)
    assert (done.code, done.out) == (0, "")
    assert not re.search(r"[\r\x1b]|%\|", done.err)


# ---- resuming ----


@pytest.mark.parametrize("name", ["last", "verse-1", "runs/verse-1"])
def test_resume_goes_on_where_the_run_stopped(cli: Cli, run: Path, name: str) -> None:
    done = cli("train", "--resume", name, *MORE)
    assert "resuming at step 4" in done.err
    assert checkpoint_steps(run)[-1] == 6
    assert "steps: 6" in (run / "config.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([], r"finished at step 4; to go on: minigpt train --resume verse-1 --set train\.steps=8"),
        (["model.n_layer=2", "optim.lr=1"], r"model\.n_layer is 1 in the run, 2 now; optim\.lr"),
        (["train.steps=2"], "run verse-1 is at step 4 already, past the 2 asked for"),
        (["runtime.device=cuda:77"], "cuda:77"),
        (["data.source=other.txt"], r"data\.source"),
        (["nonsense=1"], "unknown key"),
    ],
)
@pytest.mark.parametrize("curves", [True, False], ids=["", "metrics.jsonl deleted"])
def test_a_resume_that_is_refused_leaves_the_run_as_it_was(
    cli: Cli, run: Path, changes: list[str], says: str, curves: bool
) -> None:
    """It once stored the refused settings; and it deleted the whole run where metrics.jsonl was gone."""
    if not curves:
        (run / "metrics.jsonl").unlink()
    before = content(run)
    assert re.search(says, cli("train", "--resume", "last", *(word for key in changes for word in ("-s", key))).error)
    assert content(run) == before


def test_resume_needs_the_same_text(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(run)
    Path("verse.txt").write_text(VERSE + "one more line\n", encoding="utf-8")
    assert "not the one this run was trained on" in cli("train", "--resume", "last", *MORE).error
    Path("verse.txt").rename("moved.txt")
    assert "verse.txt" in cli("train", "--resume", "last", *MORE).error
    Path("elsewhere").mkdir()
    folder = run.absolute()
    monkeypatch.chdir("elsewhere")
    assert "verse.txt" in cli("train", "--resume", folder, *MORE).error
    assert content(folder) == before


def test_a_run_goes_on_where_its_text_lies_elsewhere(
    cli: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a move to another machine. In another encoding it is still the same text; another text is not."""
    folder = run.absolute()
    Path("verse.txt").rename("moved.txt")
    Path("utf16.txt").write_text(VERSE, encoding="utf-16")
    Path("other.txt").write_text(VERSE.replace("a", "e"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    texts = folder.parent.parent

    def resumed(*settings: str) -> Done:
        return cli("train", "--resume", folder, *MORE, *(word for setting in settings for word in ("-s", setting)))

    before = content(folder)
    assert "elsewhere now: --resume RUN --set data.source=TEXT" in resumed().error
    for gone in ("gone.txt", "other.txt"):
        assert gone in resumed(f"data.source={texts / gone}").error
    validated = resumed(f"data.source={texts / 'moved.txt'}", f"data.val_source={texts / 'other.txt'}").error
    assert validated.startswith("the text of other.txt is not the one this run was trained on; ")
    assert content(folder) == before
    assert "resuming at step 4" in resumed(f"data.source={texts / 'utf16.txt'}", "data.encoding=utf-16").err
    assert json.loads(cli("eval", folder, "--json").out)["text"] == "validation split"
    assert "step 8" in cli("train", "--resume", folder, "-s", "train.steps=8").err


def test_resume_of_what_came_from_standard_input(cli: Cli) -> None:
    assert cli("train", "-", "--name", "piped", *SMALL, stdin=VERSE.encode()).code == 0
    assert cli("train", "--resume", "piped", *MORE).code == 0


def test_resume_refuses_a_run_without_checkpoints_and_one_where_all_are_damaged(cli: Cli, run: Path) -> None:
    tokenizers = [run / "checkpoints" / step / "tokenizer.json" for step in ("step-00000002", "step-00000004")]
    for tokenizer in tokenizers:
        tokenizer.write_bytes(tokenizer.read_bytes() + b"\xff")
    assert "tokenizer.json" in cli("train", "--resume", "last", *MORE).error
    for tokenizer in tokenizers:
        tokenizer.unlink()
    assert "tokenizer.json" in cli("train", "--resume", "last", *MORE).error
    shutil.rmtree(run / "checkpoints")
    assert "no checkpoint" in cli("train", "--resume", "last", *MORE).error
    assert "no checkpoint" in cli("sample").error


def test_what_a_resumed_run_is_said_to_compute_on_is_what_it_computes_on(
    cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a GPU has come since, it goes on where it was."""
    monkeypatch.setattr("minigpt.model.device._devices", lambda: ["cuda:0", "cpu"])
    assert "on cpu" in cli("train", "--resume", "last", "-s", "runtime.device=auto", *MORE).err
    assert json.loads((run / "environment.json").read_text(encoding="utf-8"))[-1]["device"] == "cpu"


# ---- stopping and failing ----


@pytest.mark.skipif(os.name == "nt", reason="signals are sent in another way there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_says_how_to_go_on_and_that_works(cli: Cli, number: signal.Signals) -> None:
    """Ctrl-C reaches the whole group of processes, as from a terminal."""
    Path("verse.txt").write_text(VERSE, encoding="utf-8")
    arguments = ["train", "verse.txt", *SMALL, "-s", "train.steps=1000000", "-s", "train.patience=0"]
    command = [sys.executable, "-m", "minigpt", *arguments]
    with subprocess.Popen(
        command, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stderr
        seen = [next(line for line in running.stderr if line.startswith("step 2:"))]
        os.killpg(running.pid, number)
        seen += running.stderr.readlines()
        assert running.wait(30) == 128 + number
    stopped = Done(128 + number, "", "".join(seen))
    (step,) = checkpoint_steps(Path("runs/verse-1"))[-1:]
    assert f"stopped by {number.name} after step {step}" in stopped.err
    assert "Traceback" not in stopped.err
    on = pasted(cli, stopped, "go on", "-s", f"train.steps={step + 2}")
    assert (on.code, checkpoint_steps(Path("runs/verse-1"))[-1]) == (0, step + 2)


@pytest.mark.parametrize("resumed", [False, True])
def test_ctrl_c_before_the_first_step_leaves_no_run_half_made(
    cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("minigpt.training.loop.train", interrupted)
    before = content(Path("runs"))
    done = cli("train", *(["--resume", "verse-1"] if resumed else ["verse.txt"]), *SMALL[-4:], *MORE)
    assert done.code == 130
    assert "Traceback" not in done.err
    assert content(Path("runs")) == before
    assert [path.name for path in Path("runs").iterdir()] == ["verse-1"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("resumed", [False, True])
def test_a_signal_while_the_network_is_compiled_ends_at_once(
    cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch, resumed: bool, name: str
) -> None:
    """It once was only noted, and half a minute went by until the first step. What was begun is undone."""
    if not hasattr(signal, name) or (name == "SIGHUP" and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN):
        pytest.skip("there is no such signal here, or it is ignored")
    number = getattr(signal, name)

    def compiling(*_: object) -> None:
        signal.raise_signal(number)
        pytest.fail("it waited")

    monkeypatch.setattr("minigpt.training.loop.Training.compile_and_measure", compiling)
    before = content(Path("runs"))
    done = cli("train", *(["--resume", "verse-1"] if resumed else ["verse.txt"]), *SMALL[-4:], *MORE)
    assert done.code == 128 + number
    what = "the run is as it was" if resumed else "nothing was trained and nothing is kept"
    assert done.err.splitlines()[-1] == f"stopped before the first step: {what}"
    kept = {name: found for name, found in content(Path("runs")).items() if "tensorboard" not in name}
    assert kept == {name: found for name, found in before.items() if "tensorboard" not in name}
    assert [path.name for path in Path("runs").iterdir()] == ["verse-1"]


def test_failing_in_the_middle_keeps_the_run(cli: Cli, run: Path) -> None:
    """Its curves show what happened."""
    blow_up = ["-s", "optim.lr=1e30", "-s", "optim.muon_lr=1e30", "-s", "optim.schedule=constant"]
    assert re.search(r"step \d.*optim\.lr", cli("train", "verse.txt", "--name", "up", *SMALL, *blow_up).error)
    assert Path("runs/up/metrics.jsonl").stat().st_size > 0
    assert [row["name"] for row in cli("runs", "--json").json] == ["verse-1", "up"]


@pytest.mark.parametrize(
    "edit", [("n_layer: 1", "n_layer: 2"), ("lr: 0.003", "lr: 0.5"), ("dropout: 0.2", "dropout: 0.1")]
)
def test_an_edited_configuration_does_not_slip_into_a_resumed_run(cli: Cli, run: Path, edit: tuple[str, str]) -> None:
    """The run's config.yaml was once compared with itself: another rate went in without a word."""
    stored = (run / "config.yaml").read_text(encoding="utf-8")
    assert edit[0] in stored
    (run / "config.yaml").write_text(stored.replace(*edit, 1), encoding="utf-8")
    key = edit[0].partition(":")[0]
    assert re.search(
        rf"a resumed run keeps its settings, but \w+\.{key} is", cli("train", "--resume", "last", *MORE).error
    )


def test_a_model_too_large_for_this_machine_is_refused_before_it_is_made(cli: Cli) -> None:
    Path("verse.txt").write_text(VERSE, encoding="utf-8")
    huge = ["-s", "model.n_embd=100000", "-s", "model.n_head=4", "-s", "model.n_layer=1000"]
    error = cli("train", "verse.txt", *huge).error
    assert re.search(r"a model of [\d,]+ parameters needs about [\d.]+ GB to train", error) or sys.platform != "linux"
    assert not Path("runs/verse-1").exists()
