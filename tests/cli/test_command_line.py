"""The command line as its users meet it: what each command prints where, its exit codes, its errors in one line."""

import gzip
import itertools
import json
import math
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer
from command_line import SMALL, VERSE, Cli, Done, environment, process

from minigpt import __version__
from minigpt.cli.main import app
from minigpt.config import resolve as config
from minigpt.config.presets import fit
from minigpt.model.gpt import GPT
from minigpt.sampling.draft import Draft
from minigpt.sampling.generate import Piece, generate
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.training.evaluate import EvalResult

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text and two runs on it, `verse-1` and, of bytes, `cjk`; only to be read."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "verse.txt").write_text(VERSE, encoding="utf-8")
    (folder / "cjk.txt").write_text("春眠不覺曉處處聞啼鳥。\n" * 40, encoding="utf-8")
    for arguments in (["verse.txt"], ["cjk.txt", "--name", "cjk", "-s", "data.tokenizer=byte"]):
        process("train", *arguments, *SMALL, cwd=folder).check_returncode()
    os.utime(folder / "runs" / "cjk" / "metrics.jsonl", (1, 1))
    for path in (folder / "runs" / "cjk").rglob("*"):
        os.utime(path, (1, 1))
    return folder


@pytest.fixture
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(home)
    return home


# ---- the surface ----


