"""The data of each view agrees with the model."""

import math

import numpy as np
import pytest
import torch
from pages import page_data, unpack
from random_models import TEXT, attention_stages, checkpoint, excerpt

from minigpt.interpret.extract import ablate_heads, extract
from minigpt.model.gpt import attention_weights
from minigpt.model.load import load_model
from minigpt.training.evaluate import evaluate
from minigpt.viewer import packing, views
from minigpt.viewer.page import build_page


def test_weights_are_those_of_the_reference_to_two_decimals() -> None:
    loaded = checkpoint()
    text = excerpt(loaded)
    activations = extract(load_model(loaded), text.ids)
    exact = attention_weights(activations.q, activations.k).numpy()
    rows, columns = np.tril_indices(len(text.ids))
    shown = packing.LEVELS[unpack(page_data(build_page(loaded, text))["attention"]["weights"])]
    assert [f"{a:.2f}" for a in shown.ravel()] == [f"{a:.2f}" for a in exact[..., rows, columns].ravel()]


def test_ablation_is_the_increase_of_the_loss() -> None:
    loaded = checkpoint()
    model, tokens = load_model(loaded), loaded.tokenizer.encode(TEXT)
    calls: list[tuple[int, int]] = []
    view = views.ablation_view(model, loaded.tokenizer, tokens, [0, 1], lambda *done: calls.append(done))
    base = evaluate(model, tokens, loaded.tokenizer).loss
    with ablate_heads(model, [(1, 0)]):
        without = evaluate(model, tokens, loaded.tokenizer).loss
    assert view["increases"][1][0] == pytest.approx(without - base, abs=1e-5)
    assert abs(without - base) > 1e-5
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_the_last_row_of_predictions_is_the_models_own() -> None:
    loaded = checkpoint()
    text = excerpt(loaded)
    data = page_data(build_page(loaded, text))
    logits = load_model(loaded)(torch.tensor(text.ids[None].astype(int)))[0].detach()
    top = logits[7].softmax(-1).topk(5)
    shown = unpack(data["predictions"]["permille"])[-1, 7]
    assert np.abs(shown / 1000 - top.values.numpy()).max() <= 0.0006
    names = [data["symbols"][i][1] for i in unpack(data["predictions"]["symbols"])[-1, 7]]
    assert names == [views.character_name(loaded.tokenizer.decode([i])) for i in top.indices.tolist()]
    surprisal = -logits[7].log_softmax(-1)[int(text.ids[8])].item() / math.log(2)
    assert data["predictions"]["surprisal"][7] == pytest.approx(surprisal, rel=1e-3)


@pytest.mark.parametrize(("family", "position"), [("modern", "rotary"), ("classic", "learned"), ("modern", "none")])
def test_qk_is_the_score_in_layer_0(family: str, position: str) -> None:
    """Compares with the score of the second of two characters over the first. Learned positions are set to zero."""
    loaded = checkpoint("ab", family=family, position=position, context=8)
    if position == "learned":
        loaded.weights["position_embedding.weight"][:] = 0
    model, text = load_model(loaded), excerpt(loaded, "ba")
    activations = extract(model, text.ids)
    qk = unpack(views.characters_view(model, loaded.tokenizer, activations, [0, 1], views.Symbols())["qk"])
    for head in range(2):
        score = attention_stages(activations, 0, head)["scaled"][1, 0].item()
        assert qk[head][0, 1] == pytest.approx(score, abs=(qk[head].max() - qk[head].min()) / 15)


def test_ov_is_what_a_head_adds_to_the_logits() -> None:
    """A single character attends to itself alone, so its row is the direct effect of the head on the logits."""
    loaded = checkpoint("abcdefgh", context=8)
    model, text = load_model(loaded), excerpt(loaded, "c")
    activations = extract(model, text.ids)
    view = views.characters_view(model, loaded.tokenizer, activations, [0, 1], views.Symbols())
    ov = unpack(view["ov"])  # (L H, N, N)
    scale = activations.residual[-1, 0].square().mean().sqrt()
    D = model.config.n_embd // model.config.n_head
    for head in range(model.config.n_head):
        weight = model.blocks[0].attention.proj.weight.detach()[:, head * D : (head + 1) * D]  # type: ignore[union-attr, index]
        output = model.norm.weight.detach() * (weight @ activations.head_outputs[0, head, 0])  # (C,)
        logits = model.token_embedding.weight.detach() @ output / scale  # (V,)
        span = ov[head].max() - ov[head].min()
        assert span > 0
        assert np.abs(ov[head][text.ids[0]] - (logits - logits.mean()).numpy()).max() <= span / 30 + 1e-6


def test_large_vocabularies_show_the_most_frequent_characters() -> None:
    loaded = checkpoint("".join(map(chr, range(0x4E00, 0x4E00 + 400))) + TEXT)
    data = page_data(build_page(loaded, excerpt(loaded)))
    assert len(data["characters"]["symbols"]) == 128
    assert data["characters"]["vocab_size"] > 400
    assert {"e", "space", "newline"} <= {data["symbols"][i][1] for i in data["characters"]["symbols"]}


def test_bytes_have_names() -> None:
    loaded = checkpoint(byte=True)
    data = page_data(build_page(loaded, excerpt(loaded, "a é\n")))
    assert [data["symbols"][i][:2] for i in data["text"]["symbols"]] == [
        ["a", "a"], ["␣", "space"], ["\\xC3", "byte C3"], ["\\xA9", "byte A9"], ["↵", "newline"],
    ]  # fmt: skip


def test_words_and_lines_start_in_the_right_places() -> None:
    loaded = checkpoint("it's a b\nc")
    view = views.text_view(excerpt(loaded, "it's a b\nc"), views.Symbols())
    assert view["words"] == [0, 4, 5, 6, 7, 8, 9]
    assert view["lines"] == [0, 9]
