"""What training steps and evaluations read of a text."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from minigpt.text.batches import batch_at, evaluation_windows

# --- training batches ----------------------------------------------------------------------------------


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    tokens = np.arange(5000, dtype=np.uint16)
    first = [batch_at(tokens, 16, 4, seed=1, step=step) for step in range(20)]
    torch.manual_seed(99)
    np.random.seed(99)
    for step in reversed(range(20)):
        x, y = batch_at(tokens, 16, 4, seed=1, step=step)
        assert torch.equal(x, first[step][0])
        assert torch.equal(y, first[step][1])
    assert len({tuple(x[:, 0].tolist()) for x, _ in first}) == 20
    assert not torch.equal(batch_at(tokens, 16, 4, seed=2, step=0)[0], first[0][0])


def test_targets_are_the_inputs_shifted_by_one() -> None:
    tokens = np.random.default_rng(0).integers(0, 60_000, 1000).astype(np.uint16)
    x, y = batch_at(tokens, 8, 64, seed=1, step=0)
    assert x.shape == y.shape == (64, 8)
    assert x.dtype == y.dtype == torch.int64
    assert torch.equal(x[:, 1:], y[:, :-1])
    windows = {tuple(tokens[i : i + 9].tolist()) for i in range(1000 - 8)}
    assert all((*row, last) in windows for row, last in zip(x.tolist(), y[:, -1].tolist(), strict=True))


@pytest.mark.parametrize("positions", [1, 2, 7])
def test_every_window_of_a_short_text_is_equally_likely(positions: int) -> None:
    tokens = np.arange(10 + positions, dtype=np.uint8)
    x, y = batch_at(tokens, 10, 1000, seed=3, step=5)
    counts = np.bincount(x[:, 0].numpy(), minlength=positions)
    assert len(counts) == positions
    assert counts.min() > 0.6 * 1000 / positions
    assert int(y.max()) == len(tokens) - 1


@pytest.mark.parametrize("length", [1000, 1007, 1015])
def test_an_epoch_visits_each_window_once_in_an_order_of_its_own(length: int) -> None:
    tokens = np.arange(length, dtype=np.uint16)
    windows = (length - 1) // 8 - 1
    rows = torch.cat([batch_at(tokens, 8, 5, seed=1, step=step)[0] for step in range(3 * windows)])
    epochs = [rows[i * windows : (i + 1) * windows] for i in range(10)]
    for epoch in epochs:
        visited = epoch.flatten().tolist()
        assert len(set(visited)) == len(visited) >= length - 2 * 8
        assert max(visited) - min(visited) == len(visited) - 1
        assert visited != sorted(visited)
    assert len({tuple(epoch[:, 0].tolist()) for epoch in epochs}) == 10
    assert len({min(epoch.flatten().tolist()) for epoch in epochs}) > 3, "offsets differ"


def test_a_batch_can_span_several_epochs() -> None:
    x, _ = batch_at(np.arange(50, dtype=np.uint8), 8, 40, seed=1, step=3)
    assert x.shape == (40, 8)
    assert np.bincount(x.flatten().numpy()).max() <= 11


# --- evaluation windows --------------------------------------------------------------------------------


@settings(max_examples=200)
@given(st.data(), st.integers(2, 120), st.integers(1, 20), st.integers(1, 5))
def test_every_token_but_the_first_is_scored_once(
    draw: st.DataObject, length: int, context: int, batch_size: int
) -> None:
    stride = draw.draw(st.integers(1, context))
    tokens = np.arange(length, dtype=np.uint8)
    scored: list[int] = []
    for x, y, new in evaluation_windows(tokens, context, stride, batch_size):
        assert x.shape == y.shape
        assert 1 <= len(x) <= batch_size
        assert 1 <= new <= x.shape[1] <= context
        assert torch.equal(y, x + 1), "a window is a stretch of the text, and its targets are the next tokens"
        for row in y[:, -new:].tolist():
            for position, token in enumerate(row):
                seen = x.shape[1] - new + position + 1
                assert seen >= (min(token, context - stride + 1) if stride < context else 1)
            scored += row
    assert scored == list(range(1, length))


def test_windows_do_not_overlap_if_the_stride_is_the_context() -> None:
    tokens = np.arange(11, dtype=np.uint8)
    rows = [row for x, _, _ in evaluation_windows(tokens, 4, 4, 8) for row in x.tolist()]
    assert rows == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_later_windows_score_stride_tokens_with_the_longest_context() -> None:
    tokens = np.arange(11, dtype=np.uint8)
    found = [(x.tolist(), new) for x, _, new in evaluation_windows(tokens, 4, 3, 8)]
    assert found == [([[0, 1, 2, 3]], 4), ([[3, 4, 5, 6], [6, 7, 8, 9]], 3)]
