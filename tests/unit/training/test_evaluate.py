"""Evaluation scores every token but the first once, from the right window, and gives the same in each call."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from minigpt.cli.evaluate import octaves
from minigpt.config.schema import FAMILIES, ModelConfig
from minigpt.errors import ConfigError, TextError
from minigpt.model.gpt import GPT
from minigpt.text.tokenizer import ByteTokenizer, CharTokenizer
from minigpt.training.evaluate import MAX_TOKENS, evaluate

CONTEXT = 8
TEXT = "the cat sat on the mat and that was that; " * 6
CHARS = CharTokenizer(TEXT)


def model_of(family: str = "classic", vocab_size: int = CHARS.vocab_size, **changes: Any) -> GPT:
    torch.manual_seed(0)
    small = {"n_layer": 2, "n_head": 2, "n_embd": 16, "context": CONTEXT}
    model = GPT(ModelConfig(**{"family": family, **FAMILIES[family], **small, **changes}), vocab_size)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.3)  # far from a uniform guess, so each window matters
    return model


def naive(model: GPT, ids: np.ndarray, stride: int) -> list[float]:
    """Return the loss of each token but the first, from a forward pass over the tokens that it may see."""
    model.eval()
    losses = []
    for i in range(1, len(ids)):
        later = -(-max(0, i - CONTEXT) // stride)  # the number of windows after the first
        end = CONTEXT + later * stride
        start = end - CONTEXT if stride == CONTEXT else min(end, len(ids) - 1) - CONTEXT
        start = max(0, start)
        seen = torch.from_numpy(ids[start:i].astype(np.int64))
        with torch.no_grad():
            losses.append(F.cross_entropy(model(seen[None])[0, -1], torch.tensor(int(ids[i]))).item())
        assert i - start >= (min(i, CONTEXT - stride + 1) if later else i)  # as the protocol promises
    return losses


@pytest.mark.nightly
@pytest.mark.parametrize("length", [2, 5, CONTEXT, CONTEXT + 1, CONTEXT + 2, 3 * CONTEXT + 1, 61])
@pytest.mark.parametrize("stride", [None, 1, 3, CONTEXT])
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_one_forward_pass_per_token(
    family: str, stride: int | None, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MAX_TOKENS, "cpu", 3 * CONTEXT)  # several batches, the last one smaller
    model, ids = model_of(family), CHARS.encode(TEXT)[:length]
    scored: list[int] = []
    result = evaluate(model, ids, CHARS, stride=stride, progress=scored.append)
    losses = naive(model, ids, stride or CONTEXT)
    mean = sum(losses) / len(losses)
    assert sum(scored) == len(losses) == result.characters == length - 1
    assert result.loss == pytest.approx(mean, rel=1e-5)
    assert result.bits_per_character == pytest.approx(mean / math.log(2), rel=1e-5)
    assert result.perplexity == pytest.approx(math.exp(mean), rel=1e-5)


def test_two_evaluations_agree_bit_for_bit_in_either_mode() -> None:
    """Dropout is off, no random number is generated, and the model returns to its mode."""
    model, ids = model_of(dropout=0.5), CHARS.encode(TEXT)
    state = torch.get_rng_state()
    first = evaluate(model.train(), ids, CHARS)
    assert all(module.training for module in model.modules())
    assert evaluate(model.eval(), ids, CHARS) == first == evaluate(model_of(dropout=0.0), ids, CHARS)
    assert not model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_bits_per_character_count_characters_not_bytes() -> None:
    text = "naïve café €5 😀 漢字 ok" * 3
    tokenizer, model = ByteTokenizer(), model_of(vocab_size=256)
    ids = tokenizer.encode(text)
    losses = naive(model, ids, CONTEXT)
    result = evaluate(model, ids, tokenizer)
    assert result.characters == len(text) - 1 < len(ids) - 1 == len(losses)
    assert result.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert result.bits_per_character == pytest.approx(sum(losses) / math.log(2) / (len(text) - 1), rel=1e-5)


def test_one_character_of_several_bytes_has_a_result() -> None:
    result = evaluate(model_of(vocab_size=256), ByteTokenizer().encode("😀"), ByteTokenizer())
    assert result.characters == 0
    assert math.isfinite(result.bits_per_character)


def test_diverged_models_have_infinite_or_undefined_perplexity() -> None:
    """A loss too large for exp() gives infinity; a loss of NaN gives NaN."""
    model, ids = model_of(), CHARS.encode(TEXT)
    with torch.no_grad():
        model.norm.weight.fill_(1e4)
    assert evaluate(model, ids, CHARS).perplexity == math.inf
    with torch.no_grad():
        model.norm.weight.fill_(math.nan)
    result = evaluate(model, ids, CHARS)
    assert math.isnan(result.loss)
    assert math.isnan(result.perplexity)


def test_evaluates_in_the_given_precision() -> None:
    model, ids = model_of(), CHARS.encode(TEXT)
    exact = evaluate(model, ids, CHARS)
    rounded = evaluate(model, ids, CHARS, autocast=lambda: torch.autocast("cpu", torch.bfloat16))
    assert rounded != exact
    assert rounded.loss == pytest.approx(exact.loss, rel=0.02)


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1, 3 * CONTEXT + 1, 61])
def test_the_loss_by_position_is_the_mean_over_full_windows(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MAX_TOKENS, "cpu", 3 * CONTEXT)
    model, ids = model_of("modern"), CHARS.encode(TEXT)[:length]
    result = evaluate(model, ids, CHARS, by_position=True)
    windows = (length - 1) // CONTEXT  # the rest is shorter than a window
    losses = np.array(naive(model, ids, CONTEXT)[: windows * CONTEXT]).reshape(-1, CONTEXT)
    assert result.by_position == pytest.approx(losses.mean(0) if windows else (), rel=1e-5)
    assert result.loss == evaluate(model, ids, CHARS).loss
    with pytest.raises(ConfigError, match=f"do not overlap, so a stride of {CONTEXT}$"):
        evaluate(model, ids, CHARS, stride=CONTEXT - 1, by_position=True)


def test_octaves_cover_each_position_once() -> None:
    assert octaves([7.0]) == [(1, 1, 7.0)]
    assert octaves([1.0, 2.0, 3.0, 5.0, 8.0, 10.0]) == [(1, 1, 1.0), (2, 2, 2.0), (3, 4, 4.0), (5, 6, 9.0)]


@pytest.mark.parametrize("length", [0, 1])
def test_too_short_a_text_is_refused(length: int) -> None:
    with pytest.raises(TextError, match=f"^the text is too short to evaluate: it needs .* 2 tokens and has {length}$"):
        evaluate(model_of(), CHARS.encode(TEXT)[:length], CHARS)


@pytest.mark.parametrize("stride", [-1, 0, CONTEXT + 1])
def test_a_stride_out_of_range_is_refused(stride: int) -> None:
    """Zero is out of range, too."""
    with pytest.raises(ConfigError, match=f"^the stride must be between 1 and .* {CONTEXT}, got {stride}$"):
        evaluate(model_of(), CHARS.encode(TEXT), CHARS, stride=stride)
