"""The page as a file: reproducible, self-contained, safe for any text, and honest about what it shows."""

import base64
import hashlib
import io
import math
import re
from typing import Any

import numpy as np
import pytest
from pages import Elements, page_data, page_json, unpack
from PIL import Image
from random_models import TEXT, cells, checkpoint, excerpt, peaked_attention

from minigpt.errors import UserError, ViewError
from minigpt.interpret import images
from minigpt.interpret.extract import Activations, extract
from minigpt.model.load import load_model
from minigpt.viewer import document, views
from minigpt.viewer import page as page_module
from minigpt.viewer.page import build_page

HOSTILE = "</script><img src=x onerror=alert(1)>&\"'"
HOSTILE += "\u2028\u2029אבג e\u0301\u200d👩\u200d🚀\x00\x1b我想吃酸菜鱼\n\t\r\x85\xa0<!--]]>"


# ---- content ----


def test_the_same_checkpoint_and_text_give_the_same_bytes() -> None:
    first, second = checkpoint(), checkpoint()
    assert build_page(first, excerpt(first)) == build_page(second, excerpt(second))


def test_options_add_their_views() -> None:
    loaded = checkpoint(context=64)
    text = excerpt(loaded, TEXT[:60])
    plain = page_data(build_page(loaded, text))
    assert [plain[name] for name in ("detail", "ablation", "training", "compare")] == [None] * 4
    steps = [checkpoint(step=step, seed=step) for step in (1, 2)]
    other = checkpoint(layers=3, seed=5, name="other", context=64)
    full = page_data(
        build_page(loaded, text, detail=True, ablation_tokens=text.ids, steps=iter(steps), compare=other, layers=[1])
    )
    assert full["layers"] == [1]
    assert [frame["step"] for frame in full["training"]["frames"]] == [1, 2]
    assert full["compare"]["layers"] == [1]
    assert np.array(full["ablation"]["increases"]).shape == (1, 2)
    activations = extract(load_model(loaded), text.ids)
    assert (unpack(full["detail"]["q"]) == activations.q[1:].numpy()).all()
    assert (unpack(full["attention"]["strongest"]) == activations.weights[1:].argmax(-1).numpy()).all()


@pytest.mark.parametrize("text", ["a", "\n", "ap"])
@pytest.mark.parametrize("vocabulary", ["", TEXT])
def test_the_smallest_texts_and_vocabularies_work(text: str, vocabulary: str) -> None:
    loaded = checkpoint(text[0] + vocabulary if vocabulary else text, context=8)
    assert len(page_data(build_page(loaded, excerpt(loaded, text), detail=True))["text"]["symbols"]) == len(text)


def test_a_model_of_width_1_works() -> None:
    """Its centered residual stream is zero, and the scale of the last norm too."""
    loaded = checkpoint("ab", heads=1, width=1, family="classic", position="learned", context=8)
    assert page_data(build_page(loaded, excerpt(loaded, "ba")))["heads"] == 1


def test_6_layers_of_6_heads_over_256_characters_fit_a_megabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = peaked_attention(6, 6, 256)

    def with_peaked_weights(model: Any, ids: Any) -> Activations:
        return Activations(**{**vars(extract(model, ids)), "weights": weights})

    monkeypatch.setattr(page_module, "extract", with_peaked_weights)
    letters = "".join(map(chr, range(33, 33 + 65)))
    loaded = checkpoint(letters, layers=6, heads=6, width=96, context=256)
    text = "".join(np.random.default_rng(0).choice(list(letters), 256))
    size = len(build_page(loaded, excerpt(loaded, text)).encode())
    assert size < 1_000_000, f"{size:,} bytes"


@pytest.mark.parametrize("length", [32, len(TEXT)])
def test_without_javascript_an_image_shows_all_heads(length: int) -> None:
    """Thumbnails have at most 32 pixels and 32 shades."""
    loaded = checkpoint(layers=3, heads=4)
    text = excerpt(loaded, TEXT[:length])
    (found,) = re.findall(r'src="data:image/png;base64,([^"]+)"', build_page(loaded, text))
    image = Image.open(io.BytesIO(base64.b64decode(found)))
    weights = extract(load_model(loaded), text.ids).weights
    colors = images.to_colors(weights if length == 32 else views.downsample(weights))
    assert (
        np.abs(cells(image, 3, 4, 32) - colors.astype(int)).max() <= 0.5 / 31 * (images.LIGHT - images.DARK).max() + 1
    )
    darkest, lightest = image.convert("L").getextrema()
    assert darkest < 100 < 240 < lightest


