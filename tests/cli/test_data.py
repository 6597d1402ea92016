"""`minigpt data`."""

import pytest
from command_line import Cli

from minigpt.training.fit import WORK, fit


def test_info_prints_rare_characters_and_fitted_settings(cli: Cli) -> None:
    text = b"ab" * 50 + b"z"
    shown = cli("data", "info", "-", stdin=text).out
    assert "'z'" in next(line for line in shown.splitlines() if line.startswith("rare "))
    fitted = fit(101, len({*text}), WORK["cpu"])
    assert all(f"{key.split('.')[1]} {value}" in shown for key, value in fitted.items())
    assert cli("data", "info", "-", "--json", stdin=text).json["fitted"] == fitted


@pytest.mark.parametrize("text", ["a", "one\ntwo\n", "春眠不覺曉", "👩‍🚀 e\u0301"])
def test_info_counts_every_character(cli: Cli, text: str) -> None:
    facts = cli("data", "info", "-", "--json", stdin=text.encode()).json
    assert facts["characters"] == len(text)
    assert {row["character"]: row["count"] for row in facts["counts"]} == {char: text.count(char) for char in text}
    assert cli("data", "info", "-", stdin=text.encode()).code == 0