def test_the_commands_and_options_are_those_that_were_decided() -> None:
    """Scripts rely on these names; a new one is a decision and changes this list."""
    root: Any = typer.main.get_command(app)
    found = {}
    for name, command in root.commands.items():
        for sub, leaf in getattr(command, "commands", {"": command}).items():
            options = {opt for param in leaf.params if param.param_type_name == "option" for opt in param.opts}
            found[f"{name} {sub}".strip()] = " ".join(sorted(options))
    sampling = "--length --min-p --no-cache --no-draft --no-stream --num-samples --out --prompt --prompt-file"
    sampling += " --repetition-penalty"
    assert found == {
        "train": "--config --name --resume --set -c -s",
        "sample": f"--checkpoint --device --encoding --json {sampling} --seed --stop --temperature --top-k --top-p"
        " --unknown -l -n -o -p -t",
        "eval": "--checkpoint --device --encoding --json --stride --unknown",
        "attention": "--checkpoint --encoding --file --head --json --layer --max-chars --npz --png --probe --query"
        " --text --tty --unknown --val",
        "inspect": "--ablate --checkpoint --compare --detail --encoding --file --force --layers --max-chars --open"
        " --out --steps --text --unknown --val -o",
        "claims": "--checkpoint --json",
        "runs": "--json --verify",
        "board": "--host --port",
        "bench train": "--config --json --rounds --seconds --set -c -s",
        "bench sample": "--json --length --rounds --set --streams -s",
        "bench data": "--encoding --json --rounds",
        "data list": "",
        "data info": "--encoding --json",
        "data get": "",
        "config list": "",
        "config show": "--config --set -c -s",
        "config schema": "",
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["train", "--steps", 20],
            "No such option: --steps .*; a setting goes by --set train.steps=VALUE; see .*--help",
        ),
        (["train", "--batch-size", 2], "a setting goes by --set train.batch_size=VALUE"),
        (["eval", "--threads", 1], "No such option: --threads; see .*"),
        (["eval", "--stride", 0], "Invalid value for '--stride': Input should be greater than or equal to 1"),
        (["train", "--resume"], "Option '--resume' requires an argument"),
        (["tran"], "No such command 'tran'.*; see .* --help"),
    ],
    ids=str,
)
def test_a_command_line_that_cannot_be_is_one_line(cli: Cli, arguments: list[object], says: str) -> None:
    done = cli(*arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("Error: ")
    assert re.search(says, done.err)


def test_version_and_help_in_both_forms(cli: Cli) -> None:
    assert cli("--version") == Done(0, f"minigpt {__version__}\n", "")
    assert cli("-h").out == cli("--help").out
    assert "sample" in cli("-h").out
    assert cli("data", "info", "-h").code == 0


def test_train_help_lists_every_setting(cli: Cli) -> None:
    text = cli("train", "--help").out
    assert [key for key in config.fields() if not re.search(rf"^ *{re.escape(key)}\b", text, re.M)] == []


def test_what_needs_no_torch_does_not_wait_for_it(home: Path) -> None:
    """The first thing anyone types must answer at once."""
    commands = [
        *(["--help"], ["--version"], ["train", "--help"], ["sample", "--help"], ["runs"], ["runs", "--json"]),
        *(["config", "list"], ["config", "show", "-c", "tiny"], ["config", "schema"], ["config", "show", "-s", "a=1"]),
        *(["data", "list"], ["data", "info", "verse.txt"], ["data", "get", "nonsense"]),
    ]
    code = f"""
import sys
from minigpt.cli.main import main
for arguments in {commands!r}:
    sys.argv = ["minigpt", *arguments]
    try:
        main()
    except SystemExit:
        pass
    if "torch" in sys.modules:
        sys.exit(f"{{arguments}} imported torch")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=home, env=environment(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-300:]


def test_help_comes_in_under_a_third_of_a_second() -> None:
    """The best of a few tries, for the machine may be busy."""
    seconds = []
    for _ in range(8):
        start = time.perf_counter()
        assert process("--help").returncode == 0
        seconds.append(time.perf_counter() - start)
        if seconds[-1] < 0.3:
            return
    pytest.fail(f"--help took {min(seconds):.2f} s")


@pytest.mark.parametrize(
    "arguments",
    [
        ["trian"],
        ["train", "--nmae", "x"],
        ["train", "-c"],
        ["sample", "-n", "0"],
        ["sample", "-t", "warm"],
        ["sample", "one", "two"],
        ["eval", "--stride", "0"],
        ["data", "info"],
        ["config", "shwo"],
        ["board", "--port", "99999"],
        ["bench", "train", "--rounds", "0"],
        ["bench", "sample", "--streams", "0"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(cli: Cli, arguments: list[str]) -> None:
    done = cli(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "Error" in done.err


# ---- errors ----


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "nosuch.txt"], "nosuch.txt"),
        (["train", "empty.txt"], "empty"),
        (["train", "binary"], "binary"),
        (["train", "latin.txt"], r"byte 3 .*data\.encoding=latin-1"),
        (["train", "folder"], "no text"),
        (["train", "*.md"], "matches no file"),
        (["train", "builtin:pyhton"], "builtin:|python"),
        (["train", "download:shakespear"], "shakespeare"),
        (["train", "-c", "quikstart"], "quickstart"),
        (["train", "-c", "nosuch.yaml"], "nosuch.yaml"),
        (["train", "-c", "latin.txt"], "latin.txt"),
        (["train", "-s", "model.n_layer"], "KEY=VALUE"),
        (["train", "-s", "model.n_layr=2"], r"model\.n_layer"),
        (["train", "-s", "model.n_layer=two"], r"model\.n_layer.*whole number.*two"),
        (["train", "-s", "model.n_embd=30"], "divisible"),
        (["train", "-s", "model.n_layr=2", "-s", "train.steps=x", "-s", "model.n_embd=30"], "3 problems"),
        (["train", "-s", "train.steps=1", "-s", "train.minutes=1"], r"train\.steps.*train\.minutes"),
        (["train", "-s", "optim.lr=nan"], r"optim\.lr"),
        (["train", "good.txt", *SMALL, "-s", "runtime.device=cuda:77"], "cuda:77"),
        (["train", "good.txt", "--name", "../x"], "cannot name a run"),
        (["train", "good.txt", "--name", "last"], "cannot name a run"),
        (["train", "--resume", "nobody"], "nobody"),
        (["train", "--resume", "last"], "no run"),
        (["train", "--resume", "x", "--name", "y"], "only --set"),
        (["train", "--resume", "x", "good.txt"], "only --set"),
        (["train", "--resume", "x", "-c", "tiny"], "only --set"),
        (["sample"], "no run"),
        (["sample", "nobody"], "nobody"),
        (["sample", "-p", "a", "--prompt-file", "good.txt"], "exclude each other"),
        (["eval"], "no run"),
        (["runs"], "no run"),
        (["board"], "runs"),
        (["data", "get", "nonsense"], "shakespeare"),
        (["data", "info", "nosuch.txt"], "nosuch.txt"),
        (["data", "info", "good.txt", "--encoding", "utf-9"], "utf-9"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(
    cli: Cli, empty_folder: Path, arguments: list[str], says: str
) -> None:
    Path("good.txt").write_text(VERSE, encoding="utf-8")
    Path("empty.txt").touch()
    Path("binary").write_bytes(bytes(range(256)))
    Path("latin.txt").write_bytes("caf\xe9 au lait".encode("latin-1"))
    Path("folder").mkdir()
    before = sorted(empty_folder.iterdir())
    assert re.search(says, cli(*arguments).error)
    assert [path for path in empty_folder.rglob("*") if path not in before and path.name != "runs"] == []


def test_runs_that_is_a_file_is_one_line(cli: Cli) -> None:
    Path("runs").touch()
    Path("good.txt").write_text(VERSE, encoding="utf-8")
    assert "runs" in cli("train", "good.txt", *SMALL).error
    assert "no run" in cli("runs").error


# ---- config and data ----


def test_config_show_names_the_source_of_each_value(cli: Cli) -> None:
    rows = dict(
        re.split(r" {2,}", line, maxsplit=1)
        for line in cli("config", "show", "-c", "tiny", "-s", "model.n_layer=3").out.splitlines()
    )
    assert rows["model.n_layer"].split() == ["3", "--set"]
    assert rows["model.n_embd"].split() == ["32", "preset", "tiny"]
    assert rows["optim.name"].split() == ["muon", "default"]
    assert set(rows) - {"setting"} == set(config.fields())


def test_config_list_and_schema(cli: Cli) -> None:
    names = [line.split()[0] for line in cli("config", "list").out.splitlines()[1:]]
    shakespeare = [f"shakespeare{name}" for name in ("", "-5min", "-cpu", "-cpu-best", "-hour")]
    assert sorted(names) == ["nanogpt", "quickstart", *shakespeare, "speedrun", "tiny"]
    assert set(cli("config", "schema").json["properties"]) == set(config.RunConfig.model_fields)


def test_data_get_says_where_a_text_is_and_under_which_terms(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.text.download.download", lambda name: Path(f"{name}.zip"))
    done = cli("data", "get", "download:text8")
    assert (done.code, done.out) == (0, "text8.zip\n")
    assert "GNU FDL" in done.err


def test_data_list_names_builtins_and_downloads(cli: Cli) -> None:
    names = {line.split()[0] for line in cli("data", "list").out.splitlines()[1:]}
    assert names >= {"builtin:python", "builtin:pydoc", "download:shakespeare", "download:text8", "download:enwik8"}


def test_data_info_names_what_is_rare_and_what_fits(cli: Cli) -> None:
    text = b"ab" * 50 + b"z"
    shown = cli("data", "info", "-", stdin=text).out
    assert "rare         1 stand fewer than 5 times: 'z'" in shown
    assert "fitted (CPU) data.val_fraction=0.1, model.n_layer=2" in shown
    assert cli("data", "info", "-", "--json", stdin=text).json["fitted"] == fit(101, gpu=False)[1]
    fractions = [fit(size, gpu=False)[1]["data.val_fraction"] for size in (1000, 500_000, 10**6, 10**9)]
    assert fractions == [0.1, 0.1, 0.05, 5e-5], "a tenth, or about 50,000 characters"


@pytest.mark.parametrize(
    "text", ["a", "one\r\ntwo\r\n", "春眠不覺曉", "👩‍🚀 e\u0301", "".join(map(chr, range(32, 127)))]
)
def test_data_info_counts_every_character(cli: Cli, text: str) -> None:
    facts = cli("data", "info", "-", "--json", stdin=text.encode()).json
    assert facts["characters"] == len(text)
    assert facts["counts"] == {char: text.count(char) for char in text}
    plain = cli("data", "info", "-", stdin=text.encode())
    assert plain.code == 0
    assert ("2 carriage returns" in plain.out) is ("\r" in text)


# ---- sample ----


def test_sample_prints_the_prompt_and_what_follows_and_a_seed_repeats_it(cli: Cli, at_home: Path) -> None:
    first = cli("sample", "-p", "and ", "-l", 20, "--seed", 3)
    assert (first.code, first.err) == (0, "")
    assert first.out.startswith("and ")
    assert len(first.out) == len("and ") + 20 + 1
    assert cli("sample", "-p", "and ", "-l", 20, "--seed", 3) == first
    assert cli("sample", "-p", "and ", "-l", 20, "--seed", 3, "--no-cache", "--no-stream") == first
    assert cli("sample", "-p", "and ", "-l", 20, "--seed", 4) != first


def test_guesses_by_the_cached_text_change_nothing_nor_does_a_cache_that_is_gone_or_damaged(
    cli: Cli, at_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    guess = Draft.guess
    monkeypatch.setattr(Draft, "guess", lambda *given: asked.append(1) or guess(*given))
    first = cli("sample", "-p", "and ", "-l", 60)
    assert asked
    asked.clear()
    assert cli("sample", "-p", "and ", "-l", 60, "--no-draft") == first
    assert not asked
    shutil.copytree(os.environ["MINIGPT_CACHE"], tmp_path / "cache")
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    for file in tmp_path.rglob("tokens.bin"):
        file.write_bytes(b"\xff" * (file.stat().st_size - 1))
    assert cli("sample", "-p", "and ", "-l", 60) == first
    for file in tmp_path.rglob("tokens.json"):
        for damage in ("{}", '{"dtype": "object", "crc32": 0}', "[" * 100_000):
            file.write_text(damage)
            assert cli("sample", "-p", "and ", "-l", 60) == first
    shutil.rmtree(tmp_path / "cache")
    assert load_checkpoint("last").draft is None
    assert cli("sample", "-p", "and ", "-l", 60) == first


@pytest.mark.parametrize(
    "run", ["verse-1", "runs/verse-1", "runs/verse-1/", "last", "runs/verse-1/checkpoints/step-00000004"]
)
def test_a_run_goes_by_its_name_its_folder_its_checkpoint_and_last(cli: Cli, at_home: Path, run: str) -> None:
    assert (
        cli("sample", run, "-l", 5).out == cli("sample", at_home / "runs" / "verse-1", "--checkpoint", 4, "-l", 5).out
    )


@pytest.mark.skipif(sys.platform == "win32", reason="no shell to close streams with")
@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "1>&- 2>&-"])
def test_a_closed_stream_takes_what_is_written_and_stops_nothing(at_home: Path, closed: str) -> None:
    """Python then has None in place of the stream."""
    command = ["sh", "-c", f'exec "$0" -m minigpt sample -p and -l 3 {closed}', sys.executable]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == ("1>&-" not in closed)


def test_one_stream_of_a_small_model_is_drawn_with_one_thread(cli: Cli, at_home: Path) -> None:
    """Two would not be faster, and on a busy machine would wait for each other."""
    found = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert cli("sample", "-n", "2", "-l", "1").code == 0
        assert torch.get_num_threads() == 2
        assert cli("sample", "-l", "1").code == 0
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(found)


def test_a_copy_of_a_checkpoint_is_all_that_sample_needs(cli: Cli, home: Path, empty_folder: Path) -> None:
    original = home / "runs/verse-1/checkpoints/step-00000004"
    for file in original.iterdir():
        (empty_folder / file.name).write_bytes(file.read_bytes())
    assert cli("sample", ".", "-l", 9).out == cli("sample", original, "-l", 9).out
    assert "verse.txt" in cli("eval", ".").error


def test_the_prompt_comes_from_option_file_or_standard_input(cli: Cli, at_home: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("and summer", encoding="utf-8")
    (tmp_path / "p.gz").write_bytes(gzip.compress(b"and summer"))
    wanted = cli("sample", "-p", "and summer", "-l", 5)
    assert cli("sample", "--prompt-file", tmp_path / "p.txt", "-l", 5) == wanted
    assert cli("sample", "--prompt-file", tmp_path / "p.gz", "-l", 5) == wanted
    assert cli("sample", "--prompt-file", "-", "-l", 5, stdin=b"and summer") == wanted
    assert len(cli("sample", "-p", "", "-l", 5).out) == 5 + 1


def test_an_unknown_character_is_named_or_skipped_or_replaced(cli: Cli, at_home: Path) -> None:
    error = cli("sample", "-p", "May é").error
    for part in ("'é'", "U+00E9", "position 5", "'e'", "--unknown"):
        assert part in error
    for way, read in (("skip", "May "), ("replace", "May e")):
        out = cli("sample", "-p", "May é", "--unknown", way, "-l", 3, "-t", 0).out
        assert out.startswith(read), "what is shown is what the model read"
        assert len(out) == len(read) + 3 + 1
    assert cli("sample", "--unknown", "ignore").error.startswith("--unknown ignore")


def test_a_prompt_longer_than_the_context_says_what_is_used(cli: Cli, at_home: Path) -> None:
    done = cli("sample", "-p", VERSE[:40], "-l", 4)
    assert (done.code, len(done.out)) == (0, 45)
    assert re.search(r"last 16 of 40\b", done.err)


def test_sample_json_is_one_document_with_log_probabilities(cli: Cli, at_home: Path, tmp_path: Path) -> None:
    arguments = ["sample", "--json", "-p", "do", "-n", 3, "-l", 7, "--top-k", 5]
    found = cli(*arguments).json
    assert (found["prompt"], len(found["samples"])) == ("do", 3)
    assert (found["settings"]["length"], found["settings"]["top_k"]) == (7, 5)
    for drawn in found["samples"]:
        assert drawn["text"] == "".join(text for text, _ in drawn["characters"])
        assert len(drawn["characters"]) == 7
        assert all(-math.inf < logprob <= 0 for _, logprob in drawn["characters"])
    to_file = cli(*arguments, "-o", tmp_path / "s.json")
    assert (to_file.code, to_file.out) == (0, "")
    assert json.loads((tmp_path / "s.json").read_text(encoding="utf-8")) == found


def test_many_samples_are_set_apart_and_can_go_to_a_file(cli: Cli, at_home: Path, tmp_path: Path) -> None:
    shown = cli("sample", "-n", 3, "-l", 6, "-p", "do").out
    parts = shown.removesuffix("\n").split("\n--------\n")
    assert len(parts) == 3
    assert all(part.startswith("do") and len(part) == 8 for part in parts)
    assert cli("sample", "-n", 3, "-l", 6, "-p", "do", "-o", tmp_path / "s.txt").out == ""
    assert (tmp_path / "s.txt").read_bytes().decode() == shown
    assert "cannot write" in cli("sample", "-l", 2, "-o", tmp_path / "s.txt" / "x").error


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no file that is always full")
def test_a_disk_that_is_full_is_one_line(cli: Cli, at_home: Path) -> None:
    for command in (["sample", "-l", 2, "-o"], ["attention", "--text", "do", "--npz"]):
        assert cli(*command, "/dev/full").error == "cannot write /dev/full: No space left on device"


def test_a_file_that_cannot_be_written_is_told_before_anything_is_drawn(
    cli: Cli, at_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("kept")
    monkeypatch.setattr("minigpt.storage.checkpoint.load_checkpoint", lambda *_: pytest.fail("began"))
    problems = {tmp_path: "Is a directory", tmp_path / "file/x": "Not a directory", tmp_path / "no/x": "No such file"}
    for out, problem in problems.items():
        assert f"cannot write {out}: {problem}" in cli("sample", "-o", out).error
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)  # tests may run as a user who may do anything
    for out in (tmp_path / "new", tmp_path / "file"):
        assert f"cannot write {out}: Permission denied" in cli("sample", "-o", out).error
    assert (tmp_path / "file").read_text() == "kept"
    assert not (tmp_path / "new").exists()


def test_a_model_to_draw_from_has_its_matrices_by_columns(
    cli: Cli, at_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrices = []

    def look(model: GPT, *given: Any, **settings: Any) -> Iterator[Piece]:
        matrices.extend(module.weight for module in model.modules() if isinstance(module, torch.nn.Linear))
        return generate(model, *given, **settings)

    monkeypatch.setattr("minigpt.sampling.generate.generate", look)
    assert cli("sample", "-l", 2).code == 0
    assert matrices
    assert all(weight.t().is_contiguous() for weight in matrices)


def test_sample_and_eval_of_another_text_open_nothing_that_a_configuration_names(
    cli: Cli, at_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a stranger's."""
    monkeypatch.setattr("minigpt.storage.checkpoint.load_dataset", lambda *_: pytest.fail("it was opened"))
    (tmp_path / "mine.txt").write_text(VERSE, encoding="utf-8")
    assert cli("sample", "-l", 3).code == 0
    assert cli("eval", "last", tmp_path / "mine.txt", "--unknown", "skip").code == 0


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_ctrl_c_keeps_what_was_drawn(
    cli: Cli, at_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    arguments, out = ["sample", *form, "-n", 2, "-l", 9, "-p", "do", "-o"], tmp_path / "s"
    cli(*arguments, out)
    whole = out.read_text(encoding="utf-8")

    def interrupted(*given: Any, **settings: Any) -> Iterator[Piece]:
        yield from itertools.islice(generate(*given, **settings), 10)
        raise KeyboardInterrupt

    monkeypatch.setattr("minigpt.sampling.generate.generate", interrupted)
    done = cli(*arguments, out)
    assert (done.code, done.err) == (130, "stopped by Ctrl-C; this is what was drawn until then\n")
    found = out.read_text(encoding="utf-8")
    if form:
        texts, all_texts = ([one["text"] for one in json.loads(text)["samples"]] for text in (found, whole))
    else:
        texts, all_texts = (text.removesuffix("\n").split("\n--------\n") for text in (found, whole))
    assert [len(text.removeprefix("do")) for text in texts] == [5, 5]
    assert all(text == one[: len(text)] for text, one in zip(texts, all_texts, strict=True))


@pytest.mark.parametrize("text", ["DUCHESS:", "Once upon a time", "class Dog(object):", "too long for a name " * 20])
def test_a_text_in_the_place_of_a_run_is_told_where_it_goes(cli: Cli, at_home: Path, text: str) -> None:
    error = cli("sample", text).error
    assert f"no run is called '{text}'" in error
    advice = error.partition("; a text to continue goes by ")[2]
    assert cli("sample", "-l", 1, "--unknown", "skip", *shlex.split(advice)).code == 0
    assert "--prompt" not in cli("sample", "nobody").error


def test_a_stop_string_ends_a_sample_before_it(cli: Cli, at_home: Path) -> None:
    whole = cli("sample", "-p", "", "-l", 60, "-t", 1).out.removesuffix("\n")
    stop = whole[20:22]
    shown = cli("sample", "-p", "", "-l", 60, "-t", 1, "--stop", "never", "--stop", stop).out
    assert shown == whole[: whole.index(stop)] + "\n"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(
            ("-t", "-1"),
            ("-t", "nan"),
            ("-t", "inf"),
            ("-l", "0"),
            ("--top-p", "2"),
            ("--top-p", "0"),
            ("--top-k", "-1"),
        ),
        *(("--min-p", "1.5"), ("--repetition-penalty", "0"), ("--seed", "-1"), ("--device", "gpu")),
        *(("--checkpoint", "nonsense"), ("--checkpoint", "3"), ("--checkpoint", "-1"), ("--prompt-file", "nosuch")),
    ],
)
def test_sample_refuses_what_makes_no_sense(cli: Cli, at_home: Path, option: str, value: str) -> None:
    error = cli("sample", option, value).error
    assert value in error or option.lstrip("-").replace("-", "_") in error


