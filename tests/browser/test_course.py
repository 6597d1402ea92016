"""The chapters of the course in a real browser, as the site shows them: from files, without a network."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "docs/course").glob("[0-9][0-9]-*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.version_info < (3, 11):
        pytest.skip("the packages of MkDocs need Python 3.11")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "--site-dir", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_chapters_fit_and_draw_their_figures(browser: Any, site: Path, width: int, scheme: str) -> None:
    context = browser.new_context(offline=True, viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab, errors = context.new_page(), []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    for chapter in CHAPTERS:
        tab.goto((site / "course" / f"{chapter.stem}.html").as_uri())
        tab.wait_for_selector("figure.course[data-ready] .drawing > *")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, chapter.name
        assert tab.locator("figure.course .control :is(select, input)").count() >= 1, chapter.name
        assert not tab.locator(".predict details").first.evaluate("element => element.open"), chapter.name
    assert errors == []
    context.close()


def test_controls_change_the_figures(browser: Any, site: Path) -> None:
    context = browser.new_context(offline=True)
    tab = context.new_page()

    def figure(number: int, change: str) -> tuple[str, str]:
        (chapter,) = (path for path in CHAPTERS if path.name.startswith(f"{number:02}"))
        tab.goto((site / "course" / f"{chapter.stem}.html").as_uri())
        tab.wait_for_selector("figure.course .drawing > *")
        before = tab.inner_text("figure.course .drawing")
        tab.evaluate(change)
        return before, tab.inner_text("figure.course .drawing")

    set_value = "document.querySelector('figure.course {0}').value = {1};"
    event = "document.querySelector('figure.course {0}').dispatchEvent(new Event('{1}'))"
    hidden, shown = figure(2, "document.querySelector('figure.course input').click()")
    assert ("–" in hidden, "–" in shown) == (True, False)
    before, after = figure(3, set_value.format("input", 9) + event.format("input", "input"))
    assert before != after
    before, after = figure(4, set_value.format("input", 8) + event.format("input", "input"))
    assert before != after
    for number in (1, 5, 6, 7, 8):
        index = "document.querySelector('figure.course select').selectedIndex = 1;"
        before, after = figure(number, index + event.format("select", "change"))
        assert before != after, number
    context.close()
