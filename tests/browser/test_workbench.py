"""The workbench in a real browser: offline, without errors, by mouse, keyboard and touch, with the right numbers."""

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from random_models import TEXT, checkpoint, excerpt, recurrent

from minigpt.interpret.extract import ablate_heads, extract
from minigpt.model.gpt import GPT
from minigpt.model.load import load_transformer
from minigpt.sampling.generate import window_start
from minigpt.storage.checkpoint import Checkpoint
from minigpt.viewer.packing_weights import dequantized
from minigpt.viewer.page import Start, build_page

pytestmark = pytest.mark.slow

START = TEXT[:60]
SERIOUS = ("serious", "critical")
Opener = Callable[..., Any]


@dataclass(frozen=True)
class Made:
    loaded: Checkpoint
    model: GPT
    content: str

    @torch.no_grad()
    def next(self, text: str, muted: tuple[tuple[int, int], ...] = ()) -> tuple[str, float]:
        """Return the most likely next letter after `text`, and its probability."""
        start = window_start(len(text), 0, self.loaded.config.model.context)
        ids = self.loaded.tokenizer.encode(text[start:])
        with ablate_heads(self.model, muted):
            share, token = self.model(torch.from_numpy(ids)[None])[0, -1].softmax(-1).max(-1)
        return self.loaded.tokenizer.decode([int(token)]), float(share)


@pytest.fixture(scope="module")
def made() -> Made:
    """A page of two models. The weights are rounded before, so that its numbers are those of PyTorch.

    Its temperature is 1.
    """
    loaded = checkpoint(layers=2, heads=3, width=48, context=64)
    sample = loaded.config.sample.model_copy(update={"temperature": 1.0})
    config = loaded.config.model_copy(update={"sample": sample})
    loaded = replace(loaded, config=config, weights=dequantized(loaded.weights))
    others = [checkpoint(layers=3, heads=2, context=64, seed=3, name="other")]
    content = build_page(loaded, excerpt(loaded, START), others=others, start=Start(at_end=True))
    return Made(loaded, load_transformer(loaded), content)


@pytest.fixture
def page(made: Made, opened: Opener) -> Iterator[Any]:
    shown = opened(made.content)
    yield shown
    shown.assert_quiet()


def bar(page: Any, number: int = 1) -> tuple[str, str]:
    """Return the letter and the percentage of a bar."""
    text = page.tab.inner_text(f".bars li:nth-child({number}) button").split("\n")
    return text[0], text[1]


def text(page: Any) -> str:
    return str(page.tab.input_value("#text"))


def settle(page: Any) -> None:
    """Wait until all effects of heads are known."""
    page.draw()
    page.until(
        "() => [...document.querySelectorAll('.without')].every((line) => /[^:…]$/.test(line.textContent.trim()))"
    )


GLYPHS = str.maketrans({" ": "␣", "\n": "↵"})


def assert_shows(page: Any, made: Made, prefix: str, muted: tuple[tuple[int, int], ...] = ()) -> None:
    """Check that the page expects what PyTorch expects after `prefix`."""
    letter, share = made.next(prefix, muted)
    page.until(f"() => document.querySelector('.bars li b').textContent === {letter.translate(GLYPHS)!r}")
    shown = "parseFloat(document.querySelector('.bars li .value').textContent)"
    page.until(f"() => Math.abs({shown} - {100 * share}) < {0.51 if share > 0.094 else 0.06}")


def test_the_page_computes_what_pytorch_computes(page: Any, made: Made) -> None:
    assert text(page) == START
    assert_shows(page, made, START)
    page.until("() => document.querySelector('.check').textContent.includes(`✓ all 2 models give minigpt's logits`)")


def test_every_model_is_checked(made: Made, opened: Opener) -> None:
    other = checkpoint(layers=1, heads=2, context=64, seed=4, name="other")
    content = build_page(made.loaded, excerpt(made.loaded, START), others=[other])
    _first, second = re.findall(r'"logits":\[(.*?)\]', content)
    page = opened(content.replace(second, ",".join(["0"] * len(second.split(",")))))
    page.until("() => document.querySelector('.check').textContent.includes('✗ other')")
    page.assert_quiet()


