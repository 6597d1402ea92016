"""The film of a run in a real browser: by mouse, keyboard and touch, with the numbers of PyTorch."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from random_models import TEXT, checkpoint, excerpt, recurrent

from minigpt.interpret.extract import ablate_heads
from minigpt.model.load import load_transformer
from minigpt.storage.checkpoint import Checkpoint
from minigpt.storage.metadata import TrainState
from minigpt.viewer.film import Film
from minigpt.viewer.packing_weights import dequantized
from minigpt.viewer.page import Start, build_page

pytestmark = pytest.mark.slow

START, STEPS = TEXT[:40], (0, 20, 100, 400)
Opener = Callable[..., Any]
COMPLETE = """() => document.querySelectorAll('.dot:not(.open)').length === 4
    && !document.querySelector('.stale')
    && [...document.querySelectorAll('.without')].every((line) => !line.textContent.endsWith('…'))"""
STEP = "() => document.querySelector('.strip b').textContent"


def film(**shape: Any) -> list[Checkpoint]:
    shape = {"layers": 2, "heads": 3, "width": 48, "context": 64, **shape}
    return [checkpoint(step=step, seed=seed, **shape) for seed, step in enumerate(STEPS)]


def page_of(moments: list[Checkpoint]) -> str:
    start = Start(at_end=True)
    return build_page(moments[-1], excerpt(moments[-1], START), film=Film(moments), start=start)


@torch.no_grad()
def chances(moment: Checkpoint, text: str, muted: tuple[tuple[int, int], ...] = ()) -> torch.Tensor:
    """Return the probabilities (T, V) that the page's rounded weights give after each letter."""
    model = load_transformer(replace(moment, weights=dequantized(moment.weights)))
    with ablate_heads(model, muted):
        return model(torch.from_numpy(moment.tokenizer.encode(text))[None])[0].softmax(-1)


@pytest.fixture(scope="module")
def moments() -> list[Checkpoint]:
    return film()


@pytest.fixture
def page(moments: list[Checkpoint], opened: Opener) -> Iterator[Any]:
    shown = opened(page_of(moments))
    yield shown
    shown.assert_quiet()


def drag_to(page: Any, moments: list[Checkpoint], index: int) -> None:
    """Press at the last step, and drag the handle to another one."""
    box = page.tab.locator(".plot").bounding_box()
    points = page.ask("() => [...document.querySelectorAll('.dot')].map((dot) => dot.cx.baseVal.value)")
    page.tab.mouse.move(box["x"] + points[-1], box["y"] + 30)
    page.tab.mouse.down()
    page.tab.mouse.move(box["x"] + points[index] + 3, box["y"] + 50, steps=4)
    page.tab.mouse.up()
    page.until(f"() => document.querySelector('.strip b').textContent === 'Step {STEPS[index]} of 400'")


def assert_expects(page: Any, moment: Checkpoint, text: str, muted: tuple[tuple[int, int], ...] = ()) -> None:
    share, token = chances(moment, text, muted)[-1].max(-1)
    letter = moment.tokenizer.decode([int(token)]).translate(str.maketrans({" ": "␣", "\n": "↵"}))
    page.until(f"() => document.querySelector('.bars li b').textContent === {letter!r}")
    pale = "document.querySelector('.bars li .before').style.width"  # at temperature 1
    page.until(f"() => Math.abs(parseFloat({pale}) - {100 * float(share)}) < 0.5")


def test_a_drag_shows_what_each_moment_expects(page: Any, moments: list[Checkpoint]) -> None:
    assert page.ask(STEP) == "Step 400 of 400"
    assert_expects(page, moments[3], START)
    page.ask("() => { document.querySelector('.tile').dataset.kept = 'yes'; }")
    for index in (0, 2, 1):
        drag_to(page, moments, index)
        assert_expects(page, moments[index], START)
    assert page.tab.get_attribute(".tile >> nth=0", "data-kept") == "yes", "tiles stay, so that nothing flickers"


def test_the_curve_is_that_of_the_letter_that_came(page: Any, moments: list[Checkpoint]) -> None:
    page.tab.locator('[data-index="20"]').click(force=True)
    page.draw()
    page.until(COMPLETE)
    expected = [chances(moment, START[:21])[-1, moment.tokenizer.encode(START[21])[0]].item() for moment in moments]
    page.draw()
    heights = page.ask("() => [...document.querySelectorAll('.dot')].map((dot) => dot.cy.baseVal.value)")
    assert heights == pytest.approx([10 + (1 - share) * 32 for share in expected], abs=0.1)


