"""The API for notebooks: a model that generates, and results that Jupyter displays."""

import base64
import io
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import environment
from PIL import Image
from random_models import cells, checkpoint

from minigpt.errors import ConfigError, TextError, UnknownCharacterError
from minigpt.interpret.extract import extract
from minigpt.interpret.images import to_colors
from minigpt.model.load import load_model, load_transformer
from minigpt.notebook import Model, Text
from minigpt.sampling.generate import generate
from minigpt.sampling.load import load_engine
from minigpt.training.evaluate import evaluate

TEXT = "Speak, speak.\nBefore we proceed"


class Shown(HTMLParser):
    """The visible text of a document, and its tags."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.text, self.tags = "", set[str]()
        self.feed(document)

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attributes: object) -> None:
        self.tags.add(tag)


def test_generate_gives_the_text_of_the_engine_and_takes_every_sample_setting() -> None:
    loaded = checkpoint()
    model = Model(loaded)
    settings = loaded.config.sample.model_copy(update={"length": 20, "temperature": 0.5, "seed": 3, "top_k": 5})
    chars = list(generate(load_engine(loaded), loaded.tokenizer, "All", settings))
    text = model.generate("All", length=20, temperature=0.5, seed=3, top_k=5)
    assert str(text) == "All" + "".join(char.text for char in chars)
    assert text.logprobs.tolist() == [char.logprob for char in chars]
    assert model.generate("All", length=20, seed=3, stop=text.text[4:6], temperature=0.5, top_k=5).text == text.text[:4]
    assert len(model.generate(length=3).text) == 3
    with pytest.raises(ConfigError, match=r"sample\.topk: unknown key; did you mean sample\.top_k\?"):
        model.generate("All", topk=5)
    with pytest.raises(UnknownCharacterError):
        model.generate("Zoë")


@pytest.mark.parametrize("byte", [False, True])
def test_the_loss_is_that_of_an_evaluation(byte: bool) -> None:
    loaded = checkpoint(byte=byte, context=8)  # four windows
    loss = Model(loaded).loss(TEXT)
    expected = evaluate(load_model(loaded), loaded.tokenizer.encode(TEXT), loaded.tokenizer)
    assert loss.mean == pytest.approx(expected.loss, rel=1e-6)
    assert len(loss.losses) == len(TEXT)
    assert math.isnan(loss.losses[0])
    assert float(loss) == loss.mean
    assert loss.uniform == math.log(loaded.tokenizer.vocab_size)
    with pytest.raises(TextError, match="at least two characters"):
        Model(loaded).loss("S")


def test_the_loss_of_a_character_is_the_sum_over_its_bytes() -> None:
    loaded = checkpoint(byte=True)
    model = Model(loaded)
    tokens = loaded.tokenizer.encode("aé春")
    logits = load_model(loaded)(torch.from_numpy(tokens)[None])[0].double().log_softmax(-1)
    nats = [-logits[at, token].item() for at, token in enumerate(tokens[1:])]
    assert model.loss("aé春").losses[1:] == pytest.approx([sum(nats[:2]), sum(nats[2:])], rel=1e-5)


def test_attention_is_that_of_extract_and_needs_a_transformer_and_a_short_text() -> None:
    loaded = checkpoint(context=40)
    attention = Model(loaded).attention(TEXT)
    assert attention.tokens == list(TEXT)
    expected = extract(load_transformer(loaded), loaded.tokenizer.encode(TEXT)).weights
    assert np.array_equal(attention.weights, expected.numpy())
    for text in ("", TEXT * 2):
        with pytest.raises(TextError, match="1 to 40 tokens"):
            Model(loaded).attention(text)


def test_results_are_html_without_scripts_and_escaped() -> None:
    text = "<script>&\n\x1b a"
    model = Model(checkpoint(text, context=40))
    loss, attention = model.loss(text)._repr_html_(), model.attention(text)._repr_html_()
    generated = Text("<b>", text, np.zeros(len(text)))._repr_html_()
    for document in (loss, attention, generated):
        assert Shown(document).tags <= {"pre", "span", "p", "img"}
        assert document.isprintable() or "\n" in document
        assert "\x1b" not in document
    assert Shown(generated).text == "<b>" + text.replace("\x1b", r"\u001b")
    assert Shown(loss).text.startswith("<script>&↵\n␛ a")
    strengths = [float(found) for found in re.findall(r"213,94,0,([\d.]+)", loss)]
    losses = model.loss(text).losses[1:]
    assert strengths == pytest.approx(0.8 * np.minimum(1, losses / model.loss(text).uniform), abs=0.006)
    image = Image.open(io.BytesIO(base64.b64decode(re.findall('base64,([^"]+)', attention)[0])))
    shown = cells(image, 2, 2, len(text))
    assert (shown == to_colors(torch.from_numpy(model.attention(text).weights))).all()


def test_load_and_generate_do_not_import_torch(finished_run: Path) -> None:
    code = "import minigpt, sys; text = minigpt.load(sys.argv[1]).generate('a', length=5); "
    code += "print(len(text.text), {'torch', 'matplotlib'} & {*sys.modules})"
    command = [sys.executable, "-c", code, str(finished_run)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    assert done.stdout == "5 set()\n"
