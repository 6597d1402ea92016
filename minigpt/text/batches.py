"""Batches for training and evaluation: the only part of `text` that creates tensors.

Shapes: B sequences in a batch, T positions in a sequence.
"""

from collections.abc import Iterator
from itertools import groupby, islice

import numpy as np
import torch
from torch import Tensor

from minigpt.seeds import mix_seed, permute
from minigpt.text.tokenizer import Ids


def batch_at(
    tokens: Ids, context: int, batch_size: int, seed: int, step: int, part: slice = slice(None)
) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets (B, T) of a training step, or of part of its sequences.

    From a random offset, an epoch cuts `tokens` into adjacent windows of T tokens. It visits each window once in random
    order, and skips at most 2 T tokens. The seed and the epoch give offset and order.

    Args:
        tokens: The training tokens, (N,), with N > context.
        context: Positions per sequence, T.
        batch_size: Sequences per batch, B.
        seed: Seed of the run.
        step: Number of training steps before this one.
        part: The sequences to return, out of B.
    """
    # Use one window fewer than would fit, to leave room for a random offset.
    windows = max(1, (len(tokens) - 1) // context - 1)
    # With W windows, sequence k of the run has index k mod W in the order of epoch k div W.
    epochs, indices = np.divmod(step * batch_size + np.arange(batch_size), windows)
    starts = np.empty(batch_size, dtype=np.int64)
    for epoch in np.unique(epochs):
        in_epoch = epochs == epoch
        generator = np.random.default_rng(mix_seed(seed, "epoch", int(epoch)))
        offset = generator.integers(len(tokens) - windows * context)
        order_seed = mix_seed(seed, "order", int(epoch))
        # `permute` computes only these entries of a random permutation of all windows.
        starts[in_epoch] = offset + context * permute(indices[in_epoch], windows, order_seed)
    ids = tokens[starts[part, None] + np.arange(context + 1)]  # (B, T + 1)
    sequences = torch.from_numpy(ids.astype(np.int64))
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()


def evaluation_windows(tokens: Ids, context: int, stride: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Cut `tokens` into windows, at most `stride` apart, and yield batches (inputs, targets, new).

    Inputs and targets are (B, T). Evaluate only the last `new` targets of each sequence. This covers every token
    except the first exactly once. If `stride` equals `context`, windows do not overlap.
    """
    windows = _windows(len(tokens) - 1, context, stride)
    # A batch holds windows of the same length that have the same number of new targets.
    for (_, new), group in groupby(windows, key=lambda window: (window[1] - window[0], window[2])):
        while batch := list(islice(group, batch_size)):
            ids = np.stack([tokens[start : end + 1] for start, end, _ in batch])  # (B, T + 1)
            sequences = torch.from_numpy(ids.astype(np.int64))
            yield sequences[:, :-1], sequences[:, 1:], new


def _windows(count: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yield the start, end and number of new targets of each window over `count` targets."""
    scored = 0
    while scored < count:
        # The first window has up to `context` new targets, and each later window up to `stride`.
        end = min(scored + (stride if scored else context), count)
        start = max(0, end - context) if stride < context else scored
        yield start, end, end - scored
        scored = end
