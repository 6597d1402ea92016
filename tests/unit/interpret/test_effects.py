"""What a model predicts without each head."""

import pytest
import torch
from random_models import TEXT, checkpoint

from minigpt.interpret.effects import probabilities_without, strongest_effect
from minigpt.interpret.extract import ablate_heads
from minigpt.model.load import load_transformer


@pytest.mark.parametrize(
    ("family", "position"),
    [("modern", "rotary"), ("classic", "learned"), ("modern", "sinusoidal"), ("modern", "none")],
)
@torch.no_grad()
def test_all_heads_at_once_agree_with_one_at_a_time(family: str, position: str) -> None:
    loaded = checkpoint(layers=3, heads=2, family=family, position=position, context=64)
    model, ids = load_transformer(loaded), loaded.tokenizer.encode(TEXT)[:40]
    found = probabilities_without(model, ids, 25)
    tokens = torch.from_numpy(ids)[None]
    assert found.shape == (7, 15, loaded.tokenizer.vocab_size)
    usual = model(tokens)[0, 25:].softmax(-1)
    assert torch.allclose(found[0], usual, atol=1e-6)
    for index in range(6):
        with ablate_heads(model, {divmod(index, 2)}):
            expected = model(tokens)[0, 25:].softmax(-1)
        assert torch.allclose(found[1 + index], expected, atol=1e-5)
        assert not torch.allclose(expected, usual, atol=1e-3)


def test_the_strongest_effect_is_on_a_clear_prediction() -> None:
    #                          usual         without head 0   without head 1
    shares = torch.tensor([[0.9, 0.8, 0.4], [0.1, 0.8, 0.4], [0.9, 0.3, 0.0]])  # of token 0, at three positions
    probabilities = torch.stack((shares, 1 - shares, torch.zeros(3, 3)), -1)
    focus = torch.ones(2, 3)
    every, all_three, none = torch.tensor([True, True]), torch.ones(3).bool(), torch.zeros(3).bool()
    assert strongest_effect(probabilities, focus, every, all_three) == (0, 0)
    assert strongest_effect(probabilities, focus, torch.tensor([False, True]), all_three) == (1, 1)
    assert strongest_effect(probabilities, focus, every, none) == (0, 0), "nothing is preferred: any clear prediction"
    assert strongest_effect(probabilities, focus, every, torch.tensor([0, 0, 1]).bool()) == (2, 0)


def test_broad_heads_count_less() -> None:
    shares = torch.tensor([[1.0, 1.0], [0.0, 0.1], [0.9, 0.4]])
    probabilities = torch.stack((shares, 1 - shares), -1)
    focus = torch.tensor([[0.1, 0.1], [0.5, 0.9]])
    assert strongest_effect(probabilities, focus, torch.tensor([True, True]), torch.ones(2).bool()) == (1, 1)
