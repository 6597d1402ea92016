"""What each training step and each evaluation reads of a text."""

from collections.abc import Iterator
from itertools import groupby, islice

import numpy as np
import torch
from torch import Tensor

from minigpt.seeds import mix_seed, shuffled
from minigpt.text.tokenizer import Ids


def batch_at(tokens: Ids, context: int, batch_size: int, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets (B, T) of `step`: windows in shuffled order, a function of seed and step alone.

    The text is read once in windows side by side before any of it is read again, each time in another order
    and cut at other places, with up to two contexts of it left out. `tokens` must be longer than `context`.
    """
    windows = max(1, (len(tokens) - 1) // context - 1)  # one less than fit, which leaves room to begin elsewhere
    epochs, places = np.divmod(step * batch_size + np.arange(batch_size), windows)
    starts = np.empty(batch_size, dtype=np.int64)
    for epoch in np.unique(epochs):
        generator = np.random.default_rng(mix_seed(seed, "epoch", int(epoch)))
        here, offset = epochs == epoch, generator.integers(len(tokens) - windows * context)
        starts[here] = offset + context * shuffled(places[here], windows, mix_seed(seed, "order", int(epoch)))
    rows = tokens[starts[:, None] + np.arange(context + 1)]  # (B, T + 1)
    ids = torch.from_numpy(rows.astype(np.int64))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def evaluation_windows(tokens: Ids, context: int, stride: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Cut `tokens` into windows `stride` apart, and yield batches of inputs and targets with what to score.

    Each item is (x, y, new): x and y are (B, T), and of each row the last `new` targets are those that
    no earlier window has scored. Together the items score every token but the first exactly once. With
    stride equal to context the windows do not overlap.
    """
    windows = _windows(len(tokens) - 1, context, stride)
    for (_, new), alike in groupby(windows, key=lambda window: (window[1] - window[0], window[2])):
        while batch := list(islice(alike, batch_size)):
            rows = np.stack([tokens[start : end + 1] for start, end, _ in batch]).astype(np.int64)  # (B, T + 1)
            ids = torch.from_numpy(rows)
            yield ids[:, :-1], ids[:, 1:], new


def _windows(predictions: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yield where each window starts and ends, and how many predictions it is the first to score."""
    scored = 0
    while scored < predictions:
        # The first window scores `context` predictions, each later one `stride` more.
        end = min(scored + (stride if scored else context), predictions)
        yield max(0, end - context) if stride < context else scored, end, end - scored
        scored = end