def test_a_click_on_a_letter_selects_it(page: Any, made: Made) -> None:
    page.tab.locator('[data-index="20"]').click(force=True)
    assert_shows(page, made, START[:21])
    marked = page.tab.locator(".bars li.came")
    assert marked.count() == 1
    assert marked.locator("b").inner_text() == START[21].translate(GLYPHS)


def test_typing_changes_the_prediction_and_undo_restores_it(page: Any, made: Made) -> None:
    page.tab.focus("#text")
    page.press("Control+End")
    page.tab.keyboard.type("hear me")
    assert_shows(page, made, START + "hear me")
    page.tab.keyboard.type("é")
    page.until("() => document.querySelector('.text .message').textContent.includes('never seen “é”')")
    assert text(page) == START + "hear me"
    page.tab.click("button:text-is('Undo')")
    assert_shows(page, made, START)


def test_the_page_starts_again(page: Any) -> None:
    def wait_for(expected: str) -> None:
        page.until(f"() => document.querySelector('#text').value === {expected!r}")

    page.tab.focus("#text")
    page.press("Control+End")
    page.tab.keyboard.type("one")
    page.press("Control+z")
    wait_for(START)
    page.tab.keyboard.type("two")
    page.tab.click(".tile .switch >> nth=4")
    page.tab.select_option("text=shade by >> select", "nothing")
    page.tab.click("button:text-is('Start again')")
    wait_for(START)
    page.until("() => document.querySelectorAll('.tile.muted').length === 0")
    assert page.tab.input_value("text=shade by >> select") == "head"
    page.tab.click("button:text-is('Undo')")
    wait_for(START + "two")


def test_the_command_for_the_text_is_copied(made: Made, opened: Opener) -> None:
    script = (
        "Object.defineProperty(navigator, 'clipboard', { value: { writeText: async (t) => { window.copied = t; } } })"
    )
    shown = opened(made.content.replace("Before we", "Befor' we"), script=script)
    shown.tab.click("button:text-is('Copy the minigpt command that continues this text')")
    shown.until("() => window.copied")
    command = shlex.split(shown.ask("() => window.copied"))
    assert command == [
        "minigpt",
        "sample",
        "made@100",
        "--temperature",
        "0",
        "--prompt",
        START.replace("Before we", "Befor' we"),
    ]


def test_a_click_below_the_text_types_at_its_end(page: Any) -> None:
    page.tab.locator('[data-index="5"]').click(force=True)
    box = page.tab.locator(".paper").bounding_box()
    page.tab.mouse.click(box["x"] + 300, box["y"] + box["height"] - 10)
    page.tab.keyboard.type("see")
    page.until(f"() => document.querySelector('#text').value === {START + 'see'!r}")
    page.tab.locator("h2").first.click()
    page.tab.locator(".lead b").first.click()
    assert page.ask("() => document.activeElement.id") == "text"


def test_replacing_a_selection_is_a_step_of_undo(page: Any) -> None:
    page.tab.focus("#text")
    page.press("Control+End")
    page.tab.keyboard.type("two")
    page.press("Shift+ArrowLeft")
    page.tab.keyboard.type("end")
    for expected in ("two", ""):
        page.tab.click("button:text-is('Undo')")
        page.until(f"() => document.querySelector('#text').value === {START + expected!r}")


def test_carriage_returns_survive_typing(opened: Opener) -> None:
    loaded = checkpoint(byte=True, context=64)
    shown = opened(build_page(loaded, excerpt(loaded, "a\r\nb\rc"), start=Start(at_end=True)))
    shown.tab.focus("#text")
    shown.press("Control+Home", "ArrowRight", "ArrowRight")
    shown.tab.keyboard.type("x")
    drawn = "[...document.querySelectorAll('.drawn [data-index]')].map((letter) => letter.textContent).join('')"
    shown.until(f"() => {drawn} === 'a␍x\\nb␍c'")
    assert text(shown) == "a␍x\nb␍c"
    shown.until("() => document.querySelector('.next h2').textContent === 'Next letter after a␍x'")
    shown.assert_quiet()


