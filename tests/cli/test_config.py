"""`minigpt config`."""

import re

from command_line import Cli

from minigpt.config.resolve import fields


def test_show_prints_the_source_of_each_setting(cli: Cli) -> None:
    lines = cli("config", "show", "-c", "tiny", "-s", "model.n_layer=3").out.splitlines()
    rows = dict(re.split(r" {2,}", line, maxsplit=1) for line in lines)
    assert rows["model.n_layer"].split() == ["3", "command", "line"]
    assert rows["model.n_embd"].split() == ["32", "preset", "tiny"]
    assert rows["optim.name"].split() == ["muon", "default"]
    assert set(rows) - {"setting"} == set(fields())
