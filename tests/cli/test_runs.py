"""`minigpt runs` and `minigpt board`."""

import re
from pathlib import Path
from typing import Any

import pytest
from command_line import SMALL, VERSE, Cli

from minigpt.storage.runs import checkpoint_steps, lock


def test_runs_lists_the_newest_run_last(cli: Cli, at_home: Path) -> None:
    _, first, last = cli("runs").out.splitlines()
    assert (first.split()[0], last.split()[:2]) == ("cjk", ["verse-1", "verse.txt"])
    rows = cli("runs", "--json").json
    assert [row["name"] for row in rows] == ["cjk", "verse-1"]
    assert rows[1]["step"] == 4
    assert f"{rows[1]['best_loss']:.4f}" in last


def test_many_texts_are_shortened_in_the_table_only(cli: Cli, empty_folder: Path) -> None:
    names = [f"verse{number}.txt" for number in range(8)]
    for name in names:
        Path(name).write_text(VERSE, encoding="utf-8")
    assert cli("train", *names, *SMALL, "-s", "train.steps=1", "--name", "a").code == 0
    assert "  verse0.txt + verse...e6.txt + verse7.txt  " in cli("runs").out
    assert cli("runs", "--json").json[0]["text"] == " + ".join(names)


def test_without_runs_json_is_an_empty_list_and_text_an_error(cli: Cli, empty_folder: Path) -> None:
    assert cli("runs", "--json").json == []
    assert "minigpt train" in cli("runs").error
    hint = "runs are in the folder where you trained; to start one: minigpt train"
    error = f"folder {Path.cwd() / 'none'} does not exist; {hint}"
    assert cli("runs", "--in", "none").error == cli("runs", "--in", "none", "--json").error == error


def test_show_prints_losses_command_size_and_changed_settings(cli: Cli, at_home: Path) -> None:
    facts = cli("runs", "show", "verse-1", "--json").json
    shown = cli("runs", "show").out
    assert (facts["name"], facts["step"], facts["settings"]["model.n_embd"]) == ("verse-1", 4, 16)
    assert facts["commands"][0][1:3] == ["train", "verse.txt"]
    assert facts["bytes"] == sum(file.stat().st_size for file in Path("runs/verse-1").rglob("*") if file.is_file())
    assert f"best {facts['best_loss']:.4f} at step {facts['best_step']}" in shown
    assert "command      minigpt train verse.txt -s model.n_layer=1 " in shown
    assert re.search(r"^train\.steps +4 ", shown, re.MULTILINE)
    assert cli("runs", "show", "verse-1@2", "--json").json["step"] == 2


def test_rm_deletes_what_training_wrote(cli: Cli, run: Path) -> None:
    assert "add --force" in cli("runs", "rm", "verse-1").error
    with lock(run):
        assert "run verse-1 is in use" in cli("runs", "rm", "verse-1", "--force").error
    for no in (b"", b"\n", b"n\n"):
        done = cli("runs", "rm", "verse-1", stdin=no, is_terminal=True)
        assert (done.code, done.err) == (1, "delete runs/verse-1? [y/N] minigpt: nothing was deleted\n")
    assert checkpoint_steps(run) == [2, 4]
    (run / "notes.txt").touch()
    kept = cli("runs", "rm", "verse-1", stdin=b"y\n", is_terminal=True).err
    assert "kept runs/verse-1, which has files that minigpt did not write; first move notes.txt elsewhere" in kept
    assert cli("runs", "verify", "verse-1").code == 0
    (run / "notes.txt").unlink()
    cli("runs", "rm", "verse-1", stdin=b"y\n", is_terminal=True)
    assert not run.exists()
    assert "no run is named" in cli("runs", "rm", "verse-1", "--force").error


def test_a_run_with_nothing_but_checkpoints_was_trained_when_they_were_saved(cli: Cli, run: Path) -> None:
    for name in ("metrics.jsonl", "config.yaml"):
        (run / name).unlink()
    assert cli("runs", "--json").json[0]["last_trained"] == (run / "checkpoints").stat().st_mtime


def test_board_passes_its_options_to_tensorboard(cli: Cli, empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard import program

    flags: list[Any] = []
    monkeypatch.setattr(program.TensorBoard, "main", lambda self: flags.append(self.flags) or 0)
    Path("runs").mkdir()
    assert "set Smoothing to 0" in cli("board", "--port", 7000).err
    assert cli("board").code == 0
    chosen, default = flags
    assert (chosen.logdir, chosen.port, chosen.host) == ("runs", 7000, "localhost")
    assert default.port is None  # TensorBoard looks for a free one
