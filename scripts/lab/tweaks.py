"""Changes to a run that an experiment tries and minigpt has no setting for.

A tweak gets a run before its first step, and an argument from the question. What paid was moved into minigpt;
what did not stays here, so that its result can be repeated.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.model.gpt import GPT, RMS_NORM_EPS, eval_mode
from minigpt.model.kernels import CPU
from minigpt.seeds import mix_seed
from minigpt.training.optim import Muon, Optimizer


def apply(run: Any, tweaks: Mapping[str, Any]) -> None:
    """Apply the tweaks of these names, with these arguments, to a run."""
    for name, argument in tweaks.items():
        if name not in TWEAKS_OF_MUON:
            torch.manual_seed(mix_seed(run.config.train.seed, "tweak", name))
            TWEAKS[name](run, argument)
    if tweaks:  # the model may have other parameters now
        run.average = copy.deepcopy(run.model).eval().requires_grad_(False) if run.config.train.ema else None
        run.optimizer = Optimizer(run.model, run.config.optim, run.runtime.torch_dtype)
    for name, argument in tweaks.items():
        if name in TWEAKS_OF_MUON:
            (muon,) = (rule for rule in run.optimizer.rules if isinstance(rule, Muon))
            TWEAKS_OF_MUON[name](muon, argument)


@torch.no_grad()
def leak(model: GPT) -> float:
    """Return by how much a logit moves at most when a later token changes: 0, or the model sees the future."""
    vocab_size, context = model.token_embedding.num_embeddings, model.config.context
    ids = torch.randint(vocab_size, (2, context))
    worst = 0.0
    with eval_mode(model):
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


class FixedGains(nn.Module):
    """RMSNorm with one gain for all channels, which is not learned."""

    gains: Tensor

    def __init__(self, size: int, gain: float) -> None:
        super().__init__()
        self.register_buffer("gains", torch.full((size,), gain))

    def forward(self, x: Tensor) -> Tensor:
        return CPU.rms_norm(x, self.gains, RMS_NORM_EPS)


def sharpness(run: Any, argument: Mapping[str, Any]) -> None:
    """Multiply the scores of normalised queries and keys by a `factor`, which may be `learned` by channel."""
    for block in run.model.blocks:
        attention, gain = block.attention, math.sqrt(argument["factor"])  # on queries and keys alike
        if argument.get("learned"):
            nn.init.constant_(attention.qk_norm.weight, gain)
        else:
            attention.qk_norm = FixedGains(run.config.model.head_size, gain)


def refuse_averages(run: Any, name: str) -> None:
    """Raise ValueError where weights are averaged: the average would go on using what belongs to the model itself."""
    if run.config.train.ema:
        raise ValueError(f"{name} does not go with train.ema")


def values_of_the_first(run: Any, argument: Any) -> None:
    """Mix the values of the first layer into those of the others (Zhou et al. 2024), by a learned share each.

    Not beside `masks_over_time`, which replaces the same kernel, nor where weights are averaged.
    """
    refuse_averages(run, "values_of_the_first")
    first: list[Tensor] = []
    attentions = [block.attention for block in run.model.blocks]
    for attention in attentions:
        if attention is not attentions[0]:
            attention.share = nn.Parameter(torch.zeros(1))

        def attend(attention: Any, q: Tensor, k: Tensor, v: Tensor, probability: float) -> Tensor:
            if attention is attentions[0]:
                first[:] = [v]
            else:
                v = v + (attention.share * (first[0] - v)).to(v.dtype)
            return CPU.sdpa(q, k, v, probability)

        attention.kernels = replace(attention.kernels, sdpa=partial(attend, attention))


def stream_of_the_start(run: Any, argument: Any) -> None:
    """Add the embedded characters again before each block, by a learned share."""
    start: list[Tensor] = []
    for layer, block in enumerate(run.model.blocks):
        block.share = nn.Parameter(torch.zeros(1))

        def before(block: Any, arguments: tuple[Any, ...], layer: int = layer) -> tuple[Any, ...]:
            x, *rest = arguments
            if layer == 0:
                start[:] = [x]
            return (torch.addcmul(x, block.share, start[0]), *rest)

        block.register_forward_pre_hook(before)


def rotary_base(run: Any, base: float) -> None:
    """Let the last pair turn nearly `base` times as slowly as the first."""
    size = run.config.model.head_size
    rate = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angle = torch.arange(run.config.model.context, dtype=torch.float64)[:, None] * rate
    run.model.cos_sin = torch.stack((angle.cos(), angle.sin())).float()


def gated_heads(run: Any, channels: int) -> None:
    """Let each head's output be scaled by a gate that sees the first channels of the stream (Qiu et al. 2025).

    Not where weights are averaged.
    """
    refuse_averages(run, "gated_heads")
    for block in run.model.blocks:
        attention, seen = block.attention, list[Tensor]()
        attention.gates = nn.Parameter(torch.zeros(attention.n_head * channels))

        def listen(attention: Any, arguments: tuple[Any, ...], seen: list[Tensor] = seen) -> None:
            seen[:] = [arguments[0]]

        def scale(proj: Any, arguments: tuple[Any, ...], attention: Any = attention, seen: list[Tensor] = seen) -> Any:
            y = arguments[0]  # (B, T, C)
            gates = 2 * F.linear(seen[0][..., :channels], attention.gates.view(-1, channels)).sigmoid()  # (B, T, H)
            return (y.unflatten(-1, (attention.n_head, -1)) * gates.to(y.dtype)[..., None]).flatten(2)

        attention.register_forward_pre_hook(listen)
        attention.proj.register_forward_pre_hook(scale)


def masks_over_time(run: Any, argument: Any) -> None:
    """Drop a channel of a sequence at all its positions (Gal and Ghahramani 2016), and a key for all queries."""

    def dropout(x: Tensor, probability: float) -> Tensor:
        return x * F.dropout(x.new_ones(x.size(0), 1, x.size(2)), probability)  # x is (B, T, C)

    def attend(q: Tensor, k: Tensor, v: Tensor, probability: float) -> Tensor:
        if probability:
            v = v * F.dropout(v.new_ones(*v.shape[:3], 1), probability)  # (B, H, S, 1)
        return CPU.sdpa(q, k, v, 0.0)

    for module in run.model.modules():
        if hasattr(module, "kernels"):
            module.kernels = replace(module.kernels, dropout=dropout, sdpa=attend)


# --- the optimizer -------------------------------------------------------------------------------------


def plain_muon(rule: Any, wanted: bool) -> None:
    """Leave the updates of the longer side's vectors as unlike in size as Newton and Schulz leave them."""
    if wanted:
        rule.equalize_columns = lambda updates, squared_sizes: updates