def test_a_drag_soon_after_a_click_loses_nothing(page: Any, moments: list[Checkpoint]) -> None:
    for index in (20, 39):
        page.tab.locator(f'[data-index="{index}"]').click(force=True)
        for moment in (1, 3):
            drag_to(page, moments, moment)
        page.until(COMPLETE)
        assert_expects(page, moments[3], START[: index + 1])


def test_the_strip_keeps_its_height_and_its_curve(page: Any) -> None:
    page.until(COMPLETE)
    page.ask(
        """() => {
            window.seen = new Set();
            const look = () => {
                const { height } = document.querySelector('.strip').getBoundingClientRect();
                seen.add(`${height} ${document.querySelectorAll('.dot:not(.open)').length}`);
                requestAnimationFrame(look);
            };
            look();
        }"""
    )
    page.tab.locator('[data-index="20"]').click(force=True)
    page.tab.click("button:text-is('Write')")
    page.until("() => document.querySelector('#text').value.length > 30 && document.querySelector('.plot .stale')")
    page.tab.click("button:text-is('Pause')")
    page.until(COMPLETE)
    assert page.ask("() => seen.size") == 1


@pytest.fixture
def live(opened: Opener) -> Iterator[Any]:
    """A run with lanes, whose head 2·3 finds a name."""
    shown = opened((Path(__file__).parents[2] / "docs/live.html").read_text(encoding="utf-8"))
    shown.until("() => document.querySelector('.strip .event').textContent.includes('head 2·3 finds')")
    yield shown
    shown.assert_quiet()


def test_the_event_goes_to_its_moment_and_says_what_the_model_wrote(live: Any) -> None:
    event = live.tab.locator(".strip .event")
    live.until("() => document.querySelector('.strip .event').textContent.includes('Before: ')")
    said = event.inner_text()
    step = re.fullmatch(r"Step ([\d,]+): head 2·3 finds “A” of Anna\. Before: “\w+”, now: “Anna”\.", said)
    assert step
    event.click()
    live.until(f"() => document.querySelector('.strip b').textContent.startsWith('Step {step[1]} of')")
    assert live.tab.get_attribute(".plot input", "aria-valuetext").endswith(f". {said}")
    assert event.inner_text() == said
    live.press("Escape", ".", ".", ".")  # the last moment
    live.tab.click(".tile .choose >> nth=4")
    live.until("() => document.querySelector('.turn')?.textContent.startsWith('Without it, head 2·3 looks at “J”')")
    live.tab.click(".tile .choose >> nth=11")
    live.until("() => document.querySelector('.turn').textContent.startsWith('Without head 1·0, it looks at “J”')")


def test_a_lane_that_is_drawn_again_while_it_is_pressed_is_clicked(live: Any) -> None:
    box = live.tab.locator(".name", has_text="1·0").bounding_box()
    live.tab.mouse.move(box["x"] + 5, box["y"] + 5)
    live.tab.mouse.down()
    live.ask("() => dispatchEvent(new Event('resize'))")
    live.draw()
    live.tab.mouse.up()
    live.until("() => document.querySelector('.tile.chosen').textContent.startsWith('1·0')")


def test_a_phone_shows_the_likeliest_letter_wherever_it_scrolls(moments: list[Checkpoint], opened: Opener) -> None:
    page = opened(page_of(moments), viewport={"width": 390, "height": 844})
    page.until(COMPLETE)
    best = "!document.querySelector('.peek').hidden"
    assert not page.ask(f"() => {best}")
    page.ask("() => scrollBy(0, document.querySelector('.bars li').getBoundingClientRect().top - 30)")
    page.until(f"() => {best}")
    page.ask("() => scrollTo(0, 0)")
    page.until(f"() => !{best}")
    page.assert_quiet()


def test_keys_go_through_the_film(page: Any, moments: list[Checkpoint]) -> None:
    page.press("Escape", ",")
    assert_expects(page, moments[2], START)
    page.press(",", ",", ",")
    page.until(f"() => ({STEP})() === 'Step 0 of 400'")
    page.press(".")
    page.until(f"() => ({STEP})() === 'Step 20 of 400'")
    page.tab.focus(".plot input")
    page.press("End")
    page.until(f"() => ({STEP})() === 'Step 400 of 400'")
    drag_to(page, moments, 2)
    page.press(",")
    page.until(f"() => ({STEP})() === 'Step 20 of 400'")
    page.press("Home", "ArrowRight")
    page.until(f"() => ({STEP})() === 'Step 20 of 400'")
    value = page.tab.get_attribute(".plot input", "aria-valuetext")
    assert value.startswith("Step 20 of 400")
    assert "chance of" in value


