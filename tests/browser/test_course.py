"""The chapters of the course in a real browser, as the site shows them: from files, without a network."""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import HANG

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "docs/course").glob("[0-9][0-9]-*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.version_info < (3, 11):
        pytest.skip("needs Python 3.11")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "--site-dir", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return folder


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
        assert tab.evaluate(TOO_SMALL) == [], chapter.name
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
    for number, position in ((5, 0), (6, 1)):
        before, after = figure(number, set_value.format("input", position) + event.format("input", "input"))
        assert before != after, number
    for number in (1, 7, 8):
        index = "{ const select = document.querySelector('figure.course select'); select.selectedIndex ^= 1; }"
        before, after = figure(number, index + event.format("select", "change"))
        assert before != after, number
    context.close()


def prediction(tab: Any, site: Path, chapter: Path) -> tuple[Any, str]:
    """Open a chapter. Return its prediction, and the letter of the right option."""
    tab.goto((site / "course" / f"{chapter.stem}.html").as_uri())
    box = tab.locator(".predict")
    answer = box.locator("details p").first.evaluate("element => element.textContent")
    found = re.match(r"\(([abc])\)", answer)
    assert found, (chapter.name, answer)
    return box, found[1]


def option(box: Any, letter: str) -> Any:
    return box.get_by_role("button", name=f"({letter})", exact=False)


def test_each_chapter_has_a_prediction_of_three_options(browser: Any, site: Path) -> None:
    context = browser.new_context(offline=True)
    tab = context.new_page()
    for chapter in CHAPTERS:
        box, right = prediction(tab, site, chapter)
        assert [option(box, letter).count() for letter in "abc"] == [1, 1, 1], chapter.name
        assert option(box, right).get_attribute("aria-pressed") == "false", chapter.name
        assert box.get_by_role("status").inner_text() == "", chapter.name
    context.close()


def test_a_prediction_is_marked_locked_and_kept(browser: Any, site: Path) -> None:
    context = browser.new_context(offline=True)
    tab, first, second = context.new_page(), CHAPTERS[0], CHAPTERS[3]
    box, right = prediction(tab, site, first)
    wrong = next(letter for letter in "abc" if letter != right)
    option(box, wrong).click()
    assert "✗ wrong" in option(box, wrong).inner_text()
    assert "✓ the answer" in option(box, right).inner_text()
    assert box.locator("details").evaluate("element => element.open")
    status = box.get_by_role("status")
    assert status.inner_text() == "Wrong. 0 of 1 so far"

    option(box, right).click(force=True)
    assert [option(box, letter).get_attribute("aria-pressed") for letter in (wrong, right)] == ["true", "false"]
    assert option(box, right).get_attribute("aria-disabled") == "true"
    assert status.inner_text() == "Wrong. 0 of 1 so far"

    box, right = prediction(tab, site, second)
    assert box.get_by_role("status").inner_text() == "0 of 1 so far"
    option(box, right).click()
    assert "✓ right" in option(box, right).inner_text()
    assert box.get_by_role("status").inner_text() == "Right. 1 of 2 so far"

    box, right = prediction(tab, site, first)
    assert option(box, wrong).get_attribute("aria-pressed") == "true"
    assert "✓ the answer" in option(box, right).inner_text()
    assert box.get_by_role("status").inner_text() == "1 of 2 so far"
    box.get_by_role("button", name="Start again").click()
    option(box, right).and_(tab.locator("[aria-pressed=false]")).wait_for()
    assert box.get_by_role("status").inner_text() == ""
    context.close()


def test_a_prediction_needs_no_mouse_and_no_storage(browser: Any, site: Path) -> None:
    context = browser.new_context(offline=True)
    context.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } })"
    )
    tab, errors = context.new_page(), []
    tab.on("pageerror", lambda error: errors.append(str(error.stack)))
    box, right = prediction(tab, site, CHAPTERS[0])
    option(box, "a").focus()
    for _ in range("abc".index(right)):
        tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    assert box.get_by_role("status").inner_text() == "Right. 1 of 1 so far"
    assert option(box, right).evaluate("element => element === document.activeElement")
    assert not any("figures.js" in error for error in errors)  # Material itself needs the storage for its palette
    context.close()


def test_without_javascript_each_figure_is_a_picture(browser: Any, site: Path) -> None:
    context = browser.new_context(offline=True, java_script_enabled=False)
    tab = context.new_page()
    for chapter in CHAPTERS:
        tab.goto((site / "course" / f"{chapter.stem}.html").as_uri())
        pictures = tab.locator("figure.course img, a[href*='#only='] img")
        live = len(panels(chapter))
        assert pictures.count() == 1 + live, chapter.name
        assert tab.locator(".predict > p").count() >= 4, chapter.name
        assert tab.locator(".predict button").count() == 0, chapter.name
        assert tab.locator("iframe").count() == 0
        for picture in pictures.all():
            picture.scroll_into_view_if_needed()
            box = picture.bounding_box()
            assert box["width"] > 400, chapter.name
            assert box["height"] > 90, chapter.name
            assert picture.get_attribute("alt"), chapter.name
    context.close()