# ---- safety ----


def test_hostile_text_cannot_open_or_close_an_element() -> None:
    loaded = checkpoint(HOSTILE, name="</script><img src=x onerror=alert(1)>&\"'\u202e")
    page = build_page(loaded, excerpt(loaded, HOSTILE, source=HOSTILE))
    tags = Elements(page).tags
    assert sum(tag == "img" for tag, _ in tags) == 1  # the image in noscript
    assert sum(tag == "script" for tag, _ in tags) == sum(tag == "/script" for tag, _ in tags) == 2
    assert not [a for _, a in tags if any(name.startswith("on") or name == "style" for name in a)]
    assert not set("<>&\u2028\u2029\x00") & set(page_json(page))
    assert "\x00" not in page
    assert "\u202e" not in page
    data = page_data(page)
    glyphs = [data["symbols"][i][0] for i in data["text"]["symbols"]]
    assert len(glyphs) == len(HOSTILE)
    assert all(glyph.strip() and glyph.isprintable() for glyph in glyphs)


def test_the_policy_allows_only_the_script_and_style_of_the_page() -> None:
    loaded = checkpoint()
    page = build_page(loaded, excerpt(loaded))
    elements = Elements(page)
    (policy,) = [a["content"] for _, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    for kind in ("script", "style"):
        (content,) = [content for tag, a, content in elements.contents if tag == kind and not a]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert "unsafe" not in policy
    links = [value or "" for _, a in elements.tags for name, value in a.items() if name in ("src", "href")]
    assert all(address.startswith("data:") for address in links)
    assert not re.search(r"https?://", page)


def test_scripts_never_parse_text_as_markup_or_code() -> None:
    scripts = [file.read_text(encoding="utf-8") for file in document.HERE.glob("*.js")]
    assert len(scripts) == len(document.SCRIPTS)
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "srcdoc"):
        assert not any(name in script for script in scripts), name


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_is_not_finite_is_a_typed_error(number: float) -> None:
    with pytest.raises(ViewError, match="not finite"):
        document.embed_json({"values": [number]})


def test_the_page_contains_no_path_and_no_date() -> None:
    loaded = checkpoint()
    page = build_page(loaded, excerpt(loaded))
    assert "/nowhere" not in page
    assert not re.search(r"\b20\d\d-\d\d-\d\d", page)


# ---- facts, warnings and errors ----


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page.split("<script")[0]))


def test_the_page_names_run_step_loss_and_source() -> None:
    loaded = checkpoint(step=1234, loss=1.2345, name="my run")
    text = text_of(build_page(loaded, excerpt(loaded, source="validation split from 0")))
    for fact in ("my run", "1,234", "1.2345", "2 layers × 2 heads", "validation split from 0"):
        assert fact in text


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"step": 0, "loss": None}, True),
        ({"loss": math.log(len(set(TEXT))) - 0.04}, True),
        ({"loss": 1.0}, False),
    ],
)
def test_an_untrained_model_gets_a_warning(changes: dict[str, Any], warning: bool) -> None:
    loaded = checkpoint(**changes)
    assert ("Its attention is random." in text_of(build_page(loaded, excerpt(loaded)))) == warning


def test_a_cut_text_gets_a_warning() -> None:
    loaded = checkpoint()
    assert "first 300 tokens" in text_of(build_page(loaded, excerpt(loaded, skipped=300)))


def test_views_that_cannot_show_a_model_are_errors() -> None:
    loaded = checkpoint()
    cases: list[tuple[str, dict[str, Any]]] = [
        ("layers 0 to 1", {"layers": [2]}),
        ("layers 0 to 1", {"layers": []}),
        ("at most 64 tokens", {"detail": True}),
        ("context is 16", {"compare": checkpoint(context=16)}),
        ("cannot compare", {"compare": checkpoint("abc")}),
        ("at most 20 checkpoints", {"steps": [loaded] * 21}),
        ("layers or heads", {"steps": [checkpoint(layers=3)]}),
    ]
    for problem, options in cases:
        with pytest.raises(UserError, match=problem) as caught:
            build_page(loaded, excerpt(loaded), **options)
        assert "--" not in str(caught.value)
        assert "\n" not in str(caught.value)
    accented = checkpoint("\xe9" + TEXT)
    with pytest.raises(ViewError, match="different tokens"):
        build_page(accented, excerpt(accented, "\xe9" + TEXT), compare=checkpoint("\xe9" + TEXT, byte=True))