def test_a_worker_that_dies_at_the_start_loses_neither_the_check_nor_a_step(made: Made, opened: Opener) -> None:
    """The model in the worker never answers."""
    script = "window.Worker = class { constructor() { window.worker = this; } postMessage() {} terminate() {} }"
    shown = opened(made.content, script=script)
    shown.ask("() => window.worker.onmessage({ data: 'ready' })")
    shown.tab.click("button:text-is('One letter')")
    assert "checking" in shown.tab.inner_text(".check")
    shown.ask("() => window.worker.onerror(new ErrorEvent('error'))")
    shown.until(f"() => document.querySelector('#text').value.length === {len(START) + 1}")
    shown.until("() => document.querySelector('.check').textContent.includes('✓')")
    settle(shown)
    shown.assert_quiet()


def test_notices_stay_and_move_nothing(page: Any) -> None:
    def places() -> list[Any]:
        return [page.tab.locator(name).bounding_box() for name in (".controls .primary", ".heads", ".tile >> nth=4")]

    page.tab.set_viewport_size({"width": 1280, "height": 1200})  # a click need not scroll
    settle(page)
    before = places()
    page.tab.focus("#text")
    page.press("Control+End")
    page.tab.keyboard.type("éa")
    notice = page.tab.locator(".text .message")
    page.until(f"() => document.querySelector('#text').value === {START + 'a'!r}")
    assert "never seen “é”" in notice.inner_text()
    page.tab.keyboard.type("speak " * 60)
    boxes = "['.paper', '.drawn .selected'].map((name) => document.querySelector(name).getBoundingClientRect())"
    page.until(f"() => {{ const [paper, at] = {boxes}; return paper.top < at.top && at.bottom < paper.bottom; }}")
    page.press("ArrowLeft", "ArrowLeft")
    page.until("() => document.querySelector('.next .note').textContent.includes('replaces the rest')")
    page.tab.click(".bars li:nth-child(2) button")
    page.until("() => document.querySelector('.text .message').textContent.includes('Undo brings it back')")
    assert page.tab.locator(".text .message").is_visible()
    page.tab.locator(".tile .switch").nth(4).click()
    settle(page)
    assert page.tab.locator("button:text-is('Switch all on')").is_visible()
    assert places() == before


def test_a_definition_stays_in_the_window(page: Any) -> None:
    page.tab.locator(".next .note .term").hover()
    box = page.tab.locator(".next .note .definition").bounding_box()
    assert 0 <= box["x"] < box["x"] + box["width"] <= 1280


@pytest.mark.parametrize("width", [1280, 390])
def test_text_next_letter_and_twelve_heads_fit_one_screen(opened: Opener, width: int) -> None:
    loaded = checkpoint(layers=3, heads=4, width=48, context=200)
    text = "Before we proceed,\nhear me speak.\n" * 3
    shown = opened(build_page(loaded, excerpt(loaded, text)), viewport={"width": width, "height": 800})
    settle(shown)
    bottom = "(name) => Math.max(...[...document.querySelectorAll(name)].map((e) => e.getBoundingClientRect().bottom))"
    if width == 1280:
        assert shown.ask(bottom, ".tile") <= 900 - 132  # room for a strip of 120 pixels
    assert shown.ask(bottom, ".bars li") <= 800
    assert shown.tab.locator(".bars li:visible").count() == (5 if width == 1280 else 3)


def test_pointing_at_a_tile_shades_the_text_by_its_head(page: Any) -> None:
    settle(page)
    page.tab.select_option("text=shade by >> select", "nothing")
    shades = (
        "() => [...document.querySelectorAll('.paper [data-index]')].map((e) => e.style.getPropertyValue('--share'))"
    )
    page.until(f"() => ({shades})().every((share) => share === '0%')")
    page.tab.locator(".tile canvas").nth(4).hover(position={"x": 2, "y": 5})
    page.until(f"() => ({shades})().some((share) => share !== '0%')")
    assert "head 1·1 attends most" in page.tab.inner_text(".text .note")
    page.tab.mouse.move(5, 5)
    page.until(f"() => ({shades})().every((share) => share === '0%')")


def test_old_numbers_are_dimmed_until_the_new_ones_come(made: Made, opened: Opener) -> None:
    shown = opened(made.content, script="window.Worker = class { postMessage() {} terminate() {} }")
    shown.until("() => document.querySelector('.bars').classList.contains('stale')")
    shown = opened(made.content)
    shown.until("() => !document.querySelector('.stale')")


