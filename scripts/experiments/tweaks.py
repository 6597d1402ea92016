"""Changes to a run that an experiment tries and minigpt has no setting for.

A tweak gets a run before its first step, and an argument from the question. What paid was moved into minigpt;
what did not stays here, so that its result can be repeated.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.model import GPT, evaluating
from minigpt.optim import Optimizer
from minigpt.seeds import mix_seed


def apply(run: Any, tweaks: Mapping[str, Any]) -> None:
    """Apply the tweaks of these names, with these arguments, to a run."""
    for name, argument in tweaks.items():
        torch.manual_seed(mix_seed(run.config.train.seed, "tweak", name))
        TWEAKS[name](run, argument)
    if tweaks:  # the model may have other parameters now
        run.average = copy.deepcopy(run.model).eval().requires_grad_(False) if run.config.train.ema else None
        run.optimizer = Optimizer(run.model, run.config.optim)


@torch.no_grad()
def leak(model: GPT) -> float:
    """Return by how much a logit moves at most when a later token changes: 0, or the model sees the future."""
    vocab_size, context = model.token_embedding.num_embeddings, model.config.context
    ids = torch.randint(vocab_size, (2, context))
    worst = 0.0
    with evaluating(model):
        before = model(ids)
        for at in (1, context // 2, context - 1):
            changed = ids.clone()
            changed[:, at:] = (ids[:, at:] + 1) % vocab_size
            worst = max(worst, (model(changed)[:, :at] - before[:, :at]).abs().max().item())
    return worst


# --- the network ---------------------------------------------------------------------------------------


def shifted(x: Tensor, by: int = 1) -> Tensor:
    """Return x (B, T, C) moved `by` positions later, zeros coming in."""
    return F.pad(x, (0, 0, by, 0))[:, : x.size(1)]


class InputTable(nn.Embedding):
    """An embedding whose `weight` serves the output alone, with one of its own for the input."""

    def __init__(self, tied: nn.Embedding) -> None:
        super().__init__(*tied.weight.shape)
        self.weight = tied.weight
        self.input = nn.Parameter(tied.weight.detach().clone())

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.input)


class Bigrams(nn.Embedding):
    """An embedding that adds a vector for each pair of a character and the one before it."""

    def __init__(self, tied: nn.Embedding) -> None:
        super().__init__(*tied.weight.shape)
        self.weight = tied.weight
        self.pairs = nn.Parameter(torch.zeros(tied.num_embeddings**2, tied.embedding_dim))

    def forward(self, ids: Tensor) -> Tensor:
        before = F.pad(ids, (1, 0))[:, :-1]
        return super().forward(ids) + F.embedding(before * self.num_embeddings + ids, self.pairs)


class Shift(nn.Module):
    """Adds to each position what stood `taps` positions before it, weighted by channel."""

    def __init__(self, inner: nn.Module, width: int, taps: int) -> None:
        super().__init__()
        self.inner = inner
        self.taps = nn.Parameter(torch.zeros(taps, width))
        self.weight = getattr(inner, "weight", None)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        out = x
        for at, tap in enumerate(self.taps, 1):
            out = out + tap * shifted(x, at)
        return out


def untied(run: Any, argument: Any) -> None:
    run.model.token_embedding = InputTable(run.model.token_embedding)


def bigrams(run: Any, argument: Any) -> None:
    run.model.token_embedding = Bigrams(run.model.token_embedding)


def shift(run: Any, argument: Mapping[str, Any]) -> None:
    """Short causal convolutions by channel, before attention, the MLP or both."""
    for block in run.model.blocks:
        for norm in argument["before"]:
            setattr(block, norm, Shift(getattr(block, norm), run.config.model.n_embd, argument["taps"]))


def dropout_kinds(run: Any, argument: Mapping[str, float]) -> None:
    """Other rates for the embedding, the attention weights and the branches."""
    run.model.dropout.probability = argument.get("embedding", 0.0)
    for block in run.model.blocks:
        block.attention.dropout = argument.get("attention", 0.0)
        block.dropout.probability = argument.get("branches", 0.0)


# --- batches and the loss ------------------------------------------------------------------------------


def wrap_loss(run: Any, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    inner = run.loss
    run.loss = lambda x, y: inner(*change(x, y))


def token_noise(run: Any, rate: float) -> None:
    """Replace a share of the input characters by others of the text, drawn anew each step."""

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        noise = torch.rand(x.shape) < rate
        others = x.flatten()[torch.randint(x.numel(), x.shape)]
        return torch.where(noise, others, x), y

    wrap_loss(run, change)


def short_first(run: Any, stages: list[list[float]]) -> None:
    """Cut each sequence into `parts` until that share of the run, as [share, parts] in order."""

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        progress = run.state.step / run.steps
        parts = next((int(parts) for share, parts in stages if progress < share), 1)
        return x.reshape(len(x) * parts, -1), y.reshape(len(y) * parts, -1)

    wrap_loss(run, change)


def small_batches_first(run: Any, stages: list[list[float]]) -> None:
    """Use only a `part` of each batch until that share of the run, as [share, part] in order."""

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        progress = run.state.step / run.steps
        part = next((part for share, part in stages if progress < share), 1.0)
        rows = max(1, round(part * len(x)))
        return x[:rows], y[:rows]

    wrap_loss(run, change)


def shuffled_epochs(run: Any, argument: Any) -> None:
    """Read every window of the text once, in random order and from a random start, before any is read again."""
    tokens, context = np.asarray(run.data.train), run.config.model.context
    batch, seed = run.config.train.batch_size, run.config.train.seed

    def window(index: int) -> Tensor:
        windows = (len(tokens) - context - 1) // context
        epoch, at = divmod(index, windows)
        rng = np.random.default_rng(mix_seed(seed, "epoch", epoch))
        offset = rng.integers(context)
        start = int(rng.permutation(windows)[at]) * context + int(offset)
        return torch.from_numpy(tokens[start : start + context + 1].astype(np.int64))

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.stack([window(run.state.step * batch + i) for i in range(batch)])
        return rows[:, :-1], rows[:, 1:]

    wrap_loss(run, change)


def label_smoothing(run: Any, rate: float) -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        with run.runtime.autocast():
            logits = run.model(x)
        return F.cross_entropy(logits.float().flatten(0, 1), y.flatten(), label_smoothing=rate)

    run.loss = loss


TWEAKS: dict[str, Callable[[Any, Any], None]] = {
    tweak.__name__: tweak
    for tweak in (untied, bigrams, shift, dropout_kinds, token_noise, short_first, small_batches_first)
} | {"shuffled_epochs": shuffled_epochs, "label_smoothing": label_smoothing}
