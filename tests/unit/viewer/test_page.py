"""The page of `inspect`, without a browser: what is packed comes back, nothing is left open, the same is the same."""

import base64
import hashlib
import io
import json
import math
import re
import zlib
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from random_models import TEXT, cells, checkpoint, excerpt

from minigpt.errors import UserError
from minigpt.interpret import images
from minigpt.interpret.excerpt import generated_excerpt
from minigpt.interpret.extract import Activations, ablate_heads, extract
from minigpt.model.gpt import attention_weights
from minigpt.model.load import load_model
from minigpt.sampling.generate import generate_ids
from minigpt.training.evaluate import evaluate
from minigpt.viewer import document, packing, views
from minigpt.viewer import page as page_of
from minigpt.viewer.page import build_page

HOSTILE = "</script><img src=x onerror=alert(1)>&\"'"
HOSTILE += "\u2028\u2029אבג e\u0301\u200d👩\u200d🚀\x00\x1b我想吃酸菜鱼\n\t\r\x85\xa0<!--]]>"


class Parts(HTMLParser):
    """The tags of a page with their attributes, and the content of each script and style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside.append((tag, dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style"):
            tag, attributes, before = self.inside[-1]
            self.inside[-1] = (tag, attributes, before + data)

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", {}))


def data_of(page: str) -> dict[str, Any]:
    (content,) = [c for tag, a, c in Parts(page).inside if a.get("id") == "data"]
    return json.loads(content)


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    digits = packed["data"].translate(str.maketrans(".,:", "<>&"))
    raw = zlib.decompress(base64.b85decode(digits))
    codes = np.frombuffer(raw, {"u8": np.uint8, "u16": "<u2", "f32": "<f4"}[packed["type"]]).reshape(packed["shape"])
    if "low" not in packed:
        return codes
    flat = codes.reshape(len(packed["low"]), -1)
    return (np.array(packed["low"])[:, None] + flat * np.array(packed["step"])[:, None]).reshape(codes.shape)


def peaky(layers: int, heads: int, T: int) -> torch.Tensor:
    """Attention as trained models have it: near, at the start, and at some places that all look at."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, layers, heads, T, 16, generator=generator).unbind(0)
    back = (torch.arange(T)[:, None] - torch.arange(T)).clamp_min(0)
    slope = torch.rand(layers, heads, 1, 1, generator=generator) * 0.2
    scores = q @ k.transpose(-2, -1) / 4 - slope * back
    scores[..., 0] += 2
    return scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf).softmax(-1)


# ---- packing ----


def test_a_level_has_the_two_decimals_of_its_weight() -> None:
    """What the page writes is what the float32 weight rounds to."""
    weights = np.random.default_rng(0).random(200_000).astype(np.float32) ** 3
    ties = np.array([0, 1, 0.125, 0.375, 0.005, 0.145, 0.995, 1e-9], dtype=np.float32)
    weights = np.concatenate([weights, ties, np.nextafter(ties[1:], np.float32(0))])
    shown = packing.LEVELS[packing.to_levels(weights)]
    assert [f"{a:.2f}" for a in shown] == [f"{a:.2f}" for a in weights]
    assert np.abs(shown - weights).max() <= 0.005 + 1e-6
    assert np.abs(np.sqrt(shown) - np.sqrt(weights)).max() < 0.012  # what the eye sees


def test_levels_are_in_the_order_of_the_weights() -> None:
    weights = np.linspace(0, 1, 30_001).astype(np.float32)
    assert (np.diff(packing.to_levels(weights).astype(int)) >= 0).all()
    assert (np.diff(packing.LEVELS) > 0).all()
    assert len(packing.LEVELS) <= 256