def test_the_next_letters_stay_in_view(page: Any) -> None:
    settle(page)
    peek = page.tab.locator(".peek")
    assert not peek.is_visible()
    page.tab.set_viewport_size({"width": 1280, "height": 400})
    page.tab.locator(".tile .choose").nth(4).click()
    page.tab.locator("footer").scroll_into_view_if_needed()
    page.until("() => document.querySelectorAll('.peek .chance').length === 3")
    assert peek.bounding_box()["y"] == 0
    assert peek.locator(".chance").first.inner_text() == " ".join(bar(page))


@pytest.mark.parametrize("only", ["text", "next", "heads", "text,heads", "text,next,heads"])
def test_panels_can_be_embedded(made: Made, opened: Opener, only: str) -> None:
    shown = opened(made.content, wait="footer", fragment=f"#only={only}", viewport={"width": 700, "height": 500})
    shown.until("() => document.querySelector('footer').textContent.includes('✓')")
    for name in ("text", "next", "heads"):
        assert shown.tab.locator(f".card.{name}").count() == (name in only.split(","))
    assert shown.tab.locator("header").count() == 0
    assert shown.tab.locator("footer").bounding_box()["height"] < 25
    if only in ("heads", "text,heads"):
        shown.until("() => document.querySelectorAll('.peek .chance').length === 3")
    else:
        assert shown.tab.locator(".peek").count() == 0
    assert shown.ask("() => document.documentElement.scrollWidth") <= 700
    with shown.tab.expect_popup() as popup:
        shown.tab.click("a")
    popup.value.wait_for_selector("header")


def test_it_writes_steps_branches_and_undoes(page: Any, made: Made) -> None:
    settle(page)
    page.tab.click("button:text-is('One letter')")
    page.until(f"() => document.querySelector('#text').value.length === {len(START) + 1}")
    page.tab.click(".controls .primary")
    page.until(f"() => document.querySelector('#text').value.length > {len(START) + 10}")
    page.tab.click(".controls .primary")
    page.until("() => document.querySelector('.controls .primary').textContent === 'Write'")  # the last letter is drawn
    written = text(page)
    assert_shows(page, made, written)
    page.tab.click("button:text-is('Undo')")
    page.until(f"() => document.querySelector('#text').value.length === {len(START) + 1}")  # drawn in the next frame
    assert len(text(page)) == len(START) + 1
    page.tab.locator('[data-index="10"]').click(force=True)
    assert_shows(page, made, START[:11])
    letter, _ = bar(page, 2)
    page.tab.click(".bars li:nth-child(2) button")
    page.until("() => document.querySelector('#text').value.length === 12")
    assert text(page).translate(GLYPHS) == (START[:11].translate(GLYPHS) + letter)


def test_temperature_zero_writes_the_most_likely_letters(page: Any, made: Made) -> None:
    settle(page)
    page.tab.locator("#temperature").fill("0")
    expected = START
    for _ in range(3):
        expected += made.next(expected)[0]
        page.tab.click("button:text-is('One letter')")
        page.until(f"() => document.querySelector('#text').value.length === {len(expected)}")
        assert_next = made.next(expected)[0].translate(GLYPHS)
        page.until(f"() => document.querySelector('.bars li b').textContent === {assert_next!r}")
    assert text(page) == expected


def test_outlined_bars_show_the_whole_model_while_a_head_is_off(page: Any, made: Made) -> None:
    settle(page)
    letter, share = made.next(START)
    page.tab.click(".tile .switch >> nth=3")
    assert_shows(page, made, START, ((1, 0),))
    page.until("() => document.querySelector('.next .note').textContent.includes('Outlined: with all heads on.')")
    row = page.tab.locator(f".bars li:has(b:text-is('{letter.translate(GLYPHS)}'))")
    assert abs(float(row.locator(".other").evaluate("e => parseFloat(e.style.width)")) - 100 * share) < 0.1
    page.tab.click("button:text-is('Switch all on')")
    page.until("() => document.querySelectorAll('.track .other:not([hidden])').length === 0")


def test_the_entropy_follows_the_temperature(page: Any, made: Made) -> None:
    with torch.no_grad():
        logits = made.model(torch.from_numpy(made.loaded.tokenizer.encode(START))[None])[0, -1]
    for temperature in (1.0, 0.5, 2.0):
        page.tab.locator("#temperature").fill(str(temperature))
        nats = float(torch.distributions.Categorical(logits=logits / temperature).entropy())
        page.until(f"() => document.querySelector('.next .note').textContent.includes('Entropy {nats:.2f} nats')")
    page.tab.locator("#temperature").fill("0")
    page.until("() => document.querySelector('.next .note').textContent.includes('0.00 nats')")
    assert "certain" in page.tab.inner_text(".next .note")


