"""Images show the weights, readable in gray."""

import io

import numpy as np
import torch
from PIL import Image
from random_models import cells

from minigpt.interpret import images
from minigpt.interpret.extract import Activations


def test_pixels_are_the_shades_of_the_weights(by_hand: Activations) -> None:
    one = images.head_image(by_hand.weights[0, 0])
    factor = one.width // 16
    sampled = np.asarray(one)[::factor, ::factor]
    assert (sampled == images.to_shades(by_hand.weights[0, 0])).all()
    assert sampled[5, 4] == images.SHADES - 1
    grid = Image.open(io.BytesIO(images.to_png(images.grid_image(by_hand.weights, range(2), range(4)))))
    shades = cells(grid, 2, 4, 16)
    assert (shades == images.to_shades(by_hand.weights)).all()
    assert shades[0][:, 5, [0, 4, 5]].argmax(0).tolist() == [2, 0, 3]  # which head attends to first, previous, self
    for image in (one, grid):
        assert (np.reshape(image.getpalette(), (-1, 3)) == images.PALETTE).all()


def test_a_part_of_the_grid_keeps_its_numbers(by_hand: Activations) -> None:
    part = by_hand.weights[1:, 2:]
    right, wrong = (np.asarray(images.grid_image(part, *numbers)) for numbers in (([1], [2, 3]), ([0], [0, 1])))
    margin = images.MARGIN
    assert (right[:margin] != wrong[:margin]).any()
    assert (right[margin:, :margin] != wrong[margin:, :margin]).any()
    assert (right[margin:, margin:] == wrong[margin:, margin:]).all()


def test_larger_weights_are_darker() -> None:
    shades = images.to_shades(torch.linspace(0, 1, 1001)).astype(int)
    assert (np.diff(shades) >= 0).all()
    assert (shades[0], shades[-1]) == (0, images.SHADES - 1)
    assert (np.diff(images.PALETTE[: images.SHADES].astype(int).sum(1)) <= 0).all()
