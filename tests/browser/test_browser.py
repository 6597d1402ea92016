"""The viewer in a real browser: no requests, no errors, every view by keyboard, and the right numbers."""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_models import TEXT, attention_stages, checkpoint, excerpt

from minigpt.interpret.extract import Activations, extract
from minigpt.interpret.scores import divergence
from minigpt.model.load import load_model
from minigpt.storage.checkpoint import Checkpoint
from minigpt.viewer import packing, views
from minigpt.viewer.page import build_page

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VIEWS = (
    *("text", "overview", "matrix", "lines", "heads", "distance", "worked", "next"),
    *("characters", "positions", "ablation", "training", "compare"),
)
SERIOUS = ("serious", "critical")


def skip(reason: str) -> None:
    """Skip the test if a tool is missing, but fail in CI."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        skip("playwright is not installed")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_playwright() as playwright:
        options: dict[str, Any] = {"executable_path": found} if found else {"channel": "chrome"}
        try:
            launched = playwright.chromium.launch(**options, args=["--no-sandbox"] if root else [])
        except Error as error:
            skip(f"found none of {', '.join(BROWSERS)}: {error.message.splitlines()[0]}")
        yield launched
        launched.close()


@dataclass
class Shown:
    """An open page, with its requests and errors."""

    tab: Any
    address: str
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def ask(self, script: str, *given: Any) -> Any:
        return self.tab.evaluate(script, *given)

    def go(self, **changes: Any) -> None:
        self.ask("changes => change(changes)", changes)

    def until(self, script: str) -> None:
        """Wait until a script returns true. The security policy forbids Playwright's own way."""
        for _ in range(300):
            if self.ask(script):
                return
            self.tab.wait_for_timeout(20)
        raise AssertionError(script)

    def status(self) -> str:
        return str(self.tab.inner_text("#status"))

    def press(self, *keys: str) -> None:
        for key in keys:
            self.tab.keyboard.press(key)

    def assert_quiet(self) -> None:
        assert self.errors == []
        assert [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))] == []
        assert {url.split("#")[0] for url in self.requests if url.startswith("file:")} == {self.address}


Opener = Callable[..., Shown]