def test_a_muted_head_changes_the_prediction_as_in_pytorch(page: Any, made: Made) -> None:
    settle(page)
    tile = page.tab.locator(".tile").nth(4)  # layer 1, head 1
    before = made.next(START)[0]
    with torch.no_grad(), ablate_heads(made.model, [(1, 1)]):
        logits = made.model(torch.from_numpy(made.loaded.tokenizer.encode(START))[None])[0, -1]
    share = float(logits.softmax(-1)[made.loaded.tokenizer.encode(before)[0]])
    shown = tile.locator(".without").inner_text()
    assert "no change" in shown or abs(float(shown.split("→ ")[1].split("%")[0]) - 100 * share) < 0.51
    tile.locator(".switch").click()
    assert_shows(page, made, START, ((1, 1),))
    assert tile.locator(".switch").get_attribute("aria-checked") == "false"
    settle(page)  # the other heads still speak of the letter that the whole model expects
    named = {shown.split()[2] for shown in page.tab.locator(".without").all_inner_texts() if "→" in shown}
    assert named <= {before.translate(GLYPHS)}
    page.tab.click("button:text-is('Switch all on')")
    assert_shows(page, made, START)


@pytest.mark.parametrize("width", [1280, 390])
def test_a_head_names_the_letter_that_wins_without_it(made: Made, opened: Opener, width: int) -> None:
    heads = [(layer, head) for layer in range(2) for head in range(3)]
    changed = ((end, at) for end in range(59, 9, -1) for at in heads if differs(made, START[:end], at))
    end, at = next(changed)
    shown = opened(made.content, viewport={"width": width, "height": 900})
    shown.press(*["ArrowLeft"] * (60 - end))
    assert_shows(shown, made, START[:end])
    settle(shown)
    letter, share = made.next(START[:end], (at,))
    line = shown.tab.locator(".without").nth(heads.index(at))
    found = re.search(r"without it: . [\d.]+% → [\d.]+% now (.) ([\d.]+)%", line.inner_text().replace("\n", " "))
    assert found
    assert found[1] == letter.translate(GLYPHS)
    assert abs(float(found[2]) - 100 * share) < 0.51
    before, after = map(float, re.findall(r"([\d.]+)%", line.inner_text())[:2])
    assert line.locator(".breaks").count() == (abs(before - after) >= 5)
    boxes = [part.bounding_box() for part in line.locator("span").all()]
    switch = shown.tab.locator(".tile .switch").nth(heads.index(at)).bounding_box()
    for box in boxes:
        assert box["height"] < 25  # one line
    assert boxes[-1]["x"] + boxes[-1]["width"] <= switch["x"] + switch["width"] + 10
    height = shown.tab.locator(".tile").nth(heads.index(at)).bounding_box()["height"]
    shown.tab.locator(".tile .switch").nth(heads.index(at)).click()
    assert shown.tab.locator(".tile").nth(heads.index(at)).bounding_box()["height"] == height
    shown.assert_quiet()


def differs(made: Made, prefix: str, head: tuple[int, int]) -> bool:
    """Whether another letter is the most likely one without a head, clearly."""
    (before, share), (after, other) = made.next(prefix), made.next(prefix, (head,))
    return before != after and abs(share - other) > 1e-3


