"""Looking inside: what is extracted is what the model computed, and scores say what heads built by hand do."""

import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from random_models import cells
from torch import Tensor

from minigpt.config.schema import FAMILIES, ModelConfig
from minigpt.errors import UserError
from minigpt.interpret import images, terminal
from minigpt.interpret.excerpt import characters, glyph
from minigpt.interpret.extract import Activations, ablate_heads, extract, logit_lens, patch_attention
from minigpt.interpret.scores import MEASURES, PATTERNS, divergence, head_kinds, head_scores, pattern_keys, span_score
from minigpt.model.gpt import GPT
from minigpt.model.kernels import CPU, TORCH
from minigpt.text.tokenizer import ByteTokenizer, CharTokenizer

V, L, H, T = 11, 3, 2, 9


def model_of(family: str = "modern", **changes: Any) -> GPT:
    """A model all of whose weights matter."""
    shape = {"n_layer": L, "n_head": H, "n_embd": 16, "context": 12}
    torch.manual_seed(1)
    model = GPT(ModelConfig(**{"family": family, **FAMILIES[family], **shape, **changes}), V).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def some_ids(length: int = T) -> np.ndarray:
    return np.random.default_rng(2).integers(0, V, length).astype(np.uint8)


# ---- extraction ----


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rotary", "none"])
@pytest.mark.parametrize("family", ["classic", "modern"])
def test_what_is_extracted_is_what_the_model_computes(family: str, position: str) -> None:
    model, ids = model_of(family, position=position), some_ids()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    outputs: list[Tensor] = []
    hooks = [b.attention.register_forward_hook(lambda m, x, y: outputs.append(y[0].detach())) for b in model.blocks]
    logits = model(torch.tensor(ids[None].astype(int)))[0].detach()
    for hook in hooks:
        hook.remove()
    seen = extract(model, ids)
    assert torch.equal(seen.logits, logits)
    assert seen.max_error < 1e-5
    assert seen.weights.shape == (L, H, T, T)
    assert seen.residual.shape == (L + 1, T, 16)
    assert (seen.weights.sum(-1) - 1).abs().max() < 1e-5
    assert seen.weights.triu(1).abs().max() == 0
    for layer, block in enumerate(model.blocks):
        joined = seen.head_outputs[layer].transpose(0, 1).reshape(T, 16)
        assert torch.allclose(block.attention.proj(joined), outputs[layer], atol=1e-5)
        for head in range(H):
            stages = seen.attention_stages(layer, head)
            assert torch.allclose(stages["softmax"], seen.weights[layer, head], atol=1e-6)
            assert torch.allclose(stages["raw"] / math.sqrt(8), stages["scaled"])
            assert (stages["masked"].triu(1)[0, 1:] == -math.inf).all()
            direct = seen.v[layer, head] @ block.attention.proj.weight[:, 8 * head : 8 * head + 8].T
            assert torch.allclose(seen.output_norms[layer, head], direct.norm(dim=-1), atol=1e-5)
    assert torch.allclose(logit_lens(model, seen.residual)[-1], logits, atol=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("kernels", [CPU, TORCH])
def test_the_model_keeps_its_kernels_and_its_mode(kernels: Any) -> None:
    model = model_of(dropout=0.5).train()
    model.use_kernels(kernels)
    first, second = extract(model, some_ids()), extract(model, some_ids())
    assert model.training
    assert all(block.attention.kernels is kernels for block in model.blocks)
    assert torch.equal(first.weights, second.weights)  # no dropout


def test_bfloat16_agrees_to_its_own_rounding() -> None:
    model = model_of()
    with torch.autocast("cpu", torch.bfloat16):
        seen = extract(model, some_ids())
    assert 1e-5 < seen.max_error < 0.05
    assert (seen.weights - extract(model, some_ids()).weights).abs().max() < 0.1


def test_a_fast_path_that_does_something_else_is_not_shown() -> None:
    model = model_of()

    def everyone_alike(layer: int, attend: Any) -> Any:
        return lambda q, k, v, *_: v.mean(2, keepdim=True).expand_as(v)

    with patch_attention(model, everyone_alike), pytest.raises(UserError, match="cannot show the attention"):
        extract(model, some_ids())
    with torch.no_grad():  # of one layer only, whose values are small, so that the others' outputs are far larger
        model.blocks[1].attention.qkv.weight[32:] *= 1e-5
        model.blocks[1].attention.proj.weight *= 1e5

    def one_layer_alike(layer: int, attend: Any) -> Any:
        return everyone_alike(layer, attend) if layer == 1 else attend

    with (
        patch_attention(model, one_layer_alike),
        pytest.raises(UserError, match=r"layer 1, head [01]"),
    ):
        extract(model, some_ids())
    assert extract(model, some_ids()).max_error < 1e-5


@pytest.mark.parametrize("length", [1, 12])
def test_a_text_of_one_token_and_a_full_context(length: int) -> None:
    seen = extract(model_of(), some_ids(length))
    assert seen.weights.shape == (L, H, length, length)
    assert seen.weights[..., 0, 0].eq(1).all()


def test_a_head_that_is_silenced_writes_nothing() -> None:
    model, ids = model_of(bias=False), torch.tensor(some_ids()[None].astype(int))
    with torch.no_grad():
        usual = model(ids)
        with ablate_heads(model, {(1, 0)}):
            without = model(ids)
        model.blocks[1].attention.proj.weight[:, :8] = 0  # that head's rows of W_O
        assert torch.allclose(model(ids), without, atol=1e-6)
        assert not torch.allclose(usual, without, atol=1e-2)


# ---- heads built by hand ----

LETTERS, SEEN, ONE = 16, 40, 63
"""Where in the stream of the model below stand: the position (from 0), the letter, the letter before, and a one."""


def hand_built() -> GPT:
    """Two layers of four heads, 64 wide: 0.0 looks at the character before, 0.1 everywhere alike, 0.2 at the first,
    0.3 at itself, and 1.0, with the help of 0.0, at what followed the same character earlier."""
    shape = {"n_layer": 2, "n_head": 4, "n_embd": 64, "context": 16}
    model = GPT(ModelConfig(family="classic", **{**FAMILIES["classic"], **shape}), 6).eval()
    large = 1000.0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.token_embedding.weight[:, LETTERS : LETTERS + 6] = torch.eye(6)
        model.position_embedding.weight[:, :16] = torch.eye(16)
        first, second = model.blocks[0], model.blocks[1]
        for block in (first, second):
            block.norm1.weight.fill_(1)
            block.norm1.bias[ONE] = 1
        q, k, v = first.attention.qkv.weight.view(3, 4, 16, 64)
        places = torch.eye(16)
        q[0, :, :16], k[0, :, :16] = large * places.roll(1, 1), places  # row t - 1 asks at place t
        v[0, :6, LETTERS : LETTERS + 6] = torch.eye(6)
        q[2, 0, ONE], k[2, 0, 0] = large, 1.0
        q[3, :, :16], k[3, :, :16] = large * places, places
        first.attention.proj.weight[SEEN : SEEN + 6, :6] = torch.eye(6)
        q, k, v = second.attention.qkv.weight.view(3, 4, 16, 64)
        q[0, :6, LETTERS : LETTERS + 6], k[0, :6, SEEN : SEEN + 6] = large * torch.eye(6), torch.eye(6)
    return model


TEXT = "fabcadbcbaeacbde"
"""Its first letter stands nowhere else: having none before it, 0.0 passes on its own. No letter is doubled: then 1.0
looks at the query itself."""


@pytest.fixture(scope="module")
def by_hand() -> Activations:
    return extract(hand_built(), CharTokenizer("abcdef").encode(TEXT))


def test_heads_built_by_hand_get_the_scores_they_must(by_hand: Activations) -> None:
    scores = head_scores(by_hand.weights, list(TEXT))
    value = {name: score.values for name, score in scores.items()}
    assert value["previous"][0, 0] == pytest.approx(1, abs=1e-6)
    assert value["first"][0, 2] == pytest.approx(1, abs=1e-6)
    assert value["self"][0, 3] == pytest.approx(1, abs=1e-6)
    assert value["induction"][1, 0] == pytest.approx(1, abs=1e-6)
    for name, score in scores.items():  # a head that looks everywhere alike is its own baseline
        if not math.isnan(score.uniform):
            assert score.values[0, 1] == pytest.approx(score.uniform, abs=1e-6), name
    assert value["distance"][0, 0] == pytest.approx(1, abs=1e-6)
    assert value["distance"][0, 2] == pytest.approx(8, abs=1e-6)  # the mean of 1 to 15
    assert math.isnan(value["distance without first"][0, 2])  # nothing of it is left
    assert value["entropy"][0, 0] == pytest.approx(0, abs=1e-6)
    assert value["top"][0, 0] == pytest.approx(1, abs=1e-6)
    assert (value["next"] == 0).all()
    assert by_hand.weights.triu(1).max() == 0
    names = head_kinds(scores)
    assert names[0] == ["previous", "broad", "first", "self"]
    assert names[1][0] == "induction"


def test_a_probe_measures_what_one_string_gives_another_before_it(by_hand: Activations) -> None:
    ids = by_hand.ids.tolist()  # f a b c a d b c b a e a c b d e
    found = span_score(by_hand.weights, ids, query=[4], key=[0])  # e at 10 and 15 asks a at 1, 4, 9, 11
    assert found.values[0, 0] == pytest.approx(1 / 2, abs=1e-6)  # the character before: a at 10, d at 15
    assert found.values[0, 1] == pytest.approx(found.uniform, abs=1e-6)
    assert found.values[0, 2] == pytest.approx(0, abs=1e-6)
    assert found.uniform == pytest.approx((3 / 11 + 4 / 16) / 2)
    first = span_score(by_hand.weights, ids, query=[1, 2], key=[5, 0])  # bc, twice, asks fa
    assert first.values[0, 2] == pytest.approx(1, abs=1e-6)
    assert first.values[0, 0] == pytest.approx(1 / 4, abs=1e-6)  # b at 2 alone has a before it
    assert math.isnan(span_score(by_hand.weights, ids, query=[5], key=[4]).uniform)  # no e before the only f
    assert math.isnan(span_score(by_hand.weights, ids, query=[5], key=[5]).uniform)  # nor another f; itself is none
    again = span_score(by_hand.weights, ids, query=[4], key=[4])  # e at 15 asks e at 10
    assert again.uniform == pytest.approx(1 / 16)
    same = span_score(by_hand.weights, [0, 1, 2, 0, 1, *[3] * 11], query=[0, 1], key=[0, 1])
    assert same.uniform == pytest.approx((2 / 4 + 2 / 5) / 2), "the second ab asks the first, and not itself"
    assert math.isnan(span_score(by_hand.weights, [0, 0, 0, *[1] * 13], query=[0, 0], key=[0, 0]).uniform)


def test_baselines_are_those_of_uniform_attention() -> None:
    scores = head_scores(torch.eye(4).expand(1, 1, 4, 4), list("ab\na"))
    assert scores["previous"].uniform == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)
    assert scores["same"].uniform == pytest.approx(1 / 4)  # only the last has one before it
    assert scores["induction"].uniform == pytest.approx(1 / 4)
    assert scores["entropy"].uniform == pytest.approx((math.log(2) + math.log(3) + math.log(4)) / 3)
    assert scores["distance"].uniform == pytest.approx((0.5 + 1 + 1.5) / 3)
    assert scores["self"].lift.item() == pytest.approx(1 / scores["self"].uniform)