def test_attention_comes_back_as_its_lower_triangle() -> None:
    weights = peaky(2, 3, 17)
    found = unpacked(packing.pack_attention(weights))
    rows, columns = np.tril_indices(17)
    assert found.shape == (2, 3, 17 * 18 // 2)
    exact = weights.numpy()[..., rows, columns]
    assert np.abs(packing.LEVELS[found] - exact).max() <= 0.005 + 1e-6
    start = 5 * 6 // 2  # of the fifth row
    assert np.abs(packing.LEVELS[found[1, 2, start : start + 6]] - weights[1, 2, 5, :6].numpy()).max() <= 0.005


@pytest.mark.parametrize("steps", [31, 255, 1023, 65535])
def test_scaled_tables_are_as_exact_as_their_steps(steps: int) -> None:
    tables = torch.randn(3, 7, 5) * torch.tensor([0.01, 1, 100])[:, None, None]
    tables[1] = 4.25  # no range at all
    found = unpacked(packing.pack_scaled(tables, steps))
    span = tables.flatten(1).amax(1) - tables.flatten(1).amin(1)
    assert (np.abs(found - tables.numpy()) <= span[:, None, None].numpy() * 0.51 / steps + 1e-4).all()


def test_exact_numbers_come_back_bit_for_bit() -> None:
    numbers = torch.randn(4, 5)
    assert (unpacked(packing.pack_exact(numbers)) == numbers.numpy()).all()
    assert (unpacked(packing.pack_integers(torch.arange(300))) == np.arange(300)).all()


# ---- the file ----


def test_the_same_checkpoint_and_text_give_the_same_bytes() -> None:
    first, second = checkpoint(), checkpoint()
    assert build_page(first, excerpt(first)) == build_page(second, excerpt(second))


def test_everything_asked_for_is_in_the_page() -> None:
    loaded = checkpoint(context=64)
    text = excerpt(loaded, TEXT[:60])
    other = checkpoint(layers=3, seed=5, name="other", context=64)
    plain = data_of(build_page(loaded, text))
    assert [plain[name] for name in ("detail", "ablation", "training", "compare")] == [None] * 4
    steps = [checkpoint(step=step, seed=step) for step in (1, 2)]
    full = data_of(
        build_page(loaded, text, detail=True, ablation_tokens=text.ids, steps=iter(steps), compare=other, layers=[1])
    )
    assert full["layers"] == [1]
    assert [frame["step"] for frame in full["training"]["frames"]] == [1, 2]
    assert full["compare"]["layers"] == [1]
    seen = extract(load_model(loaded), text.ids)
    assert (unpacked(full["detail"]["q"]) == seen.q[1:].numpy()).all()
    assert (unpacked(full["attention"]["strongest"]) == seen.weights[1:].argmax(-1).numpy()).all()


def test_the_ablation_is_the_loss_without_the_head() -> None:
    loaded = checkpoint()
    tokens = loaded.tokenizer.encode(TEXT)
    told: list[tuple[int, int]] = []
    found = data_of(
        build_page(loaded, excerpt(loaded), ablation_tokens=tokens, progress=lambda *done: told.append(done))
    )
    base = evaluate(load_model(loaded), tokens, loaded.tokenizer).loss
    with ablate_heads(load_model(loaded), [(1, 0)]):
        without = evaluate(load_model(loaded), tokens, loaded.tokenizer).loss
    assert found["ablation"]["increases"][1][0] == pytest.approx(without - base, abs=1e-5)
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_predictions_are_the_models_own() -> None:
    loaded = checkpoint()
    text = excerpt(loaded)
    found = data_of(build_page(loaded, text))
    logits = load_model(loaded)(torch.tensor(text.ids[None].astype(int)))[0].detach()
    shown = unpacked(found["predictions"]["permille"])[-1, 7]
    exact = logits[7].softmax(-1).topk(5)
    assert np.abs(shown / 1000 - exact.values.numpy()).max() <= 0.0006
    signs = unpacked(found["predictions"]["symbols"])[-1, 7]
    assert [found["symbols"][i][1] for i in signs] == [
        views.character_name(loaded.tokenizer.decode([i])) for i in exact.indices.tolist()
    ]
    surprise = -logits[7].log_softmax(-1)[int(text.ids[8])].item() / math.log(2)
    assert found["predictions"]["surprisal"][7] == pytest.approx(surprise, rel=1e-3)


@pytest.mark.parametrize(("family", "position"), [("modern", "rotary"), ("classic", "learned"), ("modern", "none")])
def test_the_qk_table_is_the_score_that_one_layer_gives(family: str, position: str) -> None:
    """Two characters alone: the score of the second over the first is that of the table, where no position adds."""
    loaded = checkpoint("ab", family=family, position=position, context=8)
    if position == "learned":
        loaded.weights["position_embedding.weight"][:] = 0
    text = excerpt(loaded, "ba")
    seen = extract(load_model(loaded), text.ids)
    found = unpacked(views.characters_view(loaded, seen, text, [0, 1], views.Symbols())["qk"])
    for head in range(2):
        score = seen.attention_stages(0, head)["scaled"][1, 0].item()
        span = found[head].max() - found[head].min()
        assert found[head][0, 1] == pytest.approx(score, abs=span / 15)


def test_the_ov_table_is_what_a_head_adds_to_the_logits() -> None:
    """A character alone looks at itself: its row is what the head writes, through the last norm and the embedding."""
    loaded = checkpoint("abcdefgh", context=8)
    model, text = load_model(loaded), excerpt(loaded, "c")
    seen = extract(model, text.ids)
    found = unpacked(views.characters_view(loaded, seen, text, [0, 1], views.Symbols())["ov"])  # (L H, N, N)
    size = seen.residual[-1, 0].square().mean().sqrt()
    D = model.config.n_embd // model.config.n_head
    for head in range(model.config.n_head):
        weight = model.blocks[0].attention.proj.weight.detach()[:, head * D : (head + 1) * D]  # type: ignore[union-attr, index]
        written = model.norm.weight.detach() * (weight @ seen.head_outputs[0, head, 0])  # (C,)
        raised = model.token_embedding.weight.detach() @ written / size  # (V,)
        span = found[head].max() - found[head].min()
        assert span > 0
        assert np.abs(found[head][text.ids[0]] - (raised - raised.mean()).numpy()).max() <= span / 30 + 1e-6


def test_a_model_of_width_one_has_a_page() -> None:
    """Less its own mean its stream is nothing, by which the last norm would divide."""
    loaded = checkpoint("ab", heads=1, width=1, family="classic", position="learned", context=8)
    assert data_of(build_page(loaded, excerpt(loaded, "ba")))["heads"] == 1


@pytest.mark.parametrize("length", [1, 30])
def test_what_a_model_of_bytes_draws_itself_is_shown_byte_by_byte(length: int) -> None:
    """Read back from text, bytes that are no character would be others, or none."""
    loaded = checkpoint(byte=True, context=64)
    drawn = generated_excerpt(loaded, length)
    settings = loaded.config.sample.model_copy(update={"length": length})
    prompt = torch.tensor(loaded.tokenizer.encode(settings.prompt).astype("int64"))
    assert drawn.ids.tolist() == [int(token) for token, _ in generate_ids(load_model(loaded), prompt, settings)]
    assert any(byte > 127 for byte in drawn.ids) or length == 1


def test_large_vocabularies_show_the_most_frequent_characters() -> None:
    loaded = checkpoint("".join(map(chr, range(0x4E00, 0x4E00 + 400))) + TEXT, byte=False)
    found = data_of(build_page(loaded, excerpt(loaded)))["characters"]
    assert len(found["symbols"]) == 128
    assert found["vocab_size"] > 400
    named = {found_sign[1] for found_sign in (data_of(build_page(loaded, excerpt(loaded)))["symbols"])}
    assert {"e", "space", "newline"} <= named


def test_hostile_text_neither_ends_nor_opens_a_tag() -> None:
    loaded = checkpoint(HOSTILE, name="</script><img src=x onerror=alert(1)>&\"'\u202e")
    page = build_page(loaded, excerpt(loaded, HOSTILE, source=HOSTILE))
    parts = Parts(page)
    assert sum(tag == "img" for tag, _ in parts.tags) == 1  # that of noscript
    assert sum(tag == "script" for tag, _ in parts.tags) == sum(tag == "/script" for tag, _ in parts.tags) == 2
    assert not [a for _, a in parts.tags if any(name.startswith("on") or name == "style" for name in a)]
    (content,) = [c for tag, a, c in parts.inside if a.get("id") == "data"]
    assert not set("<>&\u2028\u2029\x00") & set(content)
    assert "\x00" not in page
    assert "\u202e" not in page
    shown = [data_of(page)["symbols"][i] for i in data_of(page)["text"]["symbols"]]
    assert len(shown) == len(HOSTILE)
    assert all(sign.strip() and sign.isprintable() for sign, _, _ in shown)


def test_the_policy_allows_the_pages_own_script_and_style_only() -> None:
    loaded = checkpoint()
    page = build_page(loaded, excerpt(loaded))
    parts = Parts(page)
    (policy,) = [a["content"] for tag, a in parts.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    for kind in ("script", "style"):
        (content,) = [c for tag, a, c in parts.inside if tag == kind and not a]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert "unsafe" not in policy
    linked = [v for _, a in parts.tags for k, v in a.items() if k in ("src", "href")]
    assert all(address.startswith("data:") for address in linked)
    assert not re.search(r"https?://", page)


def test_text_reaches_the_page_as_text_only() -> None:
    scripts = [file.read_text(encoding="utf-8") for file in document.HERE.glob("*.js")]
    assert len(scripts) == len(document.SCRIPTS)
    for way_in in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "srcdoc"):
        assert not any(way_in in script for script in scripts), way_in


def test_the_page_names_no_folder_and_no_time() -> None:
    loaded = checkpoint()
    page = build_page(loaded, excerpt(loaded))
    assert "/nowhere" not in page
    assert not re.search(r"\b20\d\d-\d\d-\d\d", page)


@pytest.mark.parametrize("length", [32, len(TEXT)])
def test_a_reader_without_scripts_sees_all_heads(length: int) -> None:
    """The weights themselves, or of a longer text the greatest of each few, in 32 shades."""
    loaded = checkpoint(layers=3, heads=4)
    text = excerpt(loaded, TEXT[:length])
    (found,) = re.findall(r'src="data:image/png;base64,([^"]+)"', build_page(loaded, text))
    image = Image.open(io.BytesIO(base64.b64decode(found)))
    assert image.width > image.height > 3 * 64
    weights = extract(load_model(loaded), text.ids).weights
    shades = images.to_shades(weights if length == 32 else views.downsample(weights))
    assert np.abs(cells(image, 3, 4, 32) - shades.astype(int)).max() <= 0.5 / 31 * images.SHADES + 1
    colours = image.convert("L")
    assert colours.getextrema()[0] < 100 < 240 < colours.getextrema()[1]


def test_six_layers_of_six_heads_over_256_characters_are_less_than_a_megabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = peaky(6, 6, 256)

    def with_other_weights(model: Any, ids: Any) -> Activations:
        seen = extract(model, ids)
        return Activations(**{**vars(seen), "weights": weights})

    monkeypatch.setattr(page_of, "extract", with_other_weights)
    letters = "".join(map(chr, range(33, 33 + 65)))
    loaded = checkpoint(letters, layers=6, heads=6, width=96, context=256)
    text = "".join(np.random.default_rng(0).choice(list(letters), 256))
    size = len(build_page(loaded, excerpt(loaded, text)).encode())
    assert size < 1_000_000, f"{size:,} bytes"


# ---- what is said ----


def words_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page.split("<script")[0]))


