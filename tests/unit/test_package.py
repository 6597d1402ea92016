"""The package from Python, as in a notebook."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import minigpt


def test_the_examples_in_the_docstring_work(empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.txt").write_text("the cat and the hat and the bat.\n" * 100, encoding="utf-8")
    assert minigpt.__doc__
    blocks = re.findall(r"(?:^    .*\n|^\n)+", minigpt.__doc__, re.MULTILINE)
    namespace: dict[str, Any] = {}
    code = textwrap.dedent("\n".join(blocks))
    start = code.index("prepared =")  # a new user has no run, so train first
    exec("import minigpt\n" + code[start:] + code[:start], namespace)  # noqa: S102
    checkpoint = namespace["checkpoint"]
    assert namespace["logits"].shape == (1, 4, checkpoint.tokenizer.vocab_size)
    loss, text = capsys.readouterr().out.split("\n", 1)
    assert 0 < float(loss) < 4
    assert len(text) == len("the ") + 100 + 1
    assert namespace["page"].html.startswith("<!")


def test_dir_lists_the_names_of_the_package() -> None:
    assert {*minigpt.__all__, "__version__"} == {*dir(minigpt)}
    with pytest.raises(AttributeError, match=r"no attribute 'laod'; did you mean load\?"):
        minigpt.laod  # noqa: B018
    for name in minigpt.__all__:
        assert getattr(minigpt, name).__name__ == name
