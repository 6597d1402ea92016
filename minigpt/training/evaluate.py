"""How good a model is: loss, bits per character and perplexity over a whole text, in one deterministic pass."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from minigpt.errors import UserError
from minigpt.model.gpt import GPT, eval_mode
from minigpt.text.batches import evaluation_windows
from minigpt.text.tokenizer import Ids, Tokenizer

TOKENS_AT_ONCE = {"cpu": 4_096, "cuda": 16_384, "mps": 16_384}
"""Per device type. On a CPU as many as stay in its cache: four times as many took 1.2 to 1.9 times as long."""
LOGITS_AT_ONCE = 1 << 26
"""In float32, a quarter of a gigabyte: what bounds the batch with a large vocabulary."""


@dataclass(frozen=True)
class EvalResult:
    """`loss` is the mean over predicted tokens, characters or bytes, in nats; the next two follow from the same sum."""

    loss: float
    bits_per_character: float
    perplexity: float
    """exp(loss): among how many equally likely tokens the model hesitates."""
    characters: int
    """How many characters were predicted: every one of the text but the first."""


@torch.no_grad()
def evaluate(
    model: GPT,
    tokens: Ids,
    tokenizer: Tokenizer,
    *,
    stride: int | None = None,
    autocast: Callable[[], AbstractContextManager[Any]] | None = None,
    progress: Callable[[int], object] | None = None,
) -> EvalResult:
    """Predict every token of `tokens` but the first, once, from what stands before it in its window.

    Windows are one context long and do not overlap. With `stride` they begin that far apart, so each prediction after
    the first window sees at least context - stride tokens; the loss is mostly lower and not comparable. Dropout is
    off; two calls agree to the last digit. `progress` is told the number of tokens scored after each batch. Raises
    UserError for a stride beyond the context or a text too short.
    """
    context = model.config.context
    stride = context if stride is None else stride
    if not 1 <= stride <= context:
        raise UserError(f"the stride must be between 1 and the model's context of {context}, got {stride}")
    if len(tokens) < 2:
        raise UserError(f"the text is too short to evaluate: {len(tokens)} tokens, at least 2 are needed")
    device = model.token_embedding.weight.device
    total = 0.0
    vocab_size = model.token_embedding.num_embeddings
    batch = max(1, min(TOKENS_AT_ONCE[device.type], LOGITS_AT_ONCE // vocab_size) // context)
    with eval_mode(model):
        for x, y, new in evaluation_windows(tokens, context, stride, batch):
            with autocast() if autocast else torch.autocast(device.type, enabled=False):
                logits = model(x.to(device))[:, -new:]  # (B, new, V)
            targets = y[:, -new:].to(device)
            total += F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum").item()
            if progress:
                progress(targets.numel())
    loss = total / (len(tokens) - 1)
    characters = tokenizer.characters(tokens[1:])
    perplexity = math.inf if loss > 700 else math.exp(loss)
    return EvalResult(loss, total / math.log(2) / max(1, characters), perplexity, characters)


def protocol(context: int, stride: int | None) -> str:
    """Return the name of the way an evaluation was made, to be shown beside its numbers."""
    if stride is None or stride == context:
        return f"non-overlapping windows of {context}"
    return f"sliding windows of {context}, stride {stride} (not comparable with non-overlapping windows, mostly lower)"
