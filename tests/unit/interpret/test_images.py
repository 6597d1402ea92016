"""Images show the weights, readable in gray."""

import numpy as np
import torch
from random_models import cells

from minigpt.interpret import images
from minigpt.interpret.extract import Activations


def test_pixels_are_the_colors_of_the_weights(by_hand: Activations) -> None:
    shown = cells(images.grid(by_hand.weights), 2, 4, 16)
    assert (shown == images.to_colors(by_hand.weights)).all()
    brightness = shown[0][:, 5, [0, 4, 5]].sum(-1)  # of the first key, the previous and the query itself
    assert brightness.argmin(0).tolist() == [2, 0, 3], "the heads that attend to them"


def test_larger_weights_are_darker() -> None:
    colors = images.to_colors(torch.linspace(0, 1, 1001)).astype(int)
    assert (np.diff(colors, axis=0) <= 0).all()
    assert (colors[[0, -1]] == [images.LIGHT, images.DARK]).all()


def test_a_picture_shows_and_names_each_head_and_has_a_scale(by_hand: Activations, text: str) -> None:
    figure = images.draw(by_hand.weights[1:, 2:], [1], [2, 3], text, "run $a$")
    *heads, scale = figure.axes
    assert [axes.get_title() for axes in heads] == ["layer 1, head 2", "layer 1, head 3"]
    for axes, weights in zip(heads, by_hand.weights[1, 2:], strict=True):
        (image,) = axes.images
        assert (image.get_array() == weights.numpy()).all()
        colors = image.to_rgba(image.get_array(), bytes=True)[..., :3].astype(int)
        assert abs(colors - images.to_colors(weights)).max() <= 1
    assert [label.get_text() for label in heads[0].get_xticklabels()] == list(text)
    assert scale.get_yticks().tolist() == list(images.SHARES)
    assert images.to_png(figure) == images.to_png(images.draw(by_hand.weights[1:, 2:], [1], [2, 3], text, "run $a$"))


def test_letters_that_would_overlap_are_positions() -> None:
    for tokens in (["a"] * 300, ["\\xC3"] * 60):
        figure = images.draw(torch.eye(len(tokens))[None, None], [0], [0], tokens, "a")
        assert not {label.get_text() for label in figure.axes[0].get_xticklabels()} & {*tokens}
