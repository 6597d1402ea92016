"""Evaluate a model on a whole text: loss, bits per character and perplexity, in one deterministic pass."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import reduce
from itertools import chain, islice, zip_longest
from operator import add
from typing import Any

import torch
import torch.nn.functional as F

from minigpt.errors import ConfigError, TextError
from minigpt.model.gpt import eval_mode
from minigpt.model.load import Model
from minigpt.text.batches import evaluation_windows
from minigpt.text.tokenizer import Ids, Tokenizer
from minigpt.training.parallel import ONE, Processes

MAX_TOKENS = {"cpu": 4_096, "cuda": 16_384, "mps": 16_384}
"""Tokens per batch, by device type. On a CPU, larger batches do not fit into its cache, and an evaluation takes 1.2 to
1.9 times as long."""
MAX_LOGITS = 1 << 26
"""Logits per batch. In float32 they take 256 MiB."""


@dataclass(frozen=True)
class EvalResult:
    """The result of an evaluation."""

    loss: float
    """Mean cross entropy of the predicted tokens, in nats."""
    bits_per_character: float
    perplexity: float
    """exp(loss)."""
    characters: int
    """Number of predicted characters: all but the first character."""
    by_position: tuple[float, ...] = ()
    """Mean loss at each position of the full windows, (context,). Empty if not asked for, or if no window is full."""


@torch.no_grad()
def evaluate(
    model: Model,
    tokens: Ids,
    tokenizer: Tokenizer,
    *,
    stride: int | None = None,
    by_position: bool = False,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    progress: Callable[[int], object] = lambda tokens: None,
    processes: Processes = ONE,
) -> EvalResult:
    """Predict every token but the first once, given the tokens before it in its window, without dropout.

    Windows start at most `stride` tokens apart, by default a full context. With a smaller stride, each token after the
    first window has at least `context - stride` tokens before it, which usually lowers the loss. `progress` receives
    each batch's number of tokens. `processes` share the batches. The loss is bitwise identical to that of one process.

    With `by_position`, which needs one process, also return the loss at each position. The last window is left out if
    it is shorter than the context, so that each position has the same number of tokens.

    Raises:
        ConfigError: The stride is not between 1 and the context, or windows overlap and `by_position` is set.
        TextError: The text is shorter than two tokens.
    """
    context = model.config.context
    stride = context if stride is None else stride
    _check(tokens, context, stride, by_position)
    device, vocab_size = model.token_embedding.weight.device, model.token_embedding.num_embeddings
    batch_size = max(1, min(MAX_TOKENS[device.type], MAX_LOGITS // vocab_size) // context)
    sums = list[float]()
    position_sums, full = torch.zeros(context, dtype=torch.float64), 0
    windows = evaluation_windows(tokens, context, stride, batch_size)
    with eval_mode(model):
        for x, y, new in islice(windows, processes.rank, None, processes.size):
            with autocast():
                logits = model(x.to(device))[:, -new:]  # (B, new, V)
            targets = y[:, -new:].to(device)  # (B, new)
            pairs = logits.float().flatten(0, 1), targets.flatten()
            sums.append(F.cross_entropy(*pairs, reduction="sum").item())
            if by_position and new == context:
                position_sums += F.cross_entropy(*pairs, reduction="none").view_as(targets).sum(0).cpu()
                full += len(targets)
            progress(targets.numel())
    # In the order of the batches, as one process adds them.
    total = reduce(add, chain.from_iterable(zip_longest(*processes.gather(sums), fillvalue=0.0)), 0.0)
    loss, characters = total / (len(tokens) - 1), tokenizer.characters(tokens[1:])
    perplexity = math.inf if loss > 700 else math.exp(loss)  # exp overflows beyond 709
    means = tuple((position_sums / full).tolist()) if full else ()
    return EvalResult(loss, total / math.log(2) / max(1, characters), perplexity, characters, means)


def _check(tokens: Ids, context: int, stride: int, by_position: bool) -> None:
    """Raise ConfigError or TextError as `evaluate` does."""
    if not 1 <= stride <= context:
        raise ConfigError(f"the stride must be between 1 and the model's context of {context}, got {stride}")
    if by_position and stride < context:
        raise ConfigError(f"the loss by position needs windows that do not overlap, so a stride of {context}")
    if len(tokens) < 2:
        raise TextError(f"the text is too short to evaluate: it needs at least 2 tokens and has {len(tokens)}")