def test_it_plays_once_and_pauses(moments: list[Checkpoint], opened: Opener) -> None:
    script = """
        window.seen = []; window.stop = ''; window.timers = new Set();
        const [start, end] = [setInterval, clearInterval];
        window.setInterval = (call, time) => { const id = start(call, time / 4); timers.add(id); return id; };
        window.clearInterval = (id) => { end(id); timers.delete(id); };
    """
    page = opened(page_of(moments), script=script)
    page.ask(
        """() => new MutationObserver(() => {
            seen.push(document.querySelector('.strip b').textContent);
            if (seen.at(-1) === window.stop) document.querySelector('.play').click();
        }).observe(document.querySelector('.strip b'), {childList: true, subtree: true})"""
    )
    page.tab.click(".play")
    page.until("() => document.querySelector('.play').textContent === '▶' && seen.length === 4")
    assert page.ask("() => seen") == [f"Step {step} of 400" for step in STEPS]
    page.ask("() => { window.stop = 'Step 20 of 400'; }")
    page.tab.click(".play")
    page.until("() => document.querySelector('.play').textContent === '▶' && seen.length >= 6")
    assert page.ask(STEP) == "Step 20 of 400"
    assert page.ask("() => timers.size") == 0
    page.assert_quiet()


def test_the_film_waits_for_answers_and_stops_when_nobody_sees_it(moments: list[Checkpoint], opened: Opener) -> None:
    script = """
        window.held = []; window.isHeld = false;
        window.Worker = class extends Worker {
            set onmessage(use) { super.onmessage = use && ((event) => isHeld ? held.push([use, event]) : use(event)); }
        };
        window.release = () => { isHeld = false; for (const [use, event] of held.splice(0)) use(event); };
        window.setInterval = (call) => { window.tick = call; return 1; };
    """
    page = opened(page_of(moments), script=script)
    page.until(COMPLETE)
    page.ask("() => { isHeld = true; }")
    page.tab.locator('[data-index="20"]').click(force=True)
    page.tab.click(".play")
    page.ask("() => { for (let i = 0; i < 5; i++) tick(); }")
    page.draw()
    assert page.ask(STEP) == "Step 0 of 400"
    page.ask("() => release()")
    page.until(COMPLETE)
    page.ask("() => tick()")
    page.until(f"() => ({STEP})() === 'Step 20 of 400'")
    page.ask("() => { Object.defineProperty(document, 'hidden', { value: true }); tick(); }")
    page.until("() => document.querySelector('.play').textContent === '▶'")
    page.assert_quiet()


def test_focus_is_never_behind_the_strip(page: Any) -> None:
    page.until(COMPLETE)
    page.tab.focus("#text")
    hidden = """() => {
        const at = document.activeElement, strip = document.querySelector('.strip');
        const [box, cover] = [at, strip].map((one) => one.getBoundingClientRect());
        return !strip.contains(at) && box.bottom > cover.top && box.top < cover.bottom;
    }"""
    seen = set()
    for _ in range(30):
        page.press("Tab")
        page.draw()
        name = page.ask("() => document.activeElement.className")
        if page.ask("() => document.activeElement === document.body"):  # behind the last one
            break
        assert not page.ask(hidden), name
        seen.add(name)
    assert {"choose", "play", "pin"} <= seen


@pytest.mark.parametrize(("fragment", "height", "has_lanes"), [("", 900, 1), ("", 650, 0), ("#only=film", 300, 1)])
def test_lanes_are_left_out_only_in_a_low_window(
    moments: list[Checkpoint], opened: Opener, fragment: str, height: int, has_lanes: int
) -> None:
    size = {"width": 1280, "height": height}
    page = opened(page_of(moments), wait=".strip", fragment=fragment, viewport=size)
    page.until("() => document.querySelectorAll('.dot:not(.open)').length === 4")
    assert page.tab.locator(".lanes:visible").count() == has_lanes
    assert page.ask("() => document.querySelector('.plot svg').height.baseVal.value") == (118 if has_lanes else 68)
    page.assert_quiet()


