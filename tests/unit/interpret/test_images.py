"""Images show the weights, readable in gray."""

import io
import subprocess
import sys

import numpy as np
import torch
from PIL import Image
from random_models import cells

from minigpt.interpret import images
from minigpt.interpret.extract import Activations


def test_pixels_are_the_colors_of_the_weights(by_hand: Activations) -> None:
    weights = by_hand.weights
    png = images.to_png(images.draw(weights, range(2), range(4)))
    assert png == images.to_png(images.draw(weights, range(2), range(4)))
    image = Image.open(io.BytesIO(png))
    shown = cells(image, 2, 4, 16)
    assert (shown == images.to_colors(weights)).all()
    assert shown[0][:, 5, [0, 4, 5]].sum(-1).argmin(0).tolist() == [
        2,
        0,
        3,
    ]  # which head attends to first, previous, self
    assert shown[0, 0, 5, 4].tolist() == images.DARK.tolist()
    assert (cells(Image.fromarray(images.grid(weights)), 2, 4, 16, margin=0) == shown).all()
    one = Image.open(io.BytesIO(images.to_png(images.draw(weights[1:, 2:3], [1], [2]))))
    assert one.size == (images.SIZE + images.GAP + images.MARGIN,) * 2
    assert (cells(one, 1, 1, 16) == images.to_colors(weights[1:, 2:3])).all()


def test_a_part_of_the_grid_keeps_its_numbers(by_hand: Activations) -> None:
    (axes,) = images.draw(by_hand.weights[1:, 2:], [1], [2, 3]).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["head 2", "head 3"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["layer 1"]


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