def size_decay(rule: Any, decay: float) -> None:
    """Another decay of the average of squared sizes."""
    rule.size_decay = decay


def rows_of_square_matrices(rule: Any, argument: Any) -> None:
    """Of square matrices make the rows' updates of one size, which are the outputs', not the columns'."""
    columns = rule.equalize_columns

    def equalized(updates: Tensor, squared_sizes: list[Tensor]) -> Tensor:
        square = updates.size(1) == updates.size(2)
        out: Tensor = columns(updates.mT, squared_sizes).mT if square else columns(updates, squared_sizes)
        return out

    rule.equalize_columns = equalized


def rows_of_all_matrices(rule: Any, argument: Any) -> None:
    """Make the updates of the rows of all matrices of one size, as NorMuon does (Li et al. 2025)."""
    sizes: dict[Tensor, Tensor] = {}

    def equalized(updates: Tensor, squared_sizes: list[Tensor]) -> Tensor:
        of_this_shape = [p for p in rule.parameters if {*p.shape} == {*updates.shape[1:]}]
        out = []
        for matrix, update in zip(of_this_shape, updates.float(), strict=True):
            across = 0 if matrix.size(0) > matrix.size(1) else 1  # tall matrices come transposed
            squared = update.square().mean(across, keepdim=True)
            size = sizes.setdefault(matrix, torch.zeros_like(squared)).lerp_(squared, 1 - rule.size_decay)
            equal = update / size.sqrt().clamp(min=1e-8)
            out.append(equal * (update.norm() / equal.norm().clamp(min=1e-8)))
        return torch.stack(out)

    rule.equalize_columns = equalized