def test_run_step_loss_and_source_are_on_the_page() -> None:
    loaded = checkpoint(step=1234, loss=1.2345, name="my run")
    words = words_of(build_page(loaded, excerpt(loaded, source="validation split from 0")))
    for said in ("my run", "1,234", "1.2345", "2 layers x 2 heads", "validation split from 0"):
        assert said in words
    assert "untrained" not in words
    assert "Attention is not by itself an explanation" in build_page(loaded, excerpt(loaded))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"step": 0, "loss": None}, "This model is untrained (step 0)"),
        ({"loss": math.log(len(set(TEXT))) - 0.04}, "has learned next to nothing"),
        ({"loss": 1.0}, None),
    ],
)
def test_an_untrained_model_is_called_so(changes: dict[str, Any], said: str | None) -> None:
    loaded = checkpoint(**changes)
    words = words_of(build_page(loaded, excerpt(loaded)))
    assert (said in words) if said else ("chance" not in words)


def test_a_cut_text_is_said() -> None:
    loaded = checkpoint()
    assert "300 tokens before these are left out" in words_of(build_page(loaded, excerpt(loaded, skipped=300)))


def test_what_cannot_be_shown_is_one_helpful_line() -> None:
    loaded = checkpoint()
    text = excerpt(loaded)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("--layers: this model has layers 0 to 1", {"layers": [2]}),
        ("--layers: this model has layers 0 to 1", {"layers": []}),
        ("add --max-chars 64", {"detail": True}),
        ("give --max-chars 16", {"compare": checkpoint(context=16)}),
        ("other tokens", {"compare": checkpoint("\xe9" + TEXT, byte=True)}),
        ("does not know", {"compare": checkpoint("abc")}),
        ("20 checkpoints at most", {"steps": [loaded] * 21}),
        ("another shape", {"steps": [checkpoint(layers=3)]}),
    ]
    accented = checkpoint("\xe9" + TEXT)
    for said, options in cases:
        asked = (accented, excerpt(accented, "\xe9" + TEXT)) if said == "other tokens" else (loaded, text)
        with pytest.raises(UserError, match=re.escape(said)) as caught:
            build_page(*asked, **options)
        assert "\n" not in str(caught.value)


