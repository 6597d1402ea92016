"""The average prediction of several models."""

import numpy as np
import pytest
import torch

from minigpt.config.schema import ModelConfig, SampleConfig
from minigpt.model.average import Average
from minigpt.model.load import Model, build_model
from minigpt.model.reference import TorchEngine, numpy_engine
from minigpt.sampling.average import AverageEngine
from minigpt.sampling.generate import generate_ids
from minigpt.sampling.recurrent import RecurrentEngine

VOCAB = 11


def model(family: str, context: int) -> Model:
    torch.manual_seed(context)
    built = build_model(ModelConfig(family=family, n_layer=1, n_head=1, n_embd=16, context=context), VOCAB).eval()
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return built


def test_an_average_has_the_mean_of_the_probabilities() -> None:
    models = [model("modern", 8), model("classic", 9), model("lstm", 4)]
    ids = torch.randint(VOCAB, (2, 8))
    with torch.no_grad():
        expected = torch.stack([one(ids).softmax(-1) for one in models]).mean(0)
        torch.testing.assert_close(Average(models)(ids).softmax(-1), expected)
        torch.testing.assert_close(Average(models[:1] * 2)(ids), models[0](ids), msg="a penalty depends on the logits")


def test_the_order_of_the_models_does_not_change_the_context() -> None:
    for families, context in ((("gru", "lstm"), 8), (("modern", "lstm"), 20), (("classic", "modern"), 8)):
        models = [model(families[0], 20), model(families[1], 8)]
        assert {Average(models).config.context, Average(models[::-1]).config.context} == {context}


@pytest.mark.parametrize(
    ("families", "context"), [(("modern", "lstm"), 8), (("lstm", "classic"), 8), (("gru", "lstm"), None)]
)
def test_the_engines_agree_beyond_the_shortest_context(families: tuple[str, str], context: int | None) -> None:
    models = [model(families[0], 20 if "lstm" in families[:1] else 8), model(families[1], 8)]
    one, two = AverageEngine([numpy_engine(m) for m in models]), TorchEngine(Average(models))
    assert one.context == two.context == (context or RecurrentEngine.context)
    steps = [
        list(generate_ids(engine, np.array([1, 2]), SampleConfig(length=30, repetition_penalty=1.5), num_samples=3))
        for engine in (one, two)
    ]
    for (ours, logprobs), (theirs, expected) in zip(*steps, strict=True):
        assert ours.tolist() == theirs.tolist()
        np.testing.assert_allclose(logprobs, expected, atol=1e-4)