def test_patterns_mark_the_keys_they_mean() -> None:
    keys = {name: found.nonzero().tolist() for name, found in pattern_keys(list("ab cb\nx")).items()}
    assert keys["same"] == [[4, 1]]
    assert keys["induction"] == [[4, 2]]
    assert keys["word"] == [[1, 0], [4, 3]]
    assert keys["line"] == [[1, 0], [2, 0], [3, 0], [4, 0]]
    assert keys["previous"] == [[t, t - 1] for t in range(1, 7)]
    assert keys["next"] == [[t, t + 1] for t in range(6)]


@pytest.mark.parametrize("words", ["हिन्दी भाषा", "cafe\u0301s nai\u0308ve"])
def test_marks_are_parts_of_the_words_that_they_stand_in(words: str) -> None:
    starts, space = pattern_keys(list(words))["word"], words.index(" ")
    for place in range(1, len(words)):
        start = 0 if place < space else space + 1
        assert starts[place].nonzero().flatten().tolist() == ([start] if place not in (space, start) else [])


def test_induction_looks_at_earlier_places_only() -> None:
    assert pattern_keys(list("aab"))["induction"].nonzero().tolist() == []
    assert pattern_keys(list("aaba"))["induction"].nonzero().tolist() == [[3, 1], [3, 2]]


