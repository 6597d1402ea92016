"""Every wrong value of every setting is described in words, not in those of the library that checks it."""

import re

import pytest

from minigpt.config import resolve as c
from minigpt.errors import ConfigError

WRONG = ("word", "-1", "1e30", "1.5", "true", "[]", "[1, x]", "{a: 1}", "", "9" * 30, ".inf", "1e999")
JARGON = re.compile(r"pattern|Input|type=|valid |pydantic|instance|unable to|String|Tuple|Literal")


@pytest.mark.parametrize("key", c.fields())
def test_a_wrong_value_is_described_in_words(key: str) -> None:
    problems = []
    for value in WRONG:
        try:
            c.resolve(c.parse_overrides([f"{key}={value}"]))
        except ConfigError as error:
            problems.append(str(error))
    assert [problem for problem in problems if JARGON.search(problem)] == []
    assert all(key in problem for problem in problems)
