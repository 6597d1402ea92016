"""Export to transformers: the same logits, the same greedy text, the same tokens."""

import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import torch
from exports import SETTINGS, made
from small_models import SWITCHES, small_config

from minigpt.config.resolve import show
from minigpt.config.schema import SampleConfig
from minigpt.errors import NoCounterpartError
from minigpt.interop import hf
from minigpt.interop.export import check, export
from minigpt.text.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer

transformers = pytest.importorskip("transformers")

CHARS = "\n\r\t aZé|'\"\\<unk>\u0301\u200d👩🏽😀春眠不ß\x00\ufeff"


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_logits_and_greedy_text_are_equal(settings: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = made(**settings)
    export(checkpoint, "hf", tmp_path / "out")
    agreement = check(checkpoint, "hf", tmp_path / "out")
    assert agreement is not None
    assert agreement.difference < 1e-4
    assert agreement.largest > 1
    assert agreement.same_text


def test_every_mix_of_settings_is_exported_exactly_or_refused() -> None:
    exported = set()
    for switches in SWITCHES:
        model = small_config("modern", **switches)
        try:
            exported.add((hf.architecture(model).model_type, *switches.values()))
        except NoCounterpartError:
            continue
    assert {kind for kind, *_ in exported} == {"gpt2", "apertus", "qwen3"}
    assert len(exported) == 3 * 2 + 3 + 1  # activations with biases or not, activations, SwiGLU


def test_the_setting_without_a_counterpart_is_named() -> None:
    for setting in ({"position": "none"}, {"norm": "layernorm"}, {"qk_norm": False}, {"bias": True}):
        ((key, value),) = setting.items()
        with pytest.raises(NoCounterpartError, match=f"no counterpart of model.{key}={show(value)}"):
            hf.architecture(small_config("modern", **setting))


def test_a_disagreement_is_reported(tmp_path: Path) -> None:
    checkpoint = made()
    export(checkpoint, "hf", tmp_path / "out")
    checkpoint.weights["norm.weight"][:] *= -1
    agreement = check(checkpoint, "hf", tmp_path / "out")
    assert agreement is not None
    assert agreement.difference > 1
    assert not agreement.same_text


@pytest.mark.parametrize("tokenizer", [CharTokenizer(CHARS), ByteTokenizer()], ids=["char", "byte"])
def test_texts_have_the_same_tokens_and_come_back(tokenizer: Tokenizer, tmp_path: Path) -> None:
    export(made(tokenizer), "hf", tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    draw = random.Random(0)
    texts = [*CHARS, *("".join(draw.choices(CHARS, k=draw.randint(2, 40))) for _ in range(1000))]
    texts += [unicodedata.normalize("NFD", "é"), "\r\n\n\r", "  a  "]
    if isinstance(tokenizer, CharTokenizer):
        texts = [text for text in texts if set(text) <= set(tokenizer.chars)]
        with pytest.raises(Exception, match="UNK"):
            theirs("b")
    for text in texts:
        ids = theirs(text)["input_ids"]
        assert ids == tokenizer.encode(text).tolist(), text
        assert theirs.decode(ids) == text


def test_generate_stops_at_the_context(tmp_path: Path) -> None:
    export(made(), "hf", tmp_path / "out")
    generate = transformers.pipeline("text-generation", model=str(tmp_path / "out"))
    text = generate("Be")[0]["generated_text"]
    assert text.startswith("Be")
    assert len(text) == 10
    generation = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert (generation["temperature"], generation["top_k"]) == (0.8, 0)


def test_every_sampling_setting_is_exported() -> None:
    sample = SampleConfig(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1)
    settings = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1}
    assert hf.generation_json(sample, 10) == {"max_length": 10, "do_sample": True, **settings}
    greedy = hf.generation_json(SampleConfig(temperature=0), 10)
    assert greedy == {"max_length": 10, "do_sample": False}


def test_the_usage_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(made(), "hf", tmp_path / "out")
    torch.manual_seed(0)
    exec(hf.usage(tmp_path / "out", "\n"), {})  # noqa: S102 - our own lines
    assert len(capsys.readouterr().out) >= 10