# ---- eval ----


@pytest.mark.parametrize(("unknown", "characters"), [("skip", 5), ("replace", 7)])
def test_a_text_with_new_characters_is_evaluated_without_them_or_with_others(
    cli: Cli, at_home: Path, tmp_path: Path, unknown: str, characters: int
) -> None:
    text = tmp_path / "strange.txt"
    text.write_text("the☃☃ see", encoding="utf-8")
    assert "--unknown skip or --unknown replace goes on" in cli("eval", "verse-1", text).error
    found = cli("eval", "verse-1", text, "--unknown", unknown, "--json").json
    assert found["characters"] == characters + 1
    assert found["text"].endswith({"skip": "unknown ones skipped", "replace": "unknown ones replaced"}[unknown])


def test_what_eval_prints_is_json_and_names_its_unit(cli: Cli, at_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = EvalResult(loss=701.0, bits_per_character=1011.3, perplexity=math.inf, characters=5)
    monkeypatch.setattr("minigpt.training.evaluate.evaluate", lambda *_, **__: result)
    found = json.loads(cli("eval", "--json").out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (found["loss"], found["perplexity"]) == (701.0, None)
    assert "701.0000 nats\n" in cli("eval").out
    assert "701.0000 nats a byte\n" in cli("eval", "cjk").out


@pytest.mark.parametrize("run", ["verse-1", "cjk"])
def test_eval_agrees_with_training_to_the_last_digit(cli: Cli, at_home: Path, run: str) -> None:
    found = cli("eval", run, "--json").json
    meta = json.loads((Path(found["checkpoint"]) / "meta.json").read_text(encoding="utf-8"))
    assert found["loss"] == meta["validation_loss"] == meta["state"]["best_loss"]
    assert {"loss", "bits_per_character", "perplexity", "characters", "protocol"} <= set(found)
    assert found["perplexity"] == math.exp(found["loss"])
    assert "non-overlapping windows of 16" in found["protocol"]
    assert cli("eval", run, "--json").json == found


def test_a_character_of_several_bytes_is_one_character(cli: Cli, at_home: Path) -> None:
    """Bits per byte are not bits per character: three bytes a character here."""
    text = "春眠不覺曉" * 4
    found = cli("eval", "cjk", "-", "--json", stdin=text.encode()).json
    tokens = 3 * len(text) - 1
    assert found["characters"] == len(text) - 1
    assert found["bits_per_character"] == pytest.approx(found["loss"] * tokens / math.log(2) / found["characters"])


def test_eval_on_another_text(cli: Cli, at_home: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("summer winds ", encoding="utf-8")
    (tmp_path / "b.txt").write_text("shake the buds", encoding="utf-8")
    (tmp_path / "odd.txt").write_text("summer œuvre", encoding="utf-8")
    done = cli("eval", "verse-1", tmp_path / "a.txt", tmp_path / "b.txt")
    assert re.search(r"characters +26 of 2 files", done.out)
    error = cli("eval", "verse-1", tmp_path / "odd.txt").error
    assert "'œ'" in error
    assert "position 8" in error


def test_stride_slides_and_says_that_it_does(cli: Cli, at_home: Path) -> None:
    whole, slid = cli("eval", "--json").json, cli("eval", "--stride", 4, "--json").json
    assert "stride 4" in slid["protocol"]
    assert slid["characters"] == whole["characters"]
    assert slid["loss"] != whole["loss"]
    assert cli("eval", "--stride", 16, "--json").json == whole
    assert "16" in cli("eval", "--stride", 17).error


# ---- runs and board ----


def test_runs_lists_the_last_touched_at_the_end(cli: Cli, at_home: Path) -> None:
    head, first, last = cli("runs").out.splitlines()
    assert head.split() == ["run", "corpus", "parameters", "step", "best", "loss", "age"]
    assert (first.split()[0], last.split()[:2]) == ("cjk", ["verse-1", "verse.txt"])
    rows = cli("runs", "--json").json
    assert [row["name"] for row in rows] == ["cjk", "verse-1"]
    assert rows[1]["step"] == 4
    assert f"{rows[1]['best_loss']:.4f}" in last


def test_runs_json_of_nothing_is_an_empty_list(cli: Cli) -> None:
    assert cli("runs", "--json").json == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to send")
def test_board_serves_this_machine_only_and_keeps_200_pictures(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Server:
        def __init__(self, **_: object) -> None:
            pass

        def configure(self, argv: list[str]) -> None:
            seen.extend(argv)

        def main(self) -> int:
            return 0

    parts = {"default": SimpleNamespace(get_plugins=list), "program": SimpleNamespace(TensorBoard=Server)}
    monkeypatch.setitem(sys.modules, "tensorboard", SimpleNamespace(**parts))
    Path("runs").mkdir()
    assert cli("board").code == 0
    for option, value in (("--host", "localhost"), ("--port", "6006"), ("--samples_per_plugin", "images=200")):
        assert seen[seen.index(option) + 1] == value


def test_board_serves_until_it_is_told_to_stop(home: Path) -> None:
    """It was a child of its own once, which a SIGTERM to the command left running on its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "minigpt", "board", "--port", str(port), "--host", "127.0.0.1"]
    with subprocess.Popen(command, cwd=home, env=environment(), stderr=subprocess.PIPE, text=True) as board:
        try:
            page = fetched(f"http://127.0.0.1:{port}/", board)
            assert b"TensorBoard" in page
        finally:
            board.send_signal(signal.SIGTERM)
            board.wait(20)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def fetched(address: str, server: "subprocess.Popen[str]") -> bytes:
    """The page, as soon as the server answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(300):
        try:
            with opener.open(address, timeout=10) as response:
                return bytes(response.read())
        except OSError:
            assert server.poll() is None, server.stderr and server.stderr.read()
            time.sleep(0.1)
    raise AssertionError("it never answered")


@pytest.mark.parametrize("arguments", [["sample", "nobody"], ["train", "-c", "nosuch.yaml"], ["eval"]], ids=" ".join)
def test_debug_shows_where_an_error_came_from_and_the_same_line(cli: Cli, arguments: list[str]) -> None:
    plain, traced = cli(*arguments), cli("--debug", *arguments)
    assert "Traceback" not in plain.err
    assert traced.code == plain.code == 1
    assert traced.err.startswith("Traceback (most recent call last):\n")
    assert "minigpt.errors.UserError: " in traced.err
    assert traced.err.endswith(f"\n{plain.err}")


def test_debug_changes_nothing_where_nothing_fails(cli: Cli) -> None:
    assert cli("--debug", "config", "list") == cli("config", "list")


@pytest.mark.parametrize("terminal", [True, False])
def test_control_characters_reach_a_pipe_and_no_terminal(
    cli: Cli, at_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    """A model of terminal recordings draws escape sequences; the samples of others can be made to."""
    import minigpt.sampling.generate
    from minigpt.sampling.generate import Piece

    drawn = "a\x1b[2Jb\x07\n\tc\u202e"
    monkeypatch.setattr(minigpt.sample, "generate", lambda *_, **__: (Piece(0, c, -0.5) for c in drawn))
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: terminal)
    shown = r"a\u001b[2Jb\u0007" + "\n\tc" + r"\u202e"
    expected = shown if terminal else drawn
    assert cli("sample", "-p", "do").out == f"do{expected}\n"
    assert cli("sample", "-p", "do", "-n", 1, "--no-stream").out == f"do{expected}\n"
    assert cli("sample", "-p", "do", "--json").json["samples"][0]["text"] == drawn, "it is JSON either way"
    cli("sample", "-p", "do", "-o", tmp_path / "s.txt")
    assert (tmp_path / "s.txt").read_bytes().decode() == f"do{drawn}\n"


# ---- a model as large as one likes ----


@pytest.mark.parametrize(
    "setting",
    ["model.n_layer=1000000000", "model.n_embd=1000000000", "model.context=1000000000", "runtime.threads=99999"],
)
def test_sizes_that_no_machine_has_are_refused_at_once(cli: Cli, setting: str) -> None:
    """A billion layers were once made one by one."""
    Path("verse.txt").write_text(VERSE, encoding="utf-8")
    started = time.perf_counter()
    assert setting.partition("=")[0] in cli("train", "verse.txt", "-s", setting).error
    assert time.perf_counter() - started < 2
    assert not Path("runs").exists()


# ---- the process ----


@pytest.mark.skipif(os.name == "nt", reason="a closed pipe is another error there")
@pytest.mark.parametrize(
    "arguments", [["config", "show"], ["data", "info", "verse.txt", "--json"], ["train", "--help"]]
)
def test_a_reader_that_goes_early_gets_no_traceback(home: Path, arguments: list[str]) -> None:
    """`| head -1`: what is written into the closed pipe at exit must not be complained of either."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "minigpt", *arguments]
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run(command, cwd=home, env=environment(), stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_under_the_output_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "minigpt", "config", "show"]
        done = subprocess.run(command, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"minigpt: .*No space left.*\n", done.stderr)


def test_output_is_utf_8_whatever_the_console_says() -> None:
    """A Windows console in a legacy code page could not print most of what a model writes."""
    ascii_only = {**environment(), "PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0", "LC_ALL": "C"}
    command = [sys.executable, "-m", "minigpt", "data", "info", "-"]
    done = subprocess.run(command, env=ascii_only, input="春眠\n".encode(), capture_output=True, check=False)
    assert done.returncode == 0
    assert "'春'" in done.stdout.decode("utf-8")
