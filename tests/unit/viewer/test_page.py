"""The page as a file: reproducible, self-contained, safe for any text, and true to the model."""

import base64
import hashlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pages import Elements, page_data, page_json, unpack
from random_models import TEXT, checkpoint, excerpt, recurrent

from minigpt.config.presets import presets, read_preset
from minigpt.config.resolve import resolve
from minigpt.config.shapes import parameter_shapes
from minigpt.errors import UserError, ViewError
from minigpt.interpret.extract import ablate_heads
from minigpt.model.load import load_model, load_transformer
from minigpt.storage.checkpoint import Checkpoint
from minigpt.storage.metadata import Origin
from minigpt.viewer import document
from minigpt.viewer import page as viewer_page
from minigpt.viewer.packing_weights import dequantized, packed_size
from minigpt.viewer.page import Start, build_page

HOSTILE = "</script><img src=x onerror=alert(1)>&\"'"
HOSTILE += "\u2028\u2029אבג e\u0301\u200d👩\u200d🚀\x00\x1b我想吃酸菜鱼\n\t\r\x85\xa0<!--]]>"


def rounded(loaded: Checkpoint) -> Checkpoint:
    """Return a checkpoint with the weights that the page has."""
    return replace(loaded, weights=dequantized(loaded.weights))


def probabilities(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    found: torch.Tensor = model(torch.tensor([ids]))[0].softmax(-1)
    return found


def test_the_same_checkpoint_and_text_give_the_same_bytes() -> None:
    first, second = checkpoint(), checkpoint()
    assert build_page(first, excerpt(first)) == build_page(second, excerpt(second))


def test_the_page_has_the_weights_and_minigpts_own_logits() -> None:
    loaded = checkpoint()
    (model,) = page_data(build_page(loaded, excerpt(loaded)))["models"]
    weights = {name: unpack(packed) for name, packed in model["weights"].items()}
    assert weights.keys() == loaded.weights.keys()
    for name, weight in loaded.weights.items():
        step = 0 if weight.ndim < 2 else np.abs(weight).max(1, keepdims=True) / 127
        assert (np.abs(weights[name] - weight) <= step / 2 + 1e-7).all()
    same = load_transformer(replace(loaded, weights=weights))
    ids = model["check"]["ids"]
    logits = same(torch.tensor([ids]))[0, -1].tolist()
    assert model["check"]["logits"] == pytest.approx(logits, abs=1e-5)
    text = loaded.tokenizer.encode(TEXT).tolist()
    change = (probabilities(same, text) - probabilities(load_model(loaded), text)).abs().max().item()
    assert model["rounding"] == pytest.approx(change, abs=1e-6)
    assert change > 0


def test_the_page_says_how_many_predictions_each_head_breaks() -> None:
    loaded = checkpoint(layers=2, heads=3, width=48)
    data = page_data(build_page(loaded, excerpt(loaded)))
    ids, model = loaded.tokenizer.encode(data["text"]).tolist(), load_transformer(rounded(loaded))
    likeliest = probabilities(model, ids).argmax(-1)
    for layer in range(2):
        for head in range(3):
            with ablate_heads(model, {(layer, head)}):
                without = probabilities(model, ids)
            broken = (without.argmax(-1) != likeliest)[len(ids) // 2 :].double().mean().item()
            assert data["models"][0]["heads"][layer][head]["breaks"] == pytest.approx(broken)
    assert len(ids) // 2 <= data["selected"] < len(ids) - 1


@pytest.mark.parametrize("text", ["Spe", "ear", "men", "All", "we ", "any"])
def test_the_page_never_starts_at_the_last_letter(text: str) -> None:
    loaded = checkpoint()
    assert page_data(build_page(loaded, excerpt(loaded, text)))["selected"] == 1


def test_a_start_of_ones_own() -> None:
    loaded = checkpoint()
    text = excerpt(loaded)
    data = page_data(build_page(loaded, text, start=Start(layer=1, at_end=True)))
    assert (data["selected"], data["head"][0]) == (len(text.ids) - 1, 1)
    assert page_data(build_page(loaded, text, start=Start(1, 0)))["head"] == [1, 0]
    for start in (Start(layer=2), Start(head=-1)):
        with pytest.raises(UserError, match="no such head: this model has layers 0 to 1, with heads 0 to 1"):
            build_page(loaded, text, start=start)
    with pytest.raises(UserError, match="has no layers of heads"):
        build_page(recurrent(), text, start=Start(layer=0))


def test_other_models_share_the_vocabulary() -> None:
    loaded = checkpoint()
    text = excerpt(loaded)
    short = checkpoint(layers=3, seed=5, name="other", context=16)
    models = page_data(build_page(loaded, text, others=[checkpoint(step=1, seed=1), short]))["models"]
    assert [(model["name"], model["step"], len(model["heads"])) for model in models] == [
        ("made", 100, 2), ("made", 1, 2), ("other", 100, 3),
    ]  # fmt: skip
    assert models[2]["check"]["ids"] == models[0]["check"]["ids"][-16:]
    with pytest.raises(ViewError, match="cannot compare with made: its vocabulary is different"):
        build_page(loaded, text, others=[checkpoint("abc")])


def test_models_that_are_too_large_for_one_page_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = checkpoint(), checkpoint(width=48, name="large")
    monkeypatch.setattr(viewer_page, "MAX_WEIGHTS", packed_size(small.weights) + packed_size(large.weights) - 1)
    build_page(large, excerpt(large))
    monkeypatch.setattr(viewer_page, "load_model", lambda checkpoint: pytest.fail("computed something"))
    with pytest.raises(ViewError, match=r"the weights of made and large take .* MB, and a page has room for"):
        build_page(small, excerpt(small), others=[large])
    monkeypatch.setattr(viewer_page, "MAX_WEIGHTS", packed_size(large.weights) - 1)
    with pytest.raises(ViewError, match="the weights of large take"):
        build_page(large, excerpt(large))


def test_every_preset_fits() -> None:
    for name in presets():
        shapes = parameter_shapes(resolve(*read_preset(name)).config.model, 65)
        weights = {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}
        assert packed_size(weights) < viewer_page.MAX_WEIGHTS, name


def test_a_recurrent_network_has_no_heads() -> None:
    loaded = recurrent()
    data = page_data(build_page(loaded, excerpt(loaded)))
    (model,) = data["models"]
    assert (data["head"], model["heads"], model["config"]["family"]) == (None, [], "lstm")


@pytest.mark.parametrize("text", ["a", "\n", "ap"])
def test_the_smallest_texts_and_vocabularies_work(text: str) -> None:
    loaded = checkpoint(text, context=8)
    data = page_data(build_page(loaded, excerpt(loaded, text)))
    assert data["text"] == text
    assert 0 <= data["selected"] < len(text)
    assert bool(data["warnings"]) == (len(text) > 1), "of one character, there is nothing to learn"


def test_parts_of_characters_are_cut_from_the_ends() -> None:
    loaded = checkpoint(byte=True)
    text = excerpt(loaded, "é a é")
    cut = replace(text, ids=text.ids[1:-1])
    data = page_data(build_page(loaded, cut))
    assert data["text"] == " a "
    assert "vocabulary" not in data
    for ids, expected in (([0xC3, ord("a"), 0xC3, ord("b")], "a?b"), ([0xC3], "?")):
        assert page_data(build_page(loaded, replace(cut, ids=np.array(ids))))["text"] == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.2, "0 seconds"), (1, "1 second"), (89, "89 seconds"), (125, "2 minutes"), (9000, "2 hours")],
)
def test_the_page_says_how_long_the_model_was_trained(seconds: float, expected: str) -> None:
    loaded = checkpoint()
    loaded.metadata.state.seconds = seconds
    page = build_page(loaded, excerpt(loaded))
    assert page_data(page)["models"][0]["summary"] == f"trained in {expected}"


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
    page = build_page(loaded, excerpt(loaded))
    assert bool(page_data(page)["warnings"]) == warning


