"""The average prediction of several models."""

import torch

from minigpt.config.schema import ModelConfig
from minigpt.model.average import Average
from minigpt.model.load import Model, build_model

VOCAB = 11


def model(family: str, context: int) -> Model:
    torch.manual_seed(context)
    built = build_model(ModelConfig(family=family, n_layer=1, n_head=1, n_embd=16, context=context), VOCAB).eval()
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return built


def test_an_average_has_the_mean_of_the_probabilities_and_the_shortest_context_of_a_transformer() -> None:
    models = [model("modern", 8), model("classic", 9), model("lstm", 4)]
    ids = torch.randint(VOCAB, (2, 8))
    average = Average(models)
    with torch.no_grad():
        expected = torch.stack([part(ids).softmax(-1) for part in models]).mean(0)
        assert torch.allclose(average(ids).softmax(-1), expected, atol=1e-6)
    assert average.config.context == 8