def test_the_keyboard_does_everything(page: Any, made: Made) -> None:
    page.press("ArrowLeft")
    assert_shows(page, made, START[:-1])
    page.press("ArrowRight")
    assert_shows(page, made, START)
    page.press("?")
    assert page.tab.locator("dialog").is_visible()
    page.press("Escape")
    page.until("() => !document.querySelector('dialog')")
    page.tab.focus(".tile .choose >> nth=3")  # one stop for the row of layer 1
    page.press("Enter", "ArrowRight", "Enter")  # its switch
    assert_shows(page, made, START, ((1, 0),))
    page.press("ArrowRight", "Enter", "Tab")
    page.until("() => document.querySelectorAll('.tile')[4].classList.contains('chosen')")
    assert page.ask("() => document.activeElement.textContent") == "Compute this letter"
    page.press("Enter")
    page.until("() => document.querySelectorAll('dialog section').length === 3")
    page.press("Escape")
    page.until("() => !document.querySelector('dialog')")
    page.tab.click(".tile .choose >> nth=3")
    page.tab.click("button:text-is('Compute this letter')")
    page.until("() => document.querySelectorAll('dialog section').length === 3")
    assert "(switched off)" in page.tab.inner_text("dialog h2")
    page.tab.locator("dialog > div").click(position={"x": 5, "y": 5})  # its edge
    assert "is off, so it adds nothing" in page.tab.locator("dialog section").nth(2).inner_text()
    page.press("Escape")
    page.until("() => !document.querySelector('dialog')")
    page.tab.locator("h2").first.click()
    page.press("Escape", " ")
    page.until(f"() => document.querySelector('#text').value.length > {len(START) + 3}")
    page.press(" ")


def test_the_matrix_shows_each_weight_and_selects_a_row(page: Any, made: Made) -> None:
    page.tab.locator(".tile .choose").nth(0).click()
    page.tab.click("button:text-is('At all letters')")
    matrix = page.tab.locator("canvas.matrix")
    size = matrix.bounding_box()["width"] / len(START)
    cell = {"x": 4.5 * size, "y": 30.5 * size}
    matrix.hover(position=cell)
    assert f"“{START[30].translate(GLYPHS)}” at 30" in page.tab.inner_text("dialog .readout")
    marked = "() => ['selected', 'pointed'].map((one) => document.querySelector(`dialog .${one}`))"
    marked += ".map((letter) => [...letter.parentElement.children].indexOf(letter))"
    assert page.ask(marked) == [30, 4]
    assert matrix.bounding_box()["y"] + matrix.bounding_box()["height"] < 900  # the window
    matrix.click(position=cell)
    assert_shows(page, made, START[:31])


def test_the_matrix_and_the_computation_are_those_of_the_text_just_written(page: Any, made: Made) -> None:
    """They open before the page has the attention of the new letter."""
    settle(page)
    page.tab.locator(".tile .choose").nth(0).click()
    page.tab.locator("#temperature").fill("0")
    prefix = START + made.next(START)[0]
    button = "[...document.querySelectorAll('button')].find((one) => one.textContent === {!r}).click()"
    page.tab.evaluate("() => {" + "; ".join(map(button.format, ("One letter", "At all letters"))) + "}")
    weights = extract(made.model, made.loaded.tokenizer.encode(prefix)[-made.loaded.config.model.context :]).weights
    row = weights[0, 0, -1]
    share = re.findall(r"at \d+ attends to .* at (\d+): ([\d.]+)%", page.tab.inner_text("dialog .readout"))
    assert [(int(at), float(percent)) for at, percent in share] == [
        (int(row.argmax()), pytest.approx(100 * float(row.max()), abs=0.6))
    ]
    page.press("Escape")
    page.tab.evaluate("() => {" + "; ".join(map(button.format, ("One letter", "Compute this letter"))) + "}")
    assert "undefined" not in page.tab.inner_text("dialog")


def test_a_matrix_keeps_the_letters_that_it_was_asked_about(page: Any) -> None:
    page.tab.click(".tile .choose >> nth=0")
    page.ask(
        """() => {
            const field = document.querySelector('#text');
            [...document.querySelectorAll('button')].find((button) => button.textContent === 'At all letters').click();
            field.value = field.value.slice(0, 5);
            field.dispatchEvent(new Event('input'));
        }"""
    )
    page.until("() => document.querySelector('.sheet .scroll .drawn')")
    assert page.tab.inner_text(".sheet .scroll .drawn").replace("\n", "") == START.replace("\n", "")
    assert len(text(page)) == 5


def test_what_an_input_method_composes_is_visible(page: Any) -> None:
    for event, is_visible in (("compositionstart", True), ("compositionend", False)):
        page.tab.dispatch_event("#text", event)
        color = page.tab.evaluate("() => getComputedStyle(document.querySelector('#text')).color")
        assert (color != "rgba(0, 0, 0, 0)") is is_visible