SHOWN = re.compile(r"([\d.]+%)<!--live:(\w+)-->")


def panels(chapter: Path) -> list[str]:
    return re.findall(r'href="../live.html#only=([\w,]+)"', chapter.read_text(encoding="utf-8"))


def expected(frame: Any, letter: str) -> str:
    row = frame.locator(".bars li", has=frame.locator("b", has_text=re.compile(f"^{letter}$")))
    return str(row.first.locator(".value").inner_text())


def in_strip(frame: Any) -> str:
    return str(frame.locator(".peek .chance", has_text="A").inner_text()).removeprefix("A ")


def looks(frame: Any, head: str) -> str:
    return " ".join(frame.locator(".tile", has_text=head).locator(".looks").inner_text().split())


def warm(frame: Any) -> None:
    slider = frame.locator("#set-temperature")
    assert slider.input_value() == "0.8"
    slider.fill("2")


def without(head: str) -> Callable[[Any], str]:
    def share(frame: Any) -> str:
        tile = frame.locator(".tile", has_text=head)
        tile.locator(".without", has_text="→").wait_for()
        return str(re.search(r"→ ([\d.]+%)", tile.inner_text())[1])  # type: ignore[index]

    return share


def cut_first_line(frame: Any) -> None:
    text = frame.locator("#text")
    text.fill(text.input_value().partition("\n")[2])


def share_of_name(frame: Any) -> str:
    note = frame.locator(".notice .note").inner_text()
    return str(re.fullmatch(r"Here, head 2·2 attends most to “A” of Anna: (\d+%)\.", note)[1])  # type: ignore[index]


MEASURED: dict[int, dict[str, Callable[[Any], str]]] = {
    1: {"A": lambda frame: expected(frame, "A")},
    4: {"A": lambda frame: expected(frame, "A"), "hot": lambda frame: expected(frame, "A")},
    5: {"name": share_of_name},
    7: {"A": in_strip, "name": without("2·2"), "pronoun": without("1·0")},
    10: {"A": in_strip, "name": without("2·2")},
    11: {"A": lambda frame: expected(frame, "A"), "cut": lambda frame: expected(frame, "A")},
}
"""How to find the numbers of the live model in each chapter, by the names in their comments, such as <!--live:A-->."""
BEFORE: dict[str, Callable[[Any], None]] = {"hot": warm, "cut": cut_first_line}
"""What to change before a number is read."""


def is_as_high_as_its_content(frame: Any) -> str:
    """Return whether the site has given the frame the height that its page asks for: "True" or "False"."""
    return str(frame.evaluate("Math.abs(innerHeight - document.body.offsetHeight) < 4"))


def wait_for(frame: Any, measure: Callable[[Any], str], claimed: str) -> None:
    end = time.monotonic() + HANG  # the model may still compute
    while (found := measure(frame)) != claimed:
        assert time.monotonic() < end, (found, claimed)
        frame.page.wait_for_timeout(50)


def test_chapters_say_what_the_live_model_shows(browser: Any, site: Path) -> None:
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    tab, errors = context.new_page(), []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    for chapter in CHAPTERS:
        number, page = int(chapter.name[:2]), chapter.read_text(encoding="utf-8")
        claimed = {name: share for share, name in SHOWN.findall(page)}
        assert set(claimed) == set(MEASURED.get(number, {})), chapter.name
        assert bool(panels(chapter)) == (number in MEASURED), chapter.name
        tab.goto((site / "course" / f"{chapter.stem}.html").as_uri())
        tab.wait_for_selector("figure.course[data-ready]")
        assert tab.locator("figure.course img, a[href*='#only=']").count() == 0, chapter.name
        for place, element in enumerate(tab.locator("iframe.live").all(), 1):
            assert (element.get_attribute("loading"), bool(element.get_attribute("title"))) == ("lazy", True)
            element.scroll_into_view_if_needed()
            frame = element.element_handle().content_frame()
            frame.wait_for_selector(".ghost, .bars .value, .looks:has-text('%')")
            frame.wait_for_function("document.querySelector('footer').textContent.includes('same logits')")
            wait_for(frame, is_as_high_as_its_content, "True")
            is_measured = place == len(panels(chapter))  # the film of chapter 10 comes before its heads
            for name, measure in MEASURED[number].items() if is_measured else ():
                if name in BEFORE:
                    BEFORE[name](frame)
                wait_for(frame, measure, claimed[name])
            if number == 1:
                for letter in "Anna":
                    top = frame.locator(".bars li").first
                    wait_for(frame, lambda _, top=top: top.locator("b").inner_text(), letter)
                    top.locator("button").click()
            if number == 7:
                assert "“A” of Anna 93%" in looks(frame, "2·2")
                assert "“h” of She" in looks(frame, "1·0")
            if number == 10 and is_measured:
                frame.locator(".tile", has_text="2·2").locator(".switch").click()
                frame.locator(".ghost", has_text="G").wait_for()
    assert errors == []
    context.close()