def test_bytes_of_a_letter_are_part_of_its_word() -> None:
    keys = pattern_keys(["c", "a", "f", "\\xC3", "\\xA9", " "])["word"].nonzero().tolist()
    assert keys == [[1, 0], [2, 0], [3, 0], [4, 0]]


@pytest.mark.parametrize("text", ["a", "\n", "aaaa", "ab"])
def test_texts_without_such_places_have_no_score_there(text: str) -> None:
    T = len(text)
    scores = head_scores(torch.ones(2, 2, T, T).tril() / torch.arange(1, T + 1)[:, None], list(text))
    assert scores.keys() == PATTERNS.keys() | MEASURES.keys()
    if T == 1:
        assert all(math.isnan(score.uniform) for score in scores.values())
        assert head_kinds(scores) == [["mixed"] * 2] * 2
    assert all(score.values.shape == (2, 2) for score in scores.values())


def test_heads_differ_from_others_and_not_from_themselves(by_hand: Activations) -> None:
    apart = divergence(by_hand.weights)
    assert apart.diagonal().abs().max() < 1e-9
    assert torch.allclose(apart, apart.T)
    assert apart[0, 3] == pytest.approx(1)  # one character before, and itself: nothing in common


# ---- shown ----


def test_every_character_can_be_seen() -> None:
    shown = {" ": "␣", "\n": "↵", "\t": "⇥", "\0": "␀", "a": "a", "我": "我", "\u0301": "◌\u0301", "\u2028": "U+2028"}
    assert {character: glyph(character) for character in shown} == shown
    assert glyph("\u200f") == "U+200F"
    assert [glyph(character) for character in "\u3164\u2800"] == ["U+3164", "U+2800"]
    assert glyph("\ue000") == "U+E000"