def test_what_is_typed_after_deleting_everything_replaces_the_text(page: Any, made: Made) -> None:
    page.tab.focus("#text")
    page.press("Control+a", "Delete")
    page.until("() => document.querySelector('.message').textContent.includes('at least one letter')")
    assert text(page) == START
    page.tab.keyboard.type(START[:3])
    assert text(page) == START[:3]


def test_the_matrix_is_read_by_keyboard(page: Any, made: Made) -> None:
    page.tab.locator(".tile .choose").nth(0).click()
    page.tab.click("button:text-is('At all letters')")
    readout = page.tab.locator("dialog .readout")
    assert f"“{START[-1]}” at 59 attends to" in readout.inner_text()
    column = int(re.findall(r"at (\d+):", readout.inner_text())[0])
    page.press("ArrowUp", "ArrowUp", "ArrowLeft" if column else "ArrowRight")
    near = column - 1 if column else 1
    row, key = START[57].translate(GLYPHS), START[near].translate(GLYPHS)
    expected = f"“{row}” at 57 attends to “{key}” at {near}: "
    assert readout.inner_text().startswith(expected)
    page.press("Enter")
    assert_shows(page, made, START[:58])


def test_the_matrix_is_read_by_touch(made: Made, opened: Opener) -> None:
    shown = opened(made.content, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    settle(shown)
    shown.tab.locator(".tile .choose").nth(0).tap()
    shown.tab.locator("button:text-is('At all letters')").tap()
    matrix = shown.tab.locator("canvas.matrix")
    box = matrix.bounding_box()
    size = box["width"] / len(START)
    matrix.tap(position={"x": 7.5 * size, "y": 50.5 * size})
    line = shown.tab.inner_text("dialog .readout")
    row, column = map(int, re.findall(r"at (\d+)", line))
    assert (row, column) == (50, 7)
    assert "%" in line
    shown.tab.locator(f"dialog button:text-is('Go to “{START[row].translate(GLYPHS)}” at {row}')").tap()
    assert_shows(shown, made, START[: row + 1])
    shown.assert_quiet()


def test_two_models_are_compared_on_the_same_text(page: Any, made: Made) -> None:
    assert page.tab.locator(".track .other:visible").count() == 0
    page.tab.click(".pin")
    page.tab.select_option('select[aria-label="Model"]', "1")
    page.until("() => document.querySelector('.track .other:not([hidden])') !== null")
    assert page.tab.inner_text(".pin") == "✕ made, step 100"
    page.until(
        "() => document.querySelectorAll('.tile').length === 6 && document.querySelectorAll('.layer').length === 3"
    )


def test_without_workers_the_page_computes_the_same(made: Made, opened: Opener) -> None:
    content = made.content.replace("worker-src blob:", "worker-src 'none'")
    shown = opened(content)
    assert_shows(shown, made, START)
    settle(shown)
    shown.tab.click(".tile .switch >> nth=3")
    assert_shows(shown, made, START, ((1, 0),))
    assert {error.split(":")[0] for error in shown.errors if "worker" not in error.lower()} == set()


def test_text_beyond_the_context_is_marked(page: Any, made: Made) -> None:
    page.tab.fill("#text", START + "speak " * 10)
    page.until("() => document.querySelector('.unseen').textContent.length === 64")
    assert "does not see the gray start" in page.tab.inner_text(".text")
    assert_shows(page, made, (START + "speak " * 10)[64:])


def test_many_letters_do_not_fill_the_memory(page: Any) -> None:
    page.tab.fill("#text", "speak " * 600)
    page.press("End")
    heap = "() => performance.memory.usedJSHeapSize"
    page.tab.keyboard.type("speak again ")
    settle(page)
    before, nodes = page.ask(heap), page.ask("() => document.querySelectorAll('*').length")
    page.tab.keyboard.type("speak again and again " * 10)
    settle(page)
    assert page.ask("() => document.querySelectorAll('*').length") <= nodes + 70  # a span for each letter in the window
    assert page.ask(heap) < before + 50e6


def test_writing_on_does_not_fill_the_memory(page: Any) -> None:
    session = page.tab.context.new_cdp_session(page.tab)

    def used() -> float:
        session.send("HeapProfiler.collectGarbage")
        return float(session.send("Runtime.getHeapUsage")["usedSize"])

    page.tab.fill("#text", "speak " * 600)  # 3,600 letters
    page.press("End")
    page.tab.click(".controls .primary")
    length = "document.querySelector('#text').value.length"
    page.until(f"() => {length} > 3620")
    before, nodes = used(), page.ask("() => document.querySelectorAll('*').length")
    page.until(f"() => {length} > 3710")
    after = used()
    page.tab.click(".controls .primary")
    assert after < before + 2e6
    assert page.ask("() => document.querySelectorAll('*').length") <= nodes + 70  # a span for each letter in the window


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_accessible_and_fits(made: Made, opened: Opener, scheme: str, width: int) -> None:
    from axe_playwright_python.sync_playwright import Axe

    shown = opened(made.content, viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
    settle(shown)
    found = Axe().run(shown.tab).response["violations"]
    assert [f"{v['id']}: {v['nodes'][0]['html']}" for v in found if v["impact"] in SERIOUS] == []
    assert shown.ask("() => document.documentElement.scrollWidth") <= width


def test_a_phone_selects_by_touch_and_has_large_targets(made: Made, opened: Opener) -> None:
    shown = opened(made.content, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    settle(shown)
    shown.ask("() => void (window.requestAnimationFrame = (draw) => setTimeout(draw, 300))")  # a slow phone
    assert "Tap a letter" in shown.tab.inner_text(".next .note")
    shown.tab.locator('[data-index="20"]').tap(force=True)
    assert_shows(shown, made, START[:21])
    assert not shown.tab.locator("button:text-is('Keys')").is_visible()
    heights = [button.bounding_box()["height"] for button in shown.tab.locator("button:visible:not(.switch)").all()]
    assert min(heights) >= 44
    shown.assert_quiet()


def test_on_a_phone_the_heads_that_matter_most_come_first(made: Made, opened: Opener) -> None:
    shown = opened(made.content, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    settle(shown)
    letter, share = made.next(START)
    token = int(made.loaded.tokenizer.encode(letter)[0])
    heads = [(layer, head) for layer in range(2) for head in range(3)]
    changes = []
    for head in heads:
        with torch.no_grad(), ablate_heads(made.model, [head]):
            logits = made.model(torch.from_numpy(made.loaded.tokenizer.encode(START))[None])[0, -1]
        changes.append(float(logits.softmax(-1)[token]) - share)
    boxes = [tile.bounding_box() for tile in shown.tab.locator(".tile").all()]
    order = sorted(range(6), key=lambda i: (round(boxes[i]["y"]), boxes[i]["x"]))
    assert order == sorted(range(6), key=lambda i: round(1000 * changes[i]))
    shown.tab.locator(".tile .switch").nth(order[0]).tap()
    settle(shown)
    assert [tile.bounding_box()["x"] for tile in shown.tab.locator(".tile").all()] == [box["x"] for box in boxes]


def test_a_phone_remembers_that_heads_are_off(made: Made, opened: Opener) -> None:
    shown = opened(made.content, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    settle(shown)
    place = "() => document.querySelector('.card.next').getBoundingClientRect().y + scrollY"
    before = shown.ask(place)
    for number, line in enumerate(("1 head off · switch on", "2 heads off · switch on")):
        shown.tab.locator(".tile .switch").nth(number).tap()
        shown.until(f"() => document.querySelector('.off').textContent === {line!r}")
    assert_shows(shown, made, START, ((0, 0), (0, 1)))
    assert shown.ask(place) == before
    shown.tab.locator(".off").tap()
    assert_shows(shown, made, START)
    assert not shown.tab.locator(".off").is_visible()
    shown.assert_quiet()


@pytest.mark.parametrize(("family", "kind"), [("lstm", "LSTM"), ("gru", "GRU"), ("rnn", "RNN")])
def test_a_recurrent_model_has_no_heads(opened: Opener, family: Any, kind: str) -> None:
    loaded = recurrent(family=family)
    shown = opened(build_page(loaded, excerpt(loaded, START)))
    assert f"{kind} of " in shown.tab.inner_text("header")
    assert "has no heads" in shown.tab.inner_text(".heads")
    assert "looked" not in shown.tab.inner_text(".lead")
    shown.assert_quiet()


def test_damaged_weights_are_one_line(made: Made, opened: Opener) -> None:
    content = made.content.replace('"shape":[', '"shape":[7,', 1)
    shown = opened(content, wait="#app > .message:only-child")
    assert "This page is damaged" in shown.tab.inner_text("#app")