def test_a_model_with_the_weights_of_another_is_not_untrained() -> None:
    loaded = checkpoint(step=0, loss=None)
    imported = {"imported": "nanoGPT"}
    tuned = {"origin": Origin(run="first-1", step=30, sha256="")}
    for changes, said in ((imported, "imported from nanoGPT"), (tuned, "with the weights of first-1, step 30")):
        one = replace(loaded, metadata=loaded.metadata.model_copy(update=changes))
        data = page_data(build_page(one, excerpt(one)))
        assert (data["warnings"], data["models"][0]["summary"]) == ([], said)


@pytest.mark.parametrize(("chosen", "selected"), [(0, 0), (1, 4), (3, 4), (4, 4), (5, 6), (7, 7)])
def test_the_selected_byte_ends_a_character(monkeypatch: pytest.MonkeyPatch, chosen: int, selected: int) -> None:
    monkeypatch.setattr(viewer_page, "_choose_start", lambda *_: (chosen, (0, 0)))
    loaded = checkpoint(byte=True)
    assert page_data(build_page(loaded, excerpt(loaded, "a😀яb")))["selected"] == selected


def test_a_cut_text_gets_a_warning() -> None:
    loaded = checkpoint()
    (warning,) = page_data(build_page(loaded, excerpt(loaded, skipped=300)))["warnings"]
    assert "first 300 tokens" in warning


def test_hostile_text_cannot_open_or_close_an_element() -> None:
    loaded = checkpoint(HOSTILE, name="</script><img src=x onerror=alert(1)>&\"'\u202e")
    page = build_page(loaded, excerpt(loaded, HOSTILE))
    tags = Elements(page).tags
    assert not [tag for tag, _ in tags if tag == "img"]
    assert sum(tag == "script" for tag, _ in tags) == sum(tag == "/script" for tag, _ in tags) == 2
    assert not [a for _, a in tags if any(name.startswith("on") or name == "style" for name in a)]
    assert not set("<>&\u2028\u2029\x00") & set(page_json(page))
    assert not set("\x00\x1b\u2028\u202e") & set(page)
    data = page_data(page)
    assert data["text"] == HOSTILE
    assert "".join(data["vocabulary"]) == "".join(sorted(set(HOSTILE)))


def test_the_policy_allows_only_the_script_and_style_of_the_page() -> None:
    loaded = checkpoint()
    page = build_page(loaded, excerpt(loaded))
    elements = Elements(page)
    (policy,) = [a["content"] for _, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    hashes = {}
    for kind in ("script", "style"):
        (content,) = [content for tag, a, content in elements.contents if tag == kind and not a]
        hashes[kind] = f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
    assert policy.split("; ") == [
        "default-src 'none'", f"script-src {hashes['script']}", f"style-src {hashes['style']}", "img-src data:",
        "worker-src blob:", "base-uri 'none'", "form-action 'none'",
    ]  # fmt: skip
    links = [value or "" for _, a in elements.tags for name, value in a.items() if name in ("src", "href")]
    assert all(address.startswith("data:") for address in links)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_is_not_finite_is_a_typed_error(number: float) -> None:
    with pytest.raises(ViewError, match="not finite"):
        document.embed_json({"values": [number]})


def test_the_page_contains_no_path() -> None:
    loaded = replace(checkpoint(), path=Path("/nowhere/private/runs/mine/checkpoints/step-00000100"))
    page = build_page(loaded, excerpt(loaded))
    assert "mine" in page
    assert "private" not in page