def test_bytes_that_are_no_characters_are_shown_as_numbers() -> None:
    tokenizer = ByteTokenizer()
    assert characters(tokenizer, tokenizer.encode("a é")) == ["a", " ", "\\xC3", "\\xA9"]
    assert glyph("\\xC3") == "\\xC3"


def test_pictures_show_the_weights(by_hand: Activations) -> None:
    one = images.head_image(by_hand.weights[0, 0])
    factor = one.width // 16
    at = np.asarray(one)[::factor, ::factor]
    assert (at == images.to_shades(by_hand.weights[0, 0])).all()
    assert at[5, 4] == images.SHADES - 1
    image = Image.open(io.BytesIO(images.to_png(images.grid_image(by_hand.weights, range(2), range(4)))))
    found = cells(image, 2, 4, 16)  # four heads beside each other, two layers
    assert (found == images.to_shades(by_hand.weights)).all()
    assert found[0][:, 5, [0, 4, 5]].argmax(0).tolist() == [2, 0, 3]  # who looks at the first, the one before, itself
    for shown in (one, image):
        assert (np.reshape(shown.getpalette(), (-1, 3)) == images.PALETTE).all()


def test_a_part_of_the_heads_keeps_its_numbers(by_hand: Activations) -> None:
    part = by_hand.weights[1:, 2:]
    first = np.asarray(images.grid_image(part, [1], [2, 3]))
    again, other = np.asarray(images.grid_image(part, [1], [2, 3])), np.asarray(images.grid_image(part, [0], [0, 1]))
    assert (first == again).all()
    margin = images.MARGIN
    assert (first[:margin] != other[:margin]).any()  # head 2 and head 3, not 0 and 1
    assert (first[margin:, :margin] != other[margin:, :margin]).any()
    assert (first[margin:, margin:] == other[margin:, margin:]).all()


def test_shades_rise_with_the_weight() -> None:
    shades = images.to_shades(torch.linspace(0, 1, 1001)).astype(int)
    assert (np.diff(shades) >= 0).all()
    assert (shades[0], shades[-1]) == (0, images.SHADES - 1)
    light = images.PALETTE[: images.SHADES].astype(int).sum(1)
    assert (np.diff(light) <= 0).all()  # readable in grey


def test_a_terminal_shows_weights_with_colours_and_without() -> None:
    row = torch.tensor([0.0, 0.25, 0.5, 0.25])
    coloured = terminal.colored_text(list("a\n\x1bd"), row, 3)
    assert coloured.count(terminal.RESET) == 4
    assert "\x1b[48" in coloured
    assert "\x1b\x1b" not in coloured  # the text's own escape drives nothing
    assert terminal.block_text(list("a\n\x1bd"), row, 3) == "a↵\n ▓\n␛d\n█^"


def test_marks_without_a_width_take_no_column() -> None:
    """Most of them are no combining characters in Unicode's narrow sense."""
    assert [terminal.display_width(word) for word in ("กำลัง", "हिन्दी", "e\u0301", "我", "a\u20dd")] == [4, 5, 1, 2, 1]


def test_blocks_stand_below_their_characters_however_wide() -> None:
    text = list("我a\u0301吃b")
    lines = terminal.block_text(text, torch.tensor([1.0, 0, 1.0, 0, 0]), 4, width=6).splitlines()
    assert lines == ["我a◌\u0301吃", "██ █  ", "b", "^"]
    for line, blocks in zip(lines[::2], lines[1::2], strict=True):
        assert terminal.display_width(line) == len(blocks) <= 6


def test_a_model_whose_activations_are_not_finite_is_one_line() -> None:
    """The page was a traceback: its JSON has no infinity."""
    model = model_of()
    with torch.no_grad():
        model.blocks[0].mlp.up.weight.fill_(3e38)
    with pytest.raises(UserError, match="activations are not finite"):
        extract(model, some_ids())
