"""Packed arrays keep what the page shows of them."""

import numpy as np
import pytest
import torch
from pages import unpack
from random_models import peaked_attention

from minigpt.viewer import packing


def test_levels_keep_two_decimals() -> None:
    weights = np.random.default_rng(0).random(200_000).astype(np.float32) ** 3
    ties = np.array([0, 1, 0.125, 0.375, 0.005, 0.145, 0.995, 1e-9], dtype=np.float32)
    weights = np.concatenate([weights, ties, np.nextafter(ties[1:], np.float32(0))])
    shown = packing.LEVELS[packing.to_levels(weights)]
    assert [f"{a:.2f}" for a in shown] == [f"{a:.2f}" for a in weights]
    assert np.abs(shown - weights).max() <= 0.005 + 1e-6
    assert np.abs(np.sqrt(shown) - np.sqrt(weights)).max() < 0.012  # the shading


def test_levels_are_monotonic_and_fit_a_byte() -> None:
    weights = np.linspace(0, 1, 30_001).astype(np.float32)
    assert (np.diff(packing.to_levels(weights).astype(int)) >= 0).all()
    assert (np.diff(packing.LEVELS) > 0).all()
    assert len(packing.LEVELS) <= 256


def test_attention_is_packed_as_lower_triangles() -> None:
    weights = peaked_attention(2, 3, 17)
    found = unpack(packing.pack_attention(weights))
    rows, columns = np.tril_indices(17)
    assert found.shape == (2, 3, 17 * 18 // 2)
    assert np.abs(packing.LEVELS[found] - weights.numpy()[..., rows, columns]).max() <= 0.005 + 1e-6
    start = 5 * 6 // 2  # row 5
    assert np.abs(packing.LEVELS[found[1, 2, start : start + 6]] - weights[1, 2, 5, :6].numpy()).max() <= 0.005


@pytest.mark.parametrize("steps", [31, 255, 1023, 65535])
def test_scaled_tables_are_within_half_a_step(steps: int) -> None:
    tables = torch.randn(3, 7, 5) * torch.tensor([0.01, 1, 100])[:, None, None]
    tables[1] = 4.25  # constant
    found = unpack(packing.pack_scaled(tables, steps))
    span = tables.flatten(1).amax(1) - tables.flatten(1).amin(1)
    assert (np.abs(found - tables.numpy()) <= span[:, None, None].numpy() * 0.51 / steps + 1e-4).all()


def test_exact_numbers_are_bit_identical() -> None:
    numbers = torch.randn(4, 5)
    assert (unpack(packing.pack_exact(numbers)) == numbers.numpy()).all()
    assert (unpack(packing.pack_integers(torch.arange(300))) == np.arange(300)).all()