def test_a_huge_page_needs_force_and_a_large_one_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = checkpoint()
    text = excerpt(loaded)
    size = len(build_page(loaded, text).encode())
    monkeypatch.setattr(page_of, "LARGE", size - 1)
    said: list[str] = []
    page = build_page(loaded, text, say=said.append)
    assert len(said) == 1
    assert "--layers or --max-chars" in said[0]
    monkeypatch.setattr(page_of, "TOO_LARGE", size - 1)
    with pytest.raises(UserError, match=r"--layers or --max-chars .* --force"):
        build_page(loaded, text)
    assert build_page(loaded, text, force=True) == page


@pytest.mark.parametrize("text", ["a", "\n", "ap"])
@pytest.mark.parametrize("vocabulary", ["", TEXT])
def test_the_smallest_texts_and_vocabularies(text: str, vocabulary: str) -> None:
    loaded = checkpoint(text[0] + vocabulary if vocabulary else text, context=8)
    assert len(data_of(build_page(loaded, excerpt(loaded, text), detail=True))["text"]["symbols"]) == len(text)


def test_bytes_are_named() -> None:
    loaded = checkpoint(byte=True)
    found = data_of(build_page(loaded, excerpt(loaded, "a é\n")))
    assert [found["symbols"][i][:2] for i in found["text"]["symbols"]] == [
        ["a", "a"], ["␣", "space"], ["\\xC3", "byte C3"], ["\\xA9", "byte A9"], ["↵", "newline"],
    ]  # fmt: skip


def test_words_and_lines_begin_where_they_should() -> None:
    loaded = checkpoint("it's a b\nc")
    found = data_of(build_page(loaded, excerpt(loaded, "it's a b\nc")))["text"]
    assert found["words"] == [0, 4, 5, 6, 7, 8, 9]
    assert found["lines"] == [0, 9]


def test_weights_shown_are_those_of_the_explicit_formula() -> None:
    loaded = checkpoint()
    text = excerpt(loaded)
    seen = extract(load_model(loaded), text.ids)
    exact = attention_weights(seen.q, seen.k).numpy()
    T = len(text.ids)
    rows, columns = np.tril_indices(T)
    found = packing.LEVELS[unpacked(data_of(build_page(loaded, text))["attention"]["weights"])]
    assert [f"{a:.2f}" for a in found.ravel()] == [f"{a:.2f}" for a in exact[..., rows, columns].ravel()]
