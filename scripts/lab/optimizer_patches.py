"""Patches to the Muon optimizer."""

from typing import Any

import torch
from torch import Tensor


def plain_muon(muon: Any, wanted: bool) -> None:
    """Do not normalize the columns of an update."""
    if wanted:
        muon.normalize_columns = lambda updates, squared_sizes: updates


def qkv_parts(muon: Any, count: int) -> None:
    """Orthogonalize the matrix of queries, keys and values in `count` parts: 1, 3, or one for each pair of heads."""
    muon.several = dict.fromkeys(muon.several, count)


def momentum_ramp(muon: Any, argument: Any) -> None:
    """Raise the momentum from `start` over the first `rise` steps, and lower it again over the last `fall` steps."""
    peak, step, number = muon.momentum, muon.step, 0

    def step_with_momentum(lr: float) -> None:
        nonlocal number
        left = argument["steps"] - number
        share = min(1.0, number / max(1, argument["rise"]), left / max(1, argument["fall"]))
        muon.momentum = argument["start"] + share * (peak - argument["start"])
        number += 1
        step(lr)

    muon.step = step_with_momentum


def muon_beta2(muon: Any, beta2: float) -> None:
    """Set the decay of the running mean of squared updates."""
    muon.size_decay = beta2


def normalize_square_rows(muon: Any, argument: Any) -> None:
    """Normalize the rows (outputs) of square matrices instead of their columns (inputs)."""
    columns = muon.normalize_columns

    def normalize(updates: Tensor, squared_sizes: list[Tensor]) -> Tensor:
        square = updates.size(1) == updates.size(2)
        out: Tensor = columns(updates.mT, squared_sizes).mT if square else columns(updates, squared_sizes)
        return out

    muon.normalize_columns = normalize


def normalize_all_rows(muon: Any, argument: Any) -> None:
    """Normalize the rows of all matrices, as NorMuon does (Li et al. 2025)."""
    mean_squares: dict[Any, Tensor] = {}

    def normalize(updates: Tensor, squared_sizes: list[Tensor]) -> Tensor:
        shape = [*updates.shape[1:]]
        parts = [part for p in muon.parameters for part in muon.matrices(p, p) if sorted(part.shape) == shape]
        out = []
        for number, (part, update) in enumerate(zip(parts, updates.float(), strict=True)):
            dim = 0 if part.size(0) > part.size(1) else 1  # tall matrices arrive transposed
            squared = update.square().mean(dim, keepdim=True)
            key = number, *shape
            size = mean_squares.setdefault(key, torch.zeros_like(squared)).lerp_(squared, 1 - muon.size_decay)
            normalized = update / size.sqrt().clamp(min=1e-8)
            out.append(normalized * (update.norm() / normalized.norm().clamp(min=1e-8)))
        return torch.stack(out)

    muon.normalize_columns = normalize


def cautious_decay(muon: Any, argument: Any) -> None:
    """Apply weight decay only to weights that the update also shrinks (Chen et al. 2025)."""
    decay, muon.weight_decay, step = muon.weight_decay, 0.0, muon.step

    @torch.no_grad()
    def step_and_decay(lr: float) -> None:
        before = [matrix.clone() for matrix in muon.parameters]
        step(lr)
        for matrix, weight in zip(muon.parameters, before, strict=True):
            matrix.sub_(lr * decay * weight * ((matrix - weight) * weight <= 0))

    muon.step = step_and_decay


POLAR_EXPRESS = (
    (8.156554524902461 / 1.02, -22.48329292557795 / 1.02**3, 15.878769915207462 / 1.02**5),  # safety factor 1.02
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


def polar_express(muon: Any, argument: Any) -> None:
    """Use different Newton-Schulz coefficients in each iteration (Amsel et al. 2025)."""
    muon.ns_coefficients = POLAR_EXPRESS


def ns_iterations(muon: Any, iterations: int) -> None:
    """Stop the Newton-Schulz iteration early."""
    muon.ns_coefficients = muon.ns_coefficients[:iterations]


def decay_power(muon: Any, power: float) -> None:
    """Let the product of learning rate and weight decay follow a power of the schedule's factor, not the factor."""
    decay, step = muon.weight_decay, muon.step

    def step_and_decay(lr: float) -> None:
        muon.weight_decay = decay * (lr / muon.peak_rate) ** (power - 1) if lr else 0.0
        step(lr)

    muon.step = step_and_decay


def rate_power(muon: Any, power: float) -> None:
    """Let Muon's learning rate follow a power of the schedule's factor. AdamW's follows the factor."""
    step = muon.step
    muon.step = lambda lr: step(muon.peak_rate * (lr / muon.peak_rate) ** power)


PATCHES = (
    plain_muon,
    qkv_parts,
    momentum_ramp,
    muon_beta2,
    normalize_square_rows,
    normalize_all_rows,
    cautious_decay,
    polar_express,
    ns_iterations,
    decay_power,
    rate_power,
)