@pytest.fixture(scope="module")
def opened(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    """Opens a page as a file, without a network."""
    contexts = []
    folder = tmp_path_factory.mktemp("pages")

    def open_page(content: str, anchor: str = "", **options: Any) -> Shown:
        context = browser.new_context(offline=True, **{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        context.set_default_timeout(30_000)
        file = folder / f"{len(contexts)}.html"
        file.write_text(content, encoding="utf-8", newline="")
        tab = context.new_page()
        shown = Shown(tab, file.as_uri())
        tab.on("request", lambda request: shown.requests.append(request.url))
        tab.on("pageerror", lambda error: shown.errors.append(str(error)))
        tab.on("console", lambda m: shown.errors.append(m.text) if m.type == "error" else None)
        tab.add_init_script(
            "addEventListener('securitypolicyviolation', e => console.error('policy: ' + e.violatedDirective))"
        )
        tab.goto(file.as_uri() + anchor)
        tab.wait_for_selector("#status:not(:empty)")
        return shown

    yield open_page
    for context in contexts:
        context.close()


@dataclass(frozen=True)
class Made:
    loaded: Checkpoint
    activations: Activations
    content: str
    characters: list[str]

    def weights(self, layer: int, head: int, query: int) -> np.ndarray:
        return self.activations.weights[layer, head, query].numpy()


@pytest.fixture(scope="module")
def made() -> Made:
    """A page with all views: 64 characters, 2 layers of 3 heads."""
    loaded = checkpoint(layers=2, heads=3, width=48, context=64)
    text = excerpt(loaded, TEXT[:64])
    content = build_page(
        loaded, text, detail=True, ablation_tokens=text.ids,
        compare=checkpoint(layers=3, heads=2, seed=3, name="other"),
        steps=[checkpoint(heads=3, width=48, step=step, seed=step) for step in (1, 2, 3)],
    )  # fmt: skip
    return Made(loaded, extract(load_model(loaded), text.ids), content, text.characters)


@pytest.fixture(scope="module")
def page(made: Made, opened: Opener) -> Shown:
    return opened(made.content)


def name_of(character: str) -> str:
    return {" ": "space", "\n": "newline", "\t": "tab"}.get(character, character)


def status_of(made: Made, layer: int, head: int, query: int) -> str:
    """Return the status line for the exact weights."""
    weights = made.weights(layer, head, query)
    key = int(weights.argmax())
    name = [name_of(c) for c in made.characters]
    return f"query {query} {name[query]}, strongest key {key} {name[key]}, {weights[key]:.2f}"


# ---- keyboard and pointer ----


def test_every_view_opens_by_keyboard_without_errors(page: Shown) -> None:
    page.go(view="text", query=20)
    page.tab.focus("#tab-text")
    for view in VIEWS:
        assert page.ask("state.view") == view
        assert page.ask("document.activeElement.id") == f"tab-{view}"
        panel = page.tab.locator(f"#panel-{view}")
        assert panel.is_visible()
        assert panel.inner_text().strip()
        assert page.ask("document.querySelectorAll('[role=tabpanel]:not([hidden])').length") == 1
        unnamed = (
            "[...document.querySelectorAll('canvas')].filter(c => c.offsetParent && !c.getAttribute('aria-label'))"
        )
        assert page.ask(f"{unnamed}.length") == 0, view
        page.press("ArrowRight")
    page.assert_quiet()


def test_missing_views_name_the_option_that_adds_them(opened: Opener) -> None:
    loaded = checkpoint()
    shown = opened(build_page(loaded, excerpt(loaded)))
    options = {"worked": "--detail", "ablation": "--ablate", "training": "--steps", "compare": "--compare"}
    for view in VIEWS:
        shown.go(view=view)
        words = shown.tab.inner_text(f"#panel-{view}")
        assert options.get(view, "") in words
        assert (len(words.splitlines()) == 1) == (view in options)
    assert "--ablate" in shown.tab.inner_text("#loss-without")
    shown.assert_quiet()


def test_every_shortcut_works(page: Shown, made: Made) -> None:
    page.go(view="text", layer=0, head=0, query=10, mode="one", group="character", pinned=False)
    page.tab.focus("#panel-text [role=option][tabindex='0']")
    page.press("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowDown", "]", "]", "[")
    assert page.ask("[state.query, state.layer, state.head]") == [11, 1, 1]
    assert page.status().endswith(status_of(made, 1, 1, 11))
    assert page.ask("document.activeElement.dataset.position") == "11"
    assert page.ask("document.querySelectorAll('#panel-text [tabindex=\"0\"]').length") == 1
    key = page.ask("currentKey()")
    page.press("Shift+ArrowLeft")
    assert page.ask("state.key") == max(0, key - 1)
    assert f"; key {max(0, key - 1)} " in page.status()
    page.press("End")
    assert page.ask("state.query") == 63
    page.press("Home", "ArrowLeft", "ArrowUp", "ArrowUp", "[", "[", "[")
    assert page.ask("[state.query, state.layer, state.head]") == [0, 0, 0]
    for key, what, value in (
        ("a", "mode", "mean"), ("x", "mode", "max"), ("x", "mode", "several"), ("2", "mode", "several"),
        ("g", "group", "word"), ("g", "group", "line"), ("g", "group", "character"),
        ("Enter", "pinned", True), ("Escape", "pinned", False), ("m", "view", "matrix"),
    ):  # fmt: skip
        page.press(key)
        assert page.ask(f"state.{what}") == value, key
    page.press("m")  # works because the focus moved out of the hidden view
    assert page.ask("state.view") == "text"
    page.tab.focus("#panel-text [role=option][tabindex='0']")
    page.press("?")
    assert page.tab.locator("dialog").is_visible()
    page.press("Escape")
    assert not page.tab.locator("dialog").is_visible()
    page.tab.focus("select")
    layer = page.ask("state.layer")
    page.press("g")
    assert page.ask("state.group") == "character"  # a menu keeps its keys
    assert page.ask("state.layer") == layer
    page.go(mode="one", pinned=False)
    page.assert_quiet()


def test_the_pointer_moves_the_query_until_it_is_pinned(page: Shown) -> None:
    page.go(view="text", query=5, pinned=False)
    page.tab.hover("#panel-text [data-position='30']")
    assert page.ask("state.query") == 30
    page.tab.click("#panel-text [data-position='30']")
    page.tab.hover("#panel-text [data-position='12']")
    assert page.ask("[state.query, state.key, state.pinned]") == [30, 12, True]
    page.go(pinned=False, key=None)


def test_the_image_can_be_saved(page: Shown) -> None:
    page.go(view="matrix", layer=1, head=2)
    page.tab.focus(".selection button")
    with page.tab.expect_download() as saved:
        page.press("s")
    assert saved.value.suggested_filename == "attention-layer1-head2.png"
    assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")
    page.assert_quiet()


# ---- numbers and colors ----


def test_the_status_line_has_the_weights_of_the_model(page: Shown, made: Made) -> None:
    page.go(view="text", mode="one", group="character", pinned=False)
    for layer in range(2):
        for head in range(3):
            for query in (0, 1, 13, 14, 40, 63):
                page.go(layer=layer, head=head, query=query)
                assert page.status().endswith(status_of(made, layer, head, query))
                assert page.tab.get_attribute("#status", "aria-live") == "polite"


def test_the_table_lists_the_ten_strongest_keys(page: Shown, made: Made) -> None:
    page.go(view="text", layer=1, head=2, query=50, mode="one", byNorm=False)
    weights = made.weights(1, 2, 50)
    rows = page.ask("[...document.querySelectorAll('aside tbody tr')].map(r => [...r.cells].map(c => c.textContent))")
    assert len(rows) == 10
    assert [shown for _, _, shown in rows] == [f"{w:.2f}" if w >= 0.005 else "<0.01" for w in sorted(weights)[:-11:-1]]
    assert rows[0][0] == str(weights.argmax())
    for place, _, shown in rows:
        assert shown in (f"{weights[int(place)]:.2f}", "<0.01")


def test_thumbnails_start_with_a_weight_of_1(page: Shown) -> None:
    page.go(view="overview")
    found = page.ask(
        """(() => {
          const canvases = [...document.querySelectorAll('#panel-overview canvas')];
          return canvases.map(canvas => [...canvas.getContext('2d').getImageData(0, 0, 1, 1).data]);
        })()"""
    )
    assert len(found) == 7  # the legend and six heads
    full = page.ask("ramp(depthOf(1))")
    assert all(pixel == [*map(round, full), 255] for pixel in found[1:]), (found, full)


def test_pixels_have_the_color_of_their_weight(page: Shown, made: Made) -> None:
    page.go(view="matrix", layer=1, head=0, query=0, shading="root", stage="softmax", zoom=1)
    weights = made.activations.weights[1, 0].numpy()
    shown = packing.LEVELS[packing.to_levels(weights)]
    places = [(int(q), int(k)) for q, k in np.random.default_rng(0).integers(1, 64, (200, 2)) if k <= q]
    places += [(int(q), int(weights[q].argmax())) for q in range(2, 64, 7) if weights[q].argmax() > 0]
    found = page.ask(
        """places => {
          const { heat } = views.find(view => view.name === 'matrix');
          const pen = heat.canvas.getContext('2d');
          return places.map(([q, k]) => [...pen.getImageData(...heat.cellAt(q, k), 1, 1).data]);
        }""",
        places,
    )
    for (query, key), pixel in zip(places, found, strict=True):
        root = float(shown[query, key]) ** 0.5
        stops = [(247, 251, 255), (70, 140, 205), (8, 48, 107)]
        low, high, share = (0, 1, 2 * root) if root < 0.5 else (1, 2, 2 * root - 1)
        color = [a + (b - a) * share for a, b in zip(stops[low], stops[high], strict=True)]
        assert np.abs(np.array(pixel[:3]) - color).max() <= 1, (query, key)
        assert pixel[3] == 255
    assert len({tuple(pixel) for pixel in found}) > 10


def test_the_text_is_shaded_by_the_weights(page: Shown, made: Made) -> None:
    page.go(view="text", layer=0, head=1, query=40, mode="one", group="character", byNorm=False)
    shown = packing.LEVELS[packing.to_levels(made.weights(0, 1, 40))]
    cells = page.ask("""[...document.querySelectorAll('#panel-text [role=option]')]
        .map(c => getComputedStyle(c).backgroundColor)""")
    for place in (0, 7, 20, 40):
        expected = page.ask("share => css(ramp(Math.sqrt(share)))", float(shown[place]))
        assert cells[place] == expected
    assert cells[41] == "rgba(0, 0, 0, 0)"


def test_each_head_has_a_color_from_the_start(made: Made, opened: Opener) -> None:
    """The query's character has the stripes of all heads of the layer, below the shading by the selected head."""
    shown = opened(made.content, "#l=1&h=2&q=40")
    layers = shown.ask("""[...document.querySelectorAll('#panel-text [role=option]')]
        .map(c => [...getComputedStyle(c).backgroundImage.matchAll(/rgba?\\(([^)]*)\\)/g)].map(m => m[1]))""")
    for key in (0, 7, 40):
        colors = [[float(part) for part in color.split(",")] for color in layers[key][::2]]
        for head in range(3):
            share = packing.LEVELS[packing.to_levels(made.weights(1, head, 40))]
            head_color = shown.ask("headColor", head)
            assert colors[head][:3] == [int(head_color[at : at + 2], 16) for at in (1, 3, 5)]
            opacity = (*colors[head], 1.0)[3]
            assert opacity == pytest.approx((share[key] / share.max()) ** 0.5, abs=0.02)
        assert colors[3] == shown.ask("share => ramp(Math.sqrt(share))", float(share[key]))
    assert layers[41] == []
    marks = shown.tab.locator("#panel-text [data-heads]").all()
    assert sorted(",".join(str(mark.get_attribute("data-heads")) for mark in marks).split(",")) == ["0", "1", "2"]
    single = checkpoint(layers=1, heads=1, width=16)
    assert opened(build_page(single, excerpt(single, TEXT[:9]))).ask("state.mode") == "one"
    shown.assert_quiet()


@pytest.mark.parametrize("stage", ["raw", "scaled", "masked"])
def test_stages_are_those_of_the_head(page: Shown, made: Made, stage: str) -> None:
    page.go(view="matrix", layer=1, head=2, stage=stage)
    exact = attention_stages(made.activations, 1, 2)[stage].numpy()
    found = page.ask(
        """() => {
          const { value, n } = stageMatrix(state.stage);
          const cells = [...Array(n * n).keys()].map(i => value(Math.floor(i / n), i % n));
          return cells.map(cell => (cell === -Infinity ? null : cell));
        }"""
    )
    numbers = np.array([-np.inf if x is None else x for x in found]).reshape(64, 64)
    assert (np.isinf(numbers) == np.isinf(exact)).all()
    finite = np.isfinite(exact)
    assert np.abs(numbers[finite] - exact[finite]).max() < 1e-3
    page.go(stage="softmax")


def test_the_worked_example_matches_the_model(page: Shown, made: Made) -> None:
    page.go(view="worked", layer=1, head=1, query=33)
    found = page.ask(
        "(() => { const w = computeHead(); return { weights: w.weights, output: w.output, raw: w.raw }; })()"
    )
    assert np.abs(np.array(found["weights"]) - made.weights(1, 1, 33)).max() < 1e-6
    weight = load_model(made.loaded).blocks[1].attention.proj.weight.detach().numpy()
    written = made.activations.head_outputs[1, 1, 33].numpy() @ weight[:, 16:32].T
    assert np.abs(np.array(found["output"]) - written).max() < 1e-3
    ticks = page.tab.locator("#panel-worked .checks li")
    assert len(ticks.all()) == 3
    assert all(tick.startswith("✓") for tick in ticks.all_inner_texts())
    for part, wrong in (("k", [0, 1]), ("output_weights", [2])):
        page.ask("part => { page.detail[part] = page.detail[part].map(number => 1.1 * number); draw(); }", part)
        assert [at for at, tick in enumerate(ticks.all_inner_texts()) if tick.startswith("✗")] == wrong
        page.ask("part => { page.detail[part] = page.detail[part].map(number => number / 1.1); draw(); }", part)


def test_shortcuts_work_anywhere_in_the_worked_example(page: Shown) -> None:
    page.go(view="worked", layer=0, head=0, query=33, key=20)
    for place in ("#tab-worked", "#panel-worked .scroll >> nth=0", "#panel-worked .scroll >> nth=1"):
        before = page.ask("state.key")
        page.tab.focus(place)
        page.press("Shift+ArrowLeft", "Shift+ArrowLeft")
        assert page.ask("[state.view, state.query, state.key]") == ["worked", 33, before - 2]
    page.tab.click("#panel-worked .intro")
    page.press("]")
    assert page.ask("state.head") == 1
    page.go(view="text", key=None)


def test_options_of_the_text_view_do_not_affect_other_views(page: Shown, made: Made) -> None:
    page.go(view="text", layer=1, head=2, query=40, mode="mean", scope="all", group="word")
    assert page.status().startswith("mean of the heads in all layers: query word ")
    for view in ("matrix", "lines", "worked", "compare"):
        page.go(view=view)
        assert page.status().removeprefix("layer 1 head 2: ") == status_of(made, 1, 2, 40)
    assert "layer 1 head 2" in page.tab.inner_text("aside caption")
    page.go(view="text")
    page.until("location.hash === address()")
    assert "c=all" in page.ask("location.hash")
    page.go(mode="one", scope="layer", group="character")


def test_the_largest_values_of_a_row_are_exact(page: Shown, made: Made) -> None:
    table = load_model(made.loaded).token_embedding.weight.detach()
    alike = torch.nn.functional.cosine_similarity(table[:, None], table, dim=-1).fill_diagonal_(-2)
    page.go(view="characters")
    page.go(relation="cosine", row=7)
    names = [views.character_name(made.loaded.tokenizer.decode([i])) for i in alike[7].topk(5).indices.tolist()]
    best = page.tab.inner_text("#panel-characters p:not([class])")
    assert [part.rsplit(" ", 1)[0] for part in best.rstrip(".").partition("(approximate): ")[2].split(", ")] == names
    page.go(relation="qk", layer=1, head=2)
    with torch.no_grad():
        looks, _ = views._circuits(load_model(made.loaded), 1, table)
    assert page.ask("topColumns(7)") == looks[2, 7].topk(5).indices.tolist()
    page.go(view="text")


def test_the_nearest_heads_are_named(page: Shown, made: Made) -> None:
    page.go(view="heads", layer=0, head=1)
    far = divergence(made.activations.weights)[1]
    far[1] = -1
    least = int(far.argmax())
    far[1] = 2
    most = int(far.argmin())
    text = page.tab.inner_text("#panel-heads p[aria-live]")
    assert text.startswith(f"Layer 0 head 1 is most like layer {most // 3} head {most % 3} (")
    assert f"and least like layer {least // 3} head {least % 3} (" in text
    page.go(view="text")


def test_right_to_left_words_do_not_reorder_numbers(opened: Opener) -> None:
    text = HOSTILE["right to left"]
    loaded = checkpoint(text, context=64)
    shown = opened(build_page(loaded, excerpt(loaded, text)))
    shown.go(query=6, key=5)
    assert "query 6 \u2068ג\u2069, strongest" in shown.ask("describeSelection()")
    shown.go(group="word")
    assert "query word \u2068אבג\u2069, " in shown.ask("describeSelection()")


def test_modes_and_groups_have_the_right_shares(page: Shown, made: Made) -> None:
    page.go(view="text", layer=0, head=0, query=45, group="character", byNorm=False)
    heads = made.activations.weights[0, :, 45].numpy()
    for mode, exact in (("mean", heads.mean(0)), ("max", heads.max(0)), ("one", heads[0])):
        page.go(mode=mode)
        assert np.abs(np.array(page.ask("Array.from(selectedRow())")) - exact[:46]).max() <= 0.0051
    shares, keeping = np.eye(64), np.eye(64)
    for layer in made.activations.weights.numpy():  # two layers
        shares = (keeping + layer.mean(0)) / 2 @ shares
    page.go(mode="rollout", layer=1)
    assert np.abs(np.array(page.ask("Array.from(selectedRow())")) - shares[45, :46]).max() < 0.02
    assert "about" in page.status()
    page.go(mode="one", layer=0, byNorm=True)
    shares = heads[0] * made.activations.output_norms[0, 0].numpy()
    assert np.abs(np.array(page.ask("Array.from(selectedRow())")) - (shares / shares.sum())[:46]).max() < 0.02
    page.go(byNorm=False, group="line")
    start = TEXT.rindex("\n", 0, 45) + 1
    end = min(TEXT.index("\n", 45) + 1, 64)
    whole = made.activations.weights[0, 0, start:end].numpy().mean(0)
    row = page.ask("Array.from(groupedRow())")
    assert row[0] == pytest.approx(whole[: TEXT.index("\n") + 1].sum(), abs=0.02)
    assert row[start] == pytest.approx(whole[start:end].sum(), abs=0.02)
    page.go(group="character")


def test_rollout_needs_all_layers(opened: Opener) -> None:
    loaded = checkpoint(layers=2)
    shown = opened(build_page(loaded, excerpt(loaded, TEXT[:9]), layers=[1]), "#m=rollout")
    assert shown.ask("state.mode") == "several"
    assert "rollout" not in shown.tab.locator("#panel-text").inner_text()


def test_a_page_opens_at_the_head_that_it_was_made_for(made: Made, opened: Opener) -> None:
    text = excerpt(made.loaded, TEXT[:30])
    start = views.Start(layer=1, head=2, query=29)
    shown = opened(build_page(made.loaded, text, start=start, argument="'my run'"))
    assert shown.ask("[state.layer, state.head, state.query]") == [1, 2, 29]
    assert "layer 1 head 2" in shown.tab.inner_text("main")
    for view, option in (("worked", "--detail"), ("ablation", "--ablate"), ("training", "--steps all")):
        shown.go(view=view)
        assert f"minigpt inspect 'my run' {option}" in shown.tab.inner_text(f"#panel-{view}")
    shown.assert_quiet()


def test_the_address_restores_the_selection(made: Made, page: Shown, opened: Opener) -> None:
    page.go(view="heads", layer=1, head=2, query=17, key=4, mode="max", group="word")
    page.until("location.hash === address()")
    anchor = page.ask("location.hash")
    assert anchor.startswith("#l=1&h=2&q=17&v=heads")
    other = opened(made.content, anchor)
    assert other.ask("[state.view, state.layer, state.head, state.query, state.key, state.mode, state.group]") == [
        "heads", 1, 2, 17, 4, "max", "word",
    ]  # fmt: skip
    page.go(view="text", mode="several", several=[0, 2], group="word")
    page.until("location.hash === address()")
    striped = opened(made.content, page.ask("location.hash"))
    assert striped.ask("state.scope") == "layer"
    assert striped.ask("[state.mode, state.several, state.group]") == ["several", [0, 2], "word"]
    marks = striped.tab.locator("#panel-text [data-heads]").all()
    assert marks
    for place in (int(mark.get_attribute("data-position") or "") for mark in marks):
        assert striped.ask(f"groupOf({place})[0]") == place  # a mark is at the start of its word
    page.go(mode="max", scope="all")
    page.until("location.hash === address()")
    assert opened(made.content, page.ask("location.hash")).ask("[state.mode, state.scope]") == ["max", "all"]
    page.go(scope="layer")
    other.tab.goto(other.address + "#m=several&s=7.1.1.x.0")
    other.until("state.mode === 'several'")
    assert other.ask("state.several") == [0, 1]
    other.tab.goto(other.address + "#l=0&h=1&q=3&v=matrix")
    other.until("state.view === 'matrix'")
    assert other.ask("[state.layer, state.head, state.query, state.mode]") == [0, 1, 3, "several"]
    for nonsense in ("#l=99&h=-1&q=1e9&v=__proto__&k=x", "#%E0%A4%A", "#q=&v=&l=constructor", "#<img src=x>"):
        other.tab.goto(other.address + nonsense)
        assert other.tab.locator("#panel-text").is_visible()
    other.assert_quiet()
    page.go(view="text", mode="one", group="character", key=None)


# ---- any text ----

HOSTILE = {
    "markup": "</script><img src=x onerror=alert(1)>&\"'</style><!--${1}`",
    "separators": "a\u2028b\u2029c\x85d",
    "right to left": "abc אבג مرحبا 123",
    "combining": "e\u0301 a\u0308\u0323 n\u0303",
    "emoji": "👩\u200d🚀 👍🏽 \ufe0f🇪🇺",
    "controls": "a\x00b\x1b[31mc\x7f\ufeff\u202e\u2066",
    "chinese": "我想吃酸菜鱼。",
    "blanks": " \t\n\n\r\n \u3000\xa0x",
    "a vocabulary of one": "aaaaaaaa",
    "one character": "x",
    "one newline": "\n",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_any_text_is_shown_in_order(opened: Opener, kind: str) -> None:
    text = HOSTILE[kind]
    loaded = checkpoint(text, context=64, name=text)
    shown = opened(build_page(loaded, excerpt(loaded, text, source=text), detail=True))
    dialogs: list[str] = []
    shown.tab.on("dialog", lambda dialog: dialogs.append(dialog.message))
    for view in VIEWS:
        shown.go(view=view, query=len(text) - 1)
    shown.go(view="text")
    cells = shown.tab.locator("#panel-text [role=option]").all_text_contents()
    assert len(cells) == len(text)
    for cell, character in zip(cells, text, strict=True):
        assert cell.strip()
        if character.isalpha() or character in "<>&\"'":
            assert cell == character
    places = shown.ask("""[...document.querySelectorAll('#panel-text [role=option]')].map(c => {
        const b = c.getBoundingClientRect(); return [Math.round(b.top), b.left, b.width]; })""")
    for (top, left, width), (next_top, next_left, _) in itertools.pairwise(places):
        assert width > 0
        assert next_top > top + 8 or next_left > left, "out of order"
    assert dialogs == []
    assert shown.ask("document.querySelectorAll('img').length") == 0
    shown.assert_quiet()
    shown.tab.context.close()


# ---- accessibility ----


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(made: Made, opened: Opener, scheme: str) -> None:
    try:
        from axe_playwright_python.base import AXE_FILE_PATH
    except ImportError:
        skip("axe-playwright-python is not installed")
    shown = opened(made.content, color_scheme=scheme, bypass_csp=True)
    shown.ask(Path(AXE_FILE_PATH).read_text(encoding="utf-8"))
    for view in (*VIEWS, "one"):
        shown.go(**({"view": "text", "mode": "one"} if view == "one" else {"view": view}), query=40)
        part = "document" if view == "text" else f"'#panel-{'text' if view == 'one' else view}'"
        found = shown.ask(f"async () => (await axe.run({part}, {{ resultTypes: ['violations'] }})).violations")
        bad = [(one["id"], one["nodes"][0]["html"][:200], one["nodes"][0]["failureSummary"][:200])
               for one in found if one["impact"] in SERIOUS]  # fmt: skip
        assert not bad, (view, bad)


def test_a_narrow_screen_needs_no_sideways_scrolling(made: Made, opened: Opener) -> None:
    shown = opened(made.content, viewport={"width": 320, "height": 640})
    for view in VIEWS:
        shown.go(view=view, query=40)
        assert shown.ask("document.scrollingElement.scrollWidth <= innerWidth"), view
    shown.go(view="text", mode="one")
    assert shown.ask("document.scrollingElement.scrollWidth <= innerWidth")
    shown.assert_quiet()


def test_forced_colors_keep_the_query_visible(made: Made, opened: Opener) -> None:
    shown = opened(made.content, forced_colors="active", reduced_motion="reduce")
    shown.go(view="text", query=40)
    outline = shown.ask("getComputedStyle(document.querySelector('#panel-text .query')).outlineStyle")
    assert outline == "solid"
    shown.assert_quiet()


def test_without_javascript_there_is_an_image(made: Made, opened: Opener, browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(made.content, encoding="utf-8", newline="")
    context = browser.new_context(java_script_enabled=False, offline=True)
    tab = context.new_page()
    tab.goto(file.as_uri())
    image = tab.locator("noscript img, main img").first
    assert image.is_visible()
    assert image.bounding_box()["width"] > 100
    context.close()


# ---- size ----


def test_a_large_page_has_few_nodes(opened: Opener) -> None:
    letters = TEXT * 4
    loaded = checkpoint(letters, layers=6, heads=6, width=96)
    shown = opened(build_page(loaded, excerpt(loaded, letters)))
    assert shown.ask("T") == 256
    for view in VIEWS:
        shown.go(view=view)
    assert shown.ask("document.querySelectorAll('*').length") < 5000
    shown.assert_quiet()
