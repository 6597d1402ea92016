"""Scores of the links in stories, for attention that is known."""

import math

import pytest
import torch

from minigpt.interpret.links import SCORES, link_scores, links
from minigpt.text.stories import stories


def test_a_head_on_the_links_scores_one_and_uniform_attention_scores_the_baseline() -> None:
    text = "".join(stories(600, seed=1))
    uniform = torch.ones(600, 600).tril() / torch.arange(1, 601)[:, None]
    weights = torch.stack((uniform, torch.eye(600)))[None]
    for link in links(text):
        weights[0, 1, link.query] = 0
        weights[0, 1, link.query, next(iter(link.keys.values()))[0]] = 1
    scores = link_scores(weights, text)
    assert scores.keys() == {*SCORES}
    assert [score.values[0, 1].item() for score in scores.values()] == [1, 1, 0, 1, 0, 0]
    for score in scores.values():
        assert score.values[0, 0].item() == pytest.approx(score.uniform)
        assert 0 < score.uniform < 0.1


def test_a_text_without_links_has_no_scores() -> None:
    scores = link_scores(torch.eye(4).expand(1, 1, 4, 4), "abcd")
    assert all(math.isnan(score.uniform) for score in scores.values())