def cautious_decay(rule: Any, argument: Any) -> None:
    """Let decay fall on the weights alone that the update makes smaller as well (Chen et al. 2025)."""
    decay, rule.weight_decay, step = rule.weight_decay, 0.0, rule.step

    @torch.no_grad()
    def step_and_decay(lr: float) -> None:
        before = [matrix.clone() for matrix in rule.parameters]
        step(lr)
        for matrix, weight in zip(rule.parameters, before, strict=True):
            matrix.sub_(lr * decay * weight * ((matrix - weight) * weight <= 0))

    rule.step = step_and_decay


POLAR_EXPRESS = (
    (8.156554524902461 / 1.02, -22.48329292557795 / 1.02**3, 15.878769915207462 / 1.02**5),  # singular values over 1.02
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


def polar_express(rule: Any, argument: Any) -> None:
    """Bring singular values near one by other ns_coefficients, one for each round (Amsel et al. 2025)."""
    rule.ns_coefficients = POLAR_EXPRESS


# --- batches and the loss ------------------------------------------------------------------------------


def use_loss(run: Any, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Let a run minimise this, also where it is compiled."""
    run.loss = run._loss = loss


def wrap_loss(run: Any, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    inner = run._loss
    use_loss(run, lambda x, y: inner(*change(x, y)))


def random_windows(run: Any, argument: Any) -> None:
    """Draw windows at random places, so that some of the text is read again before all of it has been read once."""
    tokens, context = run.data.train, run.config.model.context

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(tokens) - context, (len(x), 1)).numpy()
        rows = torch.from_numpy(tokens[starts + np.arange(context + 1)].astype(np.int64))  # (B, T + 1)
        return rows[:, :-1], rows[:, 1:]

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
    batch, whole_step = run.config.train.batch_size, run.step

    def rows(of: int) -> int:
        progress = run.state.step / run.steps
        return max(1, round(of * next((part for share, part in stages if progress < share), 1.0)))

    def step() -> None:
        left_out = batch - rows(batch)
        whole_step()
        run.state.tokens_seen -= left_out * run.config.model.context

    run.step = step
    wrap_loss(run, lambda x, y: (x[: rows(len(x))], y[: rows(len(y))]))


def noise(run: Any, share: float) -> None:
    """Put characters from elsewhere in the batch in the place of that share of the inputs (Xie et al. 2017)."""

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        others = x.flatten()[torch.randperm(x.numel())].view_as(x)
        return torch.where(torch.rand(x.shape) < share, others, x), y

    wrap_loss(run, change)


def further_ahead(run: Any, weight: float) -> None:
    """Predict the character after the next as well, at first by this weight, at last by none (Gloeckle et al. 2024)."""
    model, kept = run.model, list[Tensor]()
    model.ahead = nn.Parameter(model.token_embedding.weight.detach().clone())
    model.norm.register_forward_hook(lambda norm, given, x: kept.__setitem__(slice(None), [x]))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with run.runtime.autocast():
            logits = model(x)
            ahead = F.linear(kept[0][:, :-1], model.ahead)  # (B, T - 1, V)
        share: float = weight * (1 - run.state.step / run.steps)
        next_one: Tensor = F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
        return next_one + share * F.cross_entropy(ahead.float().flatten(0, 1), y[:, 1:].flatten())

    use_loss(run, loss)


TWEAKS: dict[str, Callable[[Any, Any], None]] = {
    tweak.__name__: tweak
    for tweak in (
        untied,
        bigrams,
        shift,
        dropout_kinds,
        sharpness,
        rotary_base,
        values_of_the_first,
        stream_of_the_start,
        masks_over_time,
        gated_heads,
        noise,
        further_ahead,
        random_windows,
        short_first,
        small_batches_first,
    )
}
TWEAKS_OF_MUON: dict[str, Callable[[Any, Any], None]] = {
    tweak.__name__: tweak
    for tweak in (
        plain_muon,
        size_decay,
        rows_of_square_matrices,
        rows_of_all_matrices,
        cautious_decay,
        polar_express,
    )
}
