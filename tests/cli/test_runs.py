"""`minigpt runs` and `minigpt board`."""

from pathlib import Path
from typing import Any

import pytest
from command_line import SMALL, VERSE, Cli

from minigpt.cli.board import IMAGES


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
    assert cli("runs", "--json").json[0]["corpus"] == " + ".join(names)


def test_diff_shows_every_setting_that_differs(cli: Cli, empty_folder: Path) -> None:
    Path("verse.txt").write_text(VERSE, encoding="utf-8")
    settings = {"a": ["data.encoding=utf-8"], "b": ["data.encoding=latin-1", "sample.seed=7", "train.patience=9"]}
    for name, chosen in settings.items():
        options = [word for setting in chosen for word in ("-s", setting)]
        assert cli("train", "verse.txt", *SMALL, "-s", "train.steps=1", "--name", name, *options).code == 0
    head, *rows = [line.split() for line in cli("runs", "--diff").out.splitlines()]
    assert head == ["run", "step", "best", "loss", "encoding", "patience", "seed"]
    assert [[row[0], *row[3:]] for row in rows] == [["a", "utf-8", "4", "1337"], ["b", "latin-1", "9", "7"]]
    assert cli("train", "verse.txt", *SMALL, "-s", "train.steps=1", "--name", "c", "-s", "train.seed=8").code == 0
    assert {"train.seed", "sample.seed"} <= set(cli("runs", "--diff").out.split())


def test_without_runs_json_is_an_empty_list_and_text_an_error(cli: Cli, empty_folder: Path) -> None:
    assert cli("runs", "--json").json == []
    assert "minigpt train" in cli("runs").error
    for option in ("--json", "--verify", "--diff"):
        assert (
            cli("runs", "none", option).error
            == f"folder {Path.cwd() / 'none'} does not exist; to start one: minigpt train"
        )


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
    assert default.samples_per_plugin == {"images": IMAGES}
