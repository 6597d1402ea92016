"""The nine rules of the command line, which is frozen. docs/reference/commands.md describes its commands."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import SMALL, Cli

from minigpt.cli.app import app
from minigpt.cli.options import options_of
from minigpt.paths import is_run
from minigpt.storage.checkpoint import load_checkpoint

pytestmark = pytest.mark.usefixtures("at_home")
COMMANDS = [
    "train",
    "board",
    "sample",
    "eval",
    "compare",
    "export",
    "import",
    "inspect",
    "course",
    "runs",
    "data",
    "config",
]
GROUPS = {
    "runs": ["show", "rm", "verify", "replay"],
    "data": ["list", "info"],
    "config": ["list", "show", "settings", "init"],
    "course": ["text", "run", "check"],
}


@pytest.fixture
def at_home(run: Path) -> Path:
    """The folder with the run `verse-1` and its text."""
    return run.parents[1]


def every_command() -> Iterator[tuple[str, Any]]:
    """Yield the name of each command and the command."""
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        yield name, command
        yield from ((f"{name} {below}", item) for below, item in getattr(command, "commands", {}).items())


def test_there_are_twelve_commands_and_four_groups() -> None:
    names = [name for name, _ in every_command()]
    assert [name for name in names if " " not in name] == COMMANDS
    for group, below in GROUPS.items():
        assert [name.split()[1] for name in names if name.startswith(f"{group} ")] == below


# ---- 1. A positional argument is a text in `train` and `data`, and a run everywhere else ----


def test_1_an_argument_is_a_text_in_train_and_data_and_a_run_elsewhere() -> None:
    others = {"import": "CHECKPOINT", "course text": "FILE", "course run": "N", "course check": "N"}
    for name, command in every_command():
        (first, *_) = [item.metavar for item in command.params if item.param_type_name == "argument"] or [None]
        is_of_texts = name in ("train", "data info", "config init")
        expected = "TEXT" if is_of_texts else others.get(name, "RUN")
        assert first is None or expected in first, name


@pytest.mark.parametrize(
    "arguments", ["sample verse-1 verse.txt", "eval verse-1 verse.txt", "inspect verse-1 verse.txt"]
)
def test_1_a_text_in_the_place_of_a_second_run_is_an_error_that_names_the_option(cli: Cli, arguments: str) -> None:
    done = cli(*arguments.split())
    assert done.code == 2
    assert "a text is --file verse.txt" in done.err


# ---- 2. RUN@STEP, RUN@best, RUN@last ----


@pytest.mark.parametrize(
    "arguments",
    [
        "sample {} -l 3 --json",
        "eval {} --json",
        "inspect {} --json",
        "inspect verse-1 --with {} -o -",
        "compare verse-1 {} --json",
        "export {} --to safetensors --json",
        "runs show {} --json",
        "runs replay {} --json",
        "train verse.txt --from {} --steps 1 --dry-run --json",
    ],
)
@pytest.mark.parametrize("which", ["@2", "@best", "@last", ""])
def test_2_every_command_takes_a_step(cli: Cli, arguments: str, which: str) -> None:
    if which == "@2" or arguments.startswith(("sample", "eval")):
        assert cli(*arguments.format(f"verse-1{which}").split()).code == 0
    assert "; use 2, 4, best or last" in cli(*arguments.format("verse-1@3").split()).err


@pytest.mark.parametrize(("which", "step"), [("last", 4), ("last@2", 2), ("runs/verse-1@2", 2), ("verse-1@last", 4)])
def test_2_a_run_is_a_name_a_path_or_last(cli: Cli, which: str, step: int) -> None:
    assert cli("sample", which, "-l", 1, "--json").json["checkpoint"].endswith(f"step-{step:08d}")


def test_2_a_resume_continues_from_a_step(cli: Cli, at_home: Path) -> None:
    assert "resuming at step 2" in cli("train", "--resume", "verse-1@2").err
    assert "use 2, 4, best or last" in cli("train", "--resume", "verse-1@3").error
    assert cli("train", "--resume", "verse-1", "--steps", 6).code == 0
    resumed = cli("train", "--resume", "verse-1@4", "--steps", 6).err
    assert "resuming at step 4" in resumed
    assert "using the checkpoint's settings" not in resumed  # config.yaml was right about a later step
    assert [path.name for path in (at_home / "runs").iterdir() if is_run(path)] == ["verse-1"]


@pytest.mark.parametrize("arguments", ["runs rm verse-1@2 --force", "runs verify verse-1@2", "sample verse-1@2@4"])
def test_2_where_a_whole_run_is_meant_a_step_is_an_error(cli: Cli, arguments: str) -> None:
    assert "is a checkpoint; give the name of its run" in cli(*arguments.split()).error
    assert cli("runs", "verify", "verse-1").code == 0


def test_2_no_run_can_have_an_at_sign(cli: Cli, at_home: Path) -> None:
    assert "'my@run' is not a valid run name" in cli("train", "verse.txt", "--name", "my@run").error
    assert "minigpt train" in cli("sample", "last", **no_runs(at_home)).error


def no_runs(at_home: Path) -> dict[str, Any]:
    """Move the runs away. Return no arguments."""
    (at_home / "runs").rename(at_home / "other")
    return {}


# ---- 3. Another run is --with RUN ----


def test_3_another_run_is_with() -> None:
    takers = {name for name, command in every_command() if "--with" in options_of(command)}
    assert takers == {"inspect"}
    assert not {option for _, command in every_command() for option in options_of(command)} & {
        "--compare",
        "--checkpoint",
    }


# ---- 4. Output files ----


@pytest.mark.parametrize("arguments", ["sample -l 3 --seed 1", "inspect --text the"])
def test_4_an_output_file_is_replaced_with_force_only(cli: Cli, at_home: Path, arguments: str) -> None:
    out = at_home / "out"
    shown = cli(*arguments.split(), "-o", "-").out
    out.write_text("mine", encoding="utf-8")
    assert "to replace it, add --force" in cli(*arguments.split(), "-o", out).error
    assert out.read_text(encoding="utf-8") == "mine"
    assert cli(*arguments.split(), "-o", out, "--force").code == 0
    assert out.read_text(encoding="utf-8") == shown
    assert (cli(*arguments.split(), "-o", out).code == 0) == arguments.startswith("inspect")  # its own page
    kept = at_home / "runs/verse-1/config.yaml"
    before = kept.read_bytes()
    assert "it belongs to run verse-1" in cli(*arguments.split(), "-o", kept, "--force").error
    assert kept.read_bytes() == before


def test_4_a_folder_cannot_be_standard_output(cli: Cli) -> None:
    assert "-o FOLDER" in cli("export", "--to", "safetensors", "-o", "-").error


# ---- 5. JSON ----


@pytest.mark.parametrize(
    "arguments",
    [
        "train verse.txt -c tiny --steps 2 --eval-every 1",
        "train verse.txt -c tiny --dry-run",
        "sample -l 3",
        "eval --by-position",
        "inspect",
        "compare verse-1 verse-1@2",
        "export --to safetensors",
        "import stories",
        "runs",
        "runs show",
        "runs verify",
        "runs replay",
        "data",
        "data list",
        "data info verse.txt",
        "config",
        "config list",
        "config show",
        "config settings",
        "course",
    ],
)
def test_5_json_is_one_document(cli: Cli, arguments: str) -> None:
    document = cli(*arguments.split(), "--json").json
    assert isinstance(document, dict | list)
    assert document
    if isinstance(document, list):
        assert all(isinstance(item, dict) for item in document)


@pytest.mark.parametrize(
    "arguments", ["sample nobody", "eval nobody", "inspect nobody", "compare nobody", "runs show nobody"]
)
def test_5_a_failure_prints_no_json(cli: Cli, arguments: str) -> None:
    assert "no run is named 'nobody'" in cli(*arguments.split(), "--json").error


# ---- 6. A group without a command lists ----


@pytest.mark.parametrize("group", GROUPS)
def test_6_a_group_without_a_command_lists(cli: Cli, group: str) -> None:
    done = cli(group)
    assert done.code == 0
    assert len(done.out.splitlines()) >= 2
    assert len(cli(group, "--json").json) >= 1


@pytest.mark.parametrize("arguments", ["runs --json show", "data --json info verse.txt", "runs --in .. show"])
def test_6_options_of_the_list_belong_to_no_command(cli: Cli, arguments: str) -> None:
    done = cli(*arguments.split())
    assert (done.code, done.out) == (2, "")
    assert " is an option of the list of " in done.err


# ---- 7. Tracebacks ----


@pytest.mark.parametrize("is_variable", [True, False])
def test_7_debug_shows_the_traceback(cli: Cli, is_variable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "MINIGPT_DEBUG", str(int(is_variable)))
    done = cli(*[] if is_variable else ["--debug"], "sample", "nobody")
    assert "Traceback" in done.err
    monkeypatch.delenv("MINIGPT_DEBUG")
    assert "Traceback" not in cli("sample", "nobody").err


# ---- 8. sample ----


def test_8_sample_has_panels_and_draws_a_seed(cli: Cli) -> None:
    assert {"What to write", "Filters", "Output"} <= set(re.findall(r"─ ([\w ]+) ─", cli("sample", "--help").out))
    first, second = cli("sample", "-l", 40), cli("sample", "-l", 40)
    assert first.out != second.out
    (seed,) = re.findall(r"^seed (\d+)$", first.err, re.MULTILINE)
    assert cli("sample", "-l", 40, "--seed", seed).out == first.out
    found = cli("sample", "-l", 40, "--json").json
    assert cli("sample", "-l", 40, "--seed", found["settings"]["seed"], "--json").json == found


def test_8_a_conversation_continues_each_line(cli: Cli) -> None:
    done = cli("sample", "-i", "-l", 4, "--seed", 3, stdin="the\n§\nsum\r\n".encode())
    assert done.out.startswith(cli("sample", "-p", "the", "-l", 4, "--seed", 3).out + "sum")
    assert "'§'" in done.err
    assert done.code == 0


# ---- 9. Settings as options ----


def test_9_a_full_name_is_never_another_option(cli: Cli, run: Path) -> None:
    """--name names the run, and --seed is that of training."""
    error = cli("train", "verse.txt", "--optim.name", "sgd").error
    assert error == "configuration: optim.name is sgd, but should be 'adamw' or 'normuon'"
    done = cli("train", "verse.txt", *SMALL, "--sample.seed", "7", "--name", "seeded")
    config = load_checkpoint("seeded").config
    assert (done.code, config.sample.seed, config.train.seed) == (0, 7, 1337)


@pytest.mark.parametrize(
    ("option", "setting"),
    [
        ("--steps 7", "train.steps=7"),
        ("--batch-size 3", "train.batch_size=3"),
        ("--lr 0.02", "optim.lr=0.02"),
        ("--seed 4", "train.seed=4"),
        ("--device cpu", "runtime.device=cpu"),
        ("--n-layer=2", "model.n_layer=2"),
        ("--weight_decay 0.3", "optim.weight_decay=0.3"),
        ("--max_iters=7", "train.steps=7"),  # nanoGPT
        ("--hidden_size=64", "model.n_embd=64"),  # Hugging Face
    ],
)
def test_9_a_setting_is_an_option_also_under_the_names_of_others(cli: Cli, option: str, setting: str) -> None:
    def run(*arguments: str) -> Any:
        return cli("config", "show", "-c", "tiny", *arguments, "--json").json

    if option.split()[0] in ("--steps", "--batch-size", "--lr", "--seed", "--device"):
        assert option.split()[0] in cli("train", "--help").out
    assert run(*option.split()) == run("--set", setting)


def test_9_a_setting_that_is_given_twice_is_an_error(cli: Cli) -> None:
    done = cli("train", "verse.txt", "--steps", 3, "--set", "train.steps=4")
    assert "train.steps is set twice" in done.error
