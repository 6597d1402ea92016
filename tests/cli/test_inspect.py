"""`minigpt inspect`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Cli

from minigpt.cli.inspect import _spread

pytestmark = pytest.mark.usefixtures("folder")


def page_data(path: Path) -> Any:
    page = path.read_text(encoding="utf-8")
    return json.loads(page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])


def test_the_same_run_gives_the_same_page(cli: Cli, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = cli("inspect", "-o", page)
    assert done.out == ""
    assert f"{page.stat().st_size / 1e6:.2f} MB" in done.err
    before = page.read_bytes()
    cli("inspect", "-o", page)
    assert page.read_bytes() == before
    data = page_data(page)
    assert (data["run"], data["ablation"], data["training"], data["compare"], data["detail"]) == ("verse", *[None] * 4)
    assert len(data["text"]["symbols"]) == 32


def test_the_page_opens_at_a_head_and_at_the_end_of_a_text(cli: Cli, tmp_path: Path) -> None:
    page = tmp_path / "page.html"

    def initial(*options: str) -> list[int]:
        assert cli("inspect", "verse", *options, "-o", page).code == 0
        return list(page_data(page)["scores"]["initial"])

    for layer, head in ((0, 0), (0, 1), (1, 0), (1, 1)):
        options = ("--layer", str(layer), "--head", str(head))
        assert initial(*options)[:2] == [layer, head]
        assert initial(*options, "--text", "winds do") == [layer, head, 7]
    assert initial("--layers", "1", "--layer", "1")[0] == 0  # the first layer on the page
    assert initial("--head", "1")[1] == 1
    assert initial("--val", "0")[2] >= 16  # in the second half, where the head attends most


def test_open_shows_the_page(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    page = tmp_path / "my page.html"
    assert cli("inspect", "-o", page).code == cli("inspect", "-o", page, "--open").code == 0
    assert opened == [page.as_uri()]


def test_options_add_views(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    options = ["--ablate", "--steps", "all", "--compare", "verse", "--detail", "--layers", "1"]
    assert cli("inspect", "verse", *options, "--text", "hath all too short", "-o", out).code == 0
    data = page_data(out)
    assert data["layers"] == [1]
    assert len(data["text"]["symbols"]) == 18
    assert np.array(data["ablation"]["increases"]).shape == (1, 2)
    assert [frame["step"] for frame in data["training"]["frames"]] == [2, 4]
    assert data["compare"]["name"] == "verse"
    assert data["detail"] is not None


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--layers", "2"], "layers 0 to 1"),
        (["--layers", "one"], "--layers one: "),
        (["--layer", "2"], "no layer 2 on this page: it has layers 0, 1"),
        (["--layers", "1", "--layer", "0"], "no layer 0 on this page: it has layers 1"),
        (["--head", "-1"], "no head -1 on this page: it has heads 0, 1"),
        (["--steps", "3"], "no checkpoint at step 3; the run has 2, 4"),
        (["-o", "no/such/page.html"], "cannot write no/such/page.html: No such file or directory"),
        (["--compare", "nothing"], "nothing"),
        (["--text", ""], "empty"),
    ],
)
def test_wrong_options_are_one_line(cli: Cli, arguments: list[Any], problem: str) -> None:
    assert problem in cli("inspect", "verse", *arguments).error


def test_a_huge_page_needs_force(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.html"
    assert "--layers" not in cli("inspect", "-o", page).err
    monkeypatch.setattr("minigpt.cli.inspect.LARGE", 1)
    assert "--layers" in cli("inspect", "-o", page).err
    monkeypatch.setattr("minigpt.cli.inspect.MAX_SIZE", 1)
    page.unlink()
    assert "--force" in cli("inspect", "-o", page).error
    assert not page.exists()
    assert cli("inspect", "-o", page, "--force").code == 0
    assert page.exists()


def test_many_checkpoints_are_thinned_out() -> None:
    assert _spread([4]) == [4]
    assert _spread(list(range(20))) == list(range(20))
    some = _spread(list(range(0, 1000, 10)))
    assert (len(some), some[0], some[-1]) == (20, 0, 990)
