"""The chapters of the course in a real browser, as the site shows them: from files, without a network."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import HANG

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "docs/course").glob("[0-9][0-9]-*.md"))
Show = Callable[..., None]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the documentation. A warning fails."""
    if sys.version_info < (3, 11):
        pytest.skip("needs Python 3.11")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "--site-dir", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture
def tab(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Return a tab without a network, whose pages must have no errors. A parameter has options of its context."""
    context = browser.new_context(offline=True, **getattr(request, "param", {}))
    tab, errors = context.new_page(), []
    tab.on("pageerror", lambda error: errors.append(str(error.stack)))
    tab.errors = errors
    yield tab
    context.close()
    assert errors == []


@pytest.fixture
def show(tab: Any, site: Path) -> Show:
    """Return a function that shows a chapter in the tab, and waits for an element."""

    def show(chapter: Path, wait: str = "figure.course[data-ready] .drawing > *") -> None:
        tab.goto((site / "course" / f"{chapter.stem}.html").as_uri())
        tab.wait_for_selector(wait)

    return show


TOO_SMALL = """[...document.querySelectorAll("figure.course :is(text, td, th, label, .letters, .legend)")].filter(
  (element) => {
    const svg = element.closest("svg");
    const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    const [box, around] = [element, svg ?? element].map((drawn) => drawn.getBoundingClientRect());
    const isCut = box.left < around.left - 1 || box.right > around.right + 1;
    return isCut || scale * parseFloat(getComputedStyle(element).fontSize) < 12;
  },
).map((element) => element.textContent)"""
"""Text of figures that is smaller than 12 pixels or cut off."""


WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 900}


@pytest.mark.parametrize(
    "tab", [{"viewport": WIDE}, {"viewport": NARROW, "color_scheme": "dark"}], indirect=True, ids=["wide", "narrow"]
)
def test_chapters_fit_and_draw_their_figures(tab: Any, show: Show) -> None:
    for chapter in CHAPTERS:
        show(chapter)
        assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, chapter.name
        assert tab.locator("figure.course .control :is(select, input)").count() >= 1, chapter.name
        assert not tab.locator(".predict details").first.evaluate("element => element.open"), chapter.name
        assert tab.evaluate(TOO_SMALL) == [], chapter.name
        box, right = prediction(tab)
        assert [option(box, letter).count() for letter in "abc"] == [1, 1, 1], chapter.name
        assert option(box, right).get_attribute("aria-pressed") == "false", chapter.name
        assert box.get_by_role("status").inner_text() == "", chapter.name


CHANGE = """(value) => {
  const input = document.querySelector("figure.course :is(input, select)");
  if (input.type === "checkbox") return input.click();
  if (input.tagName === "SELECT") input.selectedIndex = value;
  else input.value = value;
  input.dispatchEvent(new Event(input.tagName === "SELECT" ? "change" : "input"));
}"""


def test_controls_change_the_figures(tab: Any, show: Show) -> None:
    for number, value in ((1, 1), (2, 0), (3, 9), (4, 8), (5, 0), (6, 1), (7, 0), (8, 1), (10, 2), (11, 1)):
        show(CHAPTERS[number - 1])
        before = tab.inner_text("figure.course .drawing")
        tab.evaluate(CHANGE, value)
        after = tab.inner_text("figure.course .drawing")
        assert before != after, number
        assert number != 2 or ("–" in before, "–" in after) == (True, False)


def prediction(tab: Any) -> tuple[Any, str]:
    """Return the prediction of the chapter in the tab, and the letter of the right option."""
    box = tab.locator(".predict")
    answer = box.locator("details p").first.evaluate("element => element.textContent")
    return box, str(re.match(r"\(([abc])\)", answer)[1])  # type: ignore[index]


def option(box: Any, letter: str) -> Any:
    return box.get_by_role("button", name=f"({letter})", exact=False)


def test_a_prediction_is_marked_locked_and_kept(tab: Any, show: Show) -> None:
    show(CHAPTERS[0])
    box, right = prediction(tab)
    status, wrong = box.get_by_role("status"), "b" if right == "a" else "a"
    option(box, wrong).click()
    assert "✗ wrong" in option(box, wrong).inner_text()
    assert "✓ the answer" in option(box, right).inner_text()
    assert box.locator("details").evaluate("element => element.open")
    assert status.inner_text() == "Wrong. 0 of 1 so far"

    option(box, right).click(force=True)
    assert [option(box, letter).get_attribute("aria-pressed") for letter in (wrong, right)] == ["true", "false"]
    assert option(box, right).get_attribute("aria-disabled") == "true"
    assert status.inner_text() == "Wrong. 0 of 1 so far"

    show(CHAPTERS[3])
    box, right_there = prediction(tab)
    assert status.inner_text() == "0 of 1 so far"
    option(box, right_there).click()
    assert "✓ right" in option(box, right_there).inner_text()
    assert status.inner_text() == "Right. 1 of 2 so far"

    show(CHAPTERS[0])
    assert option(box, wrong).get_attribute("aria-pressed") == "true"
    assert "✓ the answer" in option(box, right).inner_text()
    assert status.inner_text() == "1 of 2 so far"
    box.get_by_role("button", name="Start again").click()
    option(box, right).and_(tab.locator("[aria-pressed=false]")).wait_for()
    assert status.inner_text() == ""


def test_a_prediction_needs_no_mouse_and_no_storage(tab: Any, show: Show) -> None:
    tab.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } })"
    )
    show(CHAPTERS[0])
    box, right = prediction(tab)
    option(box, "a").focus()
    for _ in range("abc".index(right)):
        tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    assert box.get_by_role("status").inner_text() == "Right. 1 of 1 so far"
    assert option(box, right).evaluate("element => element === document.activeElement")
    tab.errors[:] = [error for error in tab.errors if "figures.js" in error]  # Material needs the storage


@pytest.mark.parametrize("tab", [{"java_script_enabled": False}], indirect=True, ids=["off"])
def test_without_javascript_each_figure_is_a_picture(tab: Any, show: Show) -> None:
    for chapter in CHAPTERS:
        show(chapter, wait="figure.course img")
        pictures = tab.locator("figure.course img, a[href*='#only='] img")
        assert pictures.count() == 1 + len(panels(chapter)), chapter.name
        assert tab.locator(".predict > p").count() >= 4, chapter.name
        assert tab.locator(".predict button, iframe").count() == 0, chapter.name
        for picture in pictures.all():
            picture.scroll_into_view_if_needed()
            box = picture.bounding_box()
            assert (box["width"] > 400, box["height"] > 90) == (True, True), chapter.name
            assert picture.get_attribute("alt"), chapter.name


SHOWN = re.compile(r"([\d.]+%)<!--live:(\w+)-->")
TILE = ".tile:has-text('{}')"
A, STRIP = (".bars li:has(b:text-is('A')) .value", "(.*)"), (".peek .chance:has-text('A')", "A (.*)")
NAME, PRONOUN = ((TILE.format(head), r"→ ([\d.]+%)") for head in ("2·3", "1·0"))
MEASURED: dict[int, dict[str, tuple[str, str]]] = {
    1: {"A": A},
    4: {"A": A, "hot": A},
    5: {"name": (".notice .note", r"^Here, head 2·3 attends most to “A” of Anna: (\d+%)\.$")},
    7: {"A": STRIP, "name": NAME, "pronoun": PRONOUN},
    11: {"A": STRIP, "name": NAME},
    12: {"A": A, "cut": A},
}
"""How to find the numbers of the live model in each chapter, by the names in their comments, such as <!--live:A-->:
an element, and a pattern in its text."""


def panels(chapter: Path) -> list[str]:
    return re.findall(r'href="../live.html#only=([\w,]+)"', chapter.read_text(encoding="utf-8"))


def change(frame: Any, name: str) -> None:
    """Change what a number with this name needs."""
    if name == "hot":
        frame.locator("#temperature").fill("2")
    elif name == "cut":
        text = frame.locator("#text")
        text.fill(text.input_value().partition("\n")[2])


def wait_for(frame: Any, selector: str, pattern: str, claimed: str) -> None:
    """Wait until an element shows a number: the model may still compute."""
    end, element = time.monotonic() + HANG, frame.locator(selector).first
    while (found := re.findall(pattern, " ".join(element.inner_text().split()))[:1]) != [claimed]:
        assert time.monotonic() < end, (found, claimed)
        frame.page.wait_for_timeout(50)


@pytest.mark.parametrize("tab", [{"viewport": WIDE}], indirect=True, ids=["wide"])
def test_chapters_say_what_the_live_model_shows(tab: Any, show: Show) -> None:
    for number, chapter in enumerate(CHAPTERS, 1):
        claimed = {name: share for share, name in SHOWN.findall(chapter.read_text(encoding="utf-8"))}
        assert set(claimed) == set(MEASURED.get(number, {})), chapter.name
        live = panels(chapter)
        assert bool(live) == (number in MEASURED), chapter.name
        show(chapter)
        assert tab.locator("figure.course img, a[href*='#only=']").count() == 0, chapter.name
        for place, element in enumerate(tab.locator("iframe.live").all(), 1):
            assert (element.get_attribute("loading"), bool(element.get_attribute("title"))) == ("lazy", True)
            element.scroll_into_view_if_needed()
            frame = element.element_handle().content_frame()
            frame.wait_for_selector(".ghost, .bars .value, .looks:has-text('%')")
            wait_for(frame, "footer", "minigpt's logits", "minigpt's logits")  # at the end: every model was checked
            frame.wait_for_function("Math.abs(innerHeight - document.body.offsetHeight) < 4")  # as its page asks for
            if place < len(live):  # the film of chapter 11 comes before its heads
                continue
            for name, (selector, pattern) in MEASURED[number].items():
                change(frame, name)
                wait_for(frame, selector, pattern, claimed[name])
            if number == 1:
                for letter in "Anna":
                    wait_for(frame, ".bars li b", "(.*)", letter)
                    frame.locator(".bars li button").first.click()
            if number == 7:
                wait_for(frame, TILE.format("2·3") + " .looks", "“A” of Anna 91%", "“A” of Anna 91%")
                wait_for(frame, TILE.format("1·0") + " .looks", "“h” of She", "“h” of She")
            if number == 11:
                frame.locator(TILE.format("2·3") + " .switch").click()
                frame.locator(".ghost", has_text="E").wait_for()
