"""Images show the weights, readable in gray."""

import io
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from random_models import cells

from minigpt.interpret import images
from minigpt.interpret.extract import Activations


def test_pixels_are_the_colors_of_the_weights(by_hand: Activations, text: str) -> None:
    weights = by_hand.weights
    png = images.to_png(images.draw(weights, range(2), range(4), text, "a"))
    assert png == images.to_png(images.draw(weights, range(2), range(4), text, "a"))
    image = Image.open(io.BytesIO(png))
    shown = cells(image, 2, 4, 16)
    assert (shown == images.to_colors(weights)).all()
    assert shown[0][:, 5, [0, 4, 5]].sum(-1).argmin(0).tolist() == [
        2,
        0,
        3,
    ]  # which head attends to first, previous, self
    assert shown[0, 0, 5, 4].tolist() == images.DARK.tolist()
    assert (cells(Image.fromarray(images.grid(weights)), 2, 4, 16, left=0, top=0, bottom=0) == shown).all()
    one = Image.open(io.BytesIO(images.to_png(images.draw(weights[1:, 2:3], [1], [2], text, "a"))))
    assert (cells(one, 1, 1, 16) == images.to_colors(weights[1:, 2:3])).all()
    tall = Image.open(io.BytesIO(images.to_png(images.draw(weights.flatten(0, 1)[:, None], range(8), [0], text, "a"))))
    assert (cells(tall, 8, 1, 16) == images.to_colors(weights.flatten(0, 1)[:, None])).all()


def test_a_picture_names_its_heads_and_letters_and_has_a_scale(by_hand: Activations, text: str) -> None:
    figure = images.draw(by_hand.weights[1:, 2:], [1], [2, 3], text, "run $a$")
    axes, scale = figure.axes
    written = [label.get_text() for label in axes.texts]
    assert written == [
        "run $a$", "Each row is a letter, each column one that it attends to.",
        "head 2", *text, "head 3", *text, "layer 1", *text,
    ]  # fmt: skip
    (bar,) = scale.images
    for tick, label in zip(scale.get_xticks(), scale.get_xticklabels(), strict=True):
        share = torch.tensor(float(label.get_text()[:-1]) / 100)
        color = bar.get_array()[0, round(255 * tick)].astype(int)
        assert abs(color - images.to_colors(share)).max() <= 1
    figure.draw_without_rendering()
    side = axes.get_window_extent().width / 2
    letters = axes.texts[3:19]
    centers = [label.get_window_extent().x0 + label.get_window_extent().width / 2 for label in letters]
    assert np.diff(centers) == pytest.approx((side - images.GAP) // 16, abs=1)


@pytest.mark.parametrize("tokens", [["a"] * 300, ["\\xC3"] * 60])
def test_letters_that_would_overlap_are_positions(tokens: list[str]) -> None:
    T = len(tokens)
    figure = images.draw(torch.eye(T).expand(1, 4, T, T), [0], range(4), tokens, "a")
    figure.draw_without_rendering()
    top = [label for label in figure.axes[0].texts if label.get_text().isdigit() and label.get_ha() == "center"]
    assert top[0].get_text() == "0"
    boxes = [label.get_window_extent() for label in top]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_larger_weights_are_darker() -> None:
    colors = images.to_colors(torch.linspace(0, 1, 1001)).astype(int)
    assert (np.diff(colors, axis=0) <= 0).all()
    assert (colors[[0, -1]] == [images.LIGHT, images.DARK]).all()


def test_only_drawing_imports_matplotlib() -> None:
    code = "import sys, minigpt.interpret.charts, minigpt.interpret.probe, minigpt.viewer.page, minigpt.notebook\n"
    code += "print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_small_png_has_its_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3), np.uint8)
    image = Image.open(io.BytesIO(images.small_png(pixels)))
    assert (image.mode, image.size) == ("RGB", (5, 7))
    assert (np.asarray(image) == pixels).all()