def test_a_finger_that_scrolls_over_the_strip_moves_nothing(page: Any) -> None:
    page.until(COMPLETE)
    touch = """(events) => {
        const plot = document.querySelector('.plot'), { left, top } = plot.getBoundingClientRect();
        plot.setPointerCapture = () => {}; // the pointer is made up
        for (const [type, x, y] of events) {
            const at = { clientX: left + x, clientY: top + y, pointerType: 'touch', pointerId: 7, bubbles: true };
            plot.dispatchEvent(new PointerEvent(type, at));
        }
    }"""
    page.ask(touch, [["pointerdown", 400, 40], ["pointermove", 403, 20], ["pointercancel", 403, 20]])
    page.ask(touch, [["pointermove", 200, 20]])
    page.draw()
    assert page.ask(STEP) == "Step 400 of 400"
    page.ask(touch, [["pointerdown", 1000, 40], ["pointermove", 300, 40], ["pointerup", 140, 40]])
    page.until(f"() => ({STEP})() === 'Step 0 of 400'")


def test_what_the_visitor_set_stays_while_time_moves(page: Any, moments: list[Checkpoint]) -> None:
    page.tab.click("[role=switch][aria-label='Head 1·2']")
    page.tab.click(".tile button.choose >> nth=3")
    assert_expects(page, moments[3], START, ((1, 2),))
    drag_to(page, moments, 1)
    assert_expects(page, moments[1], START, ((1, 2),))
    assert page.tab.get_attribute(".tile button.choose >> nth=3", "aria-pressed") == "true"
    page.tab.focus("#text")
    page.press("Control+End")
    page.tab.keyboard.type("hear me")  # while the moments compute
    assert_expects(page, moments[1], START + "hear me", ((1, 2),))
    drag_to(page, moments, 0)
    assert_expects(page, moments[0], START + "hear me", ((1, 2),))


def test_a_pinned_moment_outlines_the_bars(page: Any, moments: list[Checkpoint]) -> None:
    drag_to(page, moments, 1)
    page.tab.click(".pin")
    drag_to(page, moments, 3)
    ghost = "() => document.querySelector('.plot .ghost').getAttribute('visibility')"
    assert page.ask(ghost) == "visible"
    page.until("() => document.querySelector('.next .note').textContent.includes('Outlined: made, step 20')")
    page.tab.click(".pin")
    page.until(f"() => ({ghost})() === 'hidden'")


def test_the_model_writes_on_in_gray(page: Any, moments: list[Checkpoint]) -> None:
    """The most likely letters, as far as they fit into the context of 64."""
    text = START
    while len(text) < 64:
        text += moments[3].tokenizer.decode([int(chances(moments[3], text)[-1].argmax())])
    line = text[len(START) :].split("\n")[0]
    page.until(f"() => document.querySelector('.written').textContent === {line[1:25]!r}")


@pytest.mark.parametrize("kind", ["one moment", "recurrent", "bytes"])
def test_other_models(opened: Opener, kind: str) -> None:
    if kind == "one moment":
        loaded = checkpoint()
        page = opened(build_page(loaded, excerpt(loaded), film=Film([loaded])))
        assert page.tab.locator(".strip").count() == 0
        return page.assert_quiet()
    made = recurrent() if kind == "recurrent" else checkpoint(byte=True)
    states = [made.metadata.model_copy(update={"state": TrainState(step=step)}) for step in STEPS]
    moments = [replace(made, metadata=metadata) for metadata in states]
    page = opened(
        build_page(moments[-1], excerpt(made, "Spéak, speak" if kind == "bytes" else START), film=Film(moments))
    )
    page.until("() => document.querySelectorAll('.dot:not(.open)').length === 4")
    page.press("Escape", ",")
    page.until(f"() => ({STEP})() === 'Step 100 of 400'")
    assert (page.tab.locator(".lane").count() == 0) == (kind == "recurrent" or page.tab.locator(".name").count() == 0)
    page.assert_quiet()
    return None


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_film_is_accessible_and_fits(moments: list[Checkpoint], opened: Opener, scheme: str, width: int) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = opened(page_of(moments), viewport={"width": width, "height": 844}, color_scheme=scheme, bypass_csp=True)
    page.until("() => document.querySelectorAll('.dot:not(.open)').length === 4")
    found = Axe().run(page.tab).response["violations"]
    assert [violation["id"] for violation in found if violation["impact"] in ("serious", "critical")] == []
    assert page.ask("() => document.documentElement.scrollWidth") <= width
    assert page.ask("() => document.querySelector('.strip').getBoundingClientRect().height") < 190
    for selector in (".play", ".plot"):
        assert page.tab.locator(selector).bounding_box()["height"] >= 44
