"""The API for notebooks: a model that generates, and results that Jupyter displays."""

import math
import re
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from random_models import checkpoint

from minigpt.errors import ConfigError, TextError, UnknownCharacterError
from minigpt.interpret.excerpt import last_tokens
from minigpt.model.load import load_model
from minigpt.notebook import Model, Text
from minigpt.sampling.generate import generate
from minigpt.sampling.load import load_engine
from minigpt.training.evaluate import evaluate
from minigpt.viewer.page import Start, build_page

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
    with pytest.raises(ConfigError, match=r"sample\.topk: unknown setting; did you mean sample\.top_k\?"):
        model.generate("All", topk=5)
    for call, argument in ((model.generate, "prompt"), (model.loss, "text"), (model.inspect, "text")):
        with pytest.raises(UnknownCharacterError, match=f"^{argument} has characters outside the vocabulary: 'Z', 'ë'"):
            call("Zoë")  # type: ignore[operator]


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


def test_inspect_gives_the_page_of_the_text_in_a_frame() -> None:
    loaded = checkpoint(context=40)
    page = Model(loaded).inspect(TEXT * 2)
    excerpt = last_tokens(loaded, loaded.tokenizer.encode(TEXT * 2), "")
    assert page.html == build_page(loaded, excerpt, start=Start(at_end=True))
    (frame,) = re.findall('<iframe srcdoc="([^"]*)"', page._repr_html_())
    assert unescape(frame) == page.html
    with pytest.raises(TextError, match="empty"):
        Model(loaded).inspect("")


def test_results_are_html_without_scripts_and_escaped() -> None:
    text = "<script>&\n\x1b a"
    model = Model(checkpoint(text, context=40))
    loss = model.loss(text)._repr_html_()
    generated = Text("<b>", text, np.zeros(len(text)))._repr_html_()
    for document in (loss, generated):
        assert Shown(document).tags <= {"pre", "span", "p"}
        assert document.isprintable() or "\n" in document
        assert "\x1b" not in document
    assert Shown(generated).text == "<b>" + text.replace("\x1b", r"\u001b")
    assert Shown(loss).text.startswith("<script>&↵\n␛ a")
    strengths = [float(found) for found in re.findall(r"213,94,0,([\d.]+)", loss)]
    shares = np.minimum(1, model.loss(text).losses / model.loss(text).uniform)
    assert strengths == pytest.approx(0.8 * np.nan_to_num(shares), abs=0.006)
