"""`minigpt config`."""

import re
from pathlib import Path

from command_line import VERSE, Cli

from minigpt.config.resolve import fields
from minigpt.training.setup import prepare_run


def test_show_prints_the_source_of_each_setting(cli: Cli) -> None:
    lines = cli("config", "show", "-c", "tiny", "-s", "model.n_layer=3").out.splitlines()
    rows = dict(re.split(r" {2,}", line, maxsplit=1) for line in lines)
    assert rows["model.n_layer"].split() == ["3", "command", "line"]
    assert rows["model.n_embd"].split() == ["32", "preset", "tiny"]
    assert rows["optim.name"].split() == ["normuon", "default"]
    assert set(rows) - {"setting"} == set(fields())


def test_init_prints_the_settings_of_the_same_run(cli: Cli, empty_folder: Path) -> None:
    (empty_folder / "my.txt").write_bytes(f"é{VERSE}".encode("latin-1"))
    (empty_folder / "my.yaml").write_text(cli("config", "init", "my.txt", "--encoding", "latin-1").out)
    (empty_folder / "short.yaml").write_text("train: {steps: 7}\ndata: {encoding: latin-1}\n")
    fitted = prepare_run(["my.txt"], None, ["data.encoding=latin-1"]).config
    assert prepare_run([], "my.yaml").config == prepare_run(["my.txt"], "my.yaml").config == fitted
    short = prepare_run(["my.txt"], "short.yaml").config
    assert short == prepare_run(["my.txt"], None, ["data.encoding=latin-1", "train.steps=7"]).config
    assert short.model == fitted.model
