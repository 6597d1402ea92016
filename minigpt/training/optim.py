"""The optimizers: AdamW, and Muon for the weight matrices of the blocks.

They are not `torch.optim.Optimizer`s, because creating one imports the compiler, which takes nearly a second.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from minigpt.config.schema import OptimConfig
from minigpt.model.gpt import Attention

EPS = 1e-8
NS_COEFFICIENTS = ((3.4445, -4.7750, 2.0315),) * 5
"""Coefficients of five Newton-Schulz steps, tuned for speed (https://kellerjordan.github.io/posts/muon/)."""


@dataclass(eq=False)
class ParamGroupOptimizer:
    """An optimizer for a group of parameters that share their settings."""

    parameters: list[Tensor]
    peak_rate: float
    weight_decay: float
    state: dict[str, list[Tensor]] = field(default_factory=dict, init=False)

    def state_shapes(self, parameter: Tensor) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the state of a parameter by name. State starts at zero."""
        raise NotImplementedError

    def state_tensors(self) -> list[list[Tensor]]:
        """Return the state, created if needed: for each name of `state_shapes`, one tensor per parameter."""
        for parameter in self.parameters if not self.state else ():
            for kind, shape in self.state_shapes(parameter).items():
                self.state.setdefault(kind, []).append(parameter.new_zeros(shape))
        return list(self.state.values())

    def gradients(self) -> list[Tensor]:
        """Return the gradient of each parameter."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        assert len(gradients) == len(self.parameters), "a parameter has no gradient"
        return gradients


@dataclass(eq=False)
class AdamW(ParamGroupOptimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101)."""

    beta1: float
    beta2: float

    def state_shapes(self, parameter: Tensor) -> dict[str, tuple[int, ...]]:
        return {"step": (), "exp_avg": parameter.shape, "exp_avg_sq": parameter.shape}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        steps, averages, squares = self.state_tensors()
        adamw(
            self.parameters, self.gradients(), averages, squares, [], steps,
            lr=lr, beta1=self.beta1, beta2=self.beta2, weight_decay=self.weight_decay, eps=EPS,
            fused=True, amsgrad=False, maximize=False,
        )  # fmt: skip


@dataclass(eq=False)
class Muon(ParamGroupOptimizer):
    """Nesterov momentum, orthogonalized (Jordan et al. 2024) and normalized by neuron (NorMuon, Li et al. 2025).

    Muon replaces each matrix's update with an approximation of the nearest orthogonal matrix. In it, the vectors for
    the indices of the longer side, such as the units of the MLP, still differ in length. As in NorMuon
    (https://arxiv.org/abs/2510.05491), each vector is divided by the running RMS of its entries. NorMuon does this to
    the rows of every matrix.

    A parameter may hold several matrices, such as the queries, keys and values of each head. Matrices of one shape are
    updated together, which is faster for small matrices than one by one.
    """

    size_decay: ClassVar = 0.95
    """Decay of `squared_size`, the running mean square of each vector."""
    ns_coefficients: ClassVar = NS_COEFFICIENTS
    momentum: float
    dtype: torch.dtype
    several: Mapping[Tensor, int] = field(default_factory=dict)
    """The number of matrices in each parameter that stacks several along its rows."""

    def state_shapes(self, parameter: Tensor) -> dict[str, tuple[int, ...]]:
        number, rows, columns = self.matrices(parameter, parameter).shape
        return {"momentum_buffer": parameter.shape, "squared_size": (number, max(rows, columns))}

    def matrices(self, parameter: Tensor, tensor: Tensor) -> Tensor:
        """View `tensor`, which has the shape of `parameter`, as the matrices (n, R, C) that the parameter holds."""
        return tensor.view(self.several.get(parameter, 1), -1, tensor.size(1))

    @torch.no_grad()
    def step(self, lr: float) -> None:
        momenta, sizes = self.state_tensors()
        gradients = self.gradients()
        torch._foreach_lerp_(momenta, gradients, 1 - self.momentum)
        updates = torch._foreach_lerp(gradients, momenta, self.momentum)
        torch._foreach_mul_(self.parameters, 1 - lr * self.weight_decay)
        stacks: dict[tuple[int, ...], list[tuple[Tensor, Tensor, Tensor]]] = defaultdict(list)
        for parameter, update, size in zip(self.parameters, updates, sizes, strict=True):
            weights = self.matrices(parameter, parameter)
            stacks[tuple(sorted(weights.shape[1:]))].append((weights, self.matrices(parameter, update), size))
        for stack in stacks.values():
            wide = torch.cat([_wide(update) for _, update, _ in stack])  # (N, R, C), R <= C
            orthogonal = orthogonalize(wide.to(self.dtype), self.ns_coefficients)
            normalized = self.normalize_columns(orthogonal, [size for *_, size in stack])
            parts = normalized.split([len(weights) for weights, *_ in stack])
            for (weights, *_), update in zip(stack, parts, strict=True):
                scale = math.sqrt(max(1, weights.size(1) / weights.size(2)))
                weights.add_(update if update.shape == weights.shape else update.mT, alpha=-lr * scale)

    def normalize_columns(self, updates: Tensor, squared_sizes: list[Tensor]) -> Tensor:
        """Return updates (N, R, C) with each column divided by its running RMS, and each matrix's norm unchanged.

        Update the running mean squares, `squared_sizes` (n, C) each, in place.
        """
        x = updates.to(squared_sizes[0].dtype)
        means = x.square().mean(1).split([len(sizes) for sizes in squared_sizes])
        torch._foreach_lerp_(squared_sizes, list(means), 1 - self.size_decay)
        normalized = x / torch.cat(squared_sizes)[:, None].sqrt().clamp(min=EPS)
        before, after = (y.norm(dim=(1, 2), keepdim=True) for y in (x, normalized))
        return normalized.mul_(before / after.clamp(min=EPS))


def _wide(matrices: Tensor) -> Tensor:
    """Return matrices (n, R, C), transposed if they have more rows than columns."""
    return matrices.mT if matrices.size(1) > matrices.size(2) else matrices


def orthogonalize(x: Tensor, ns_coefficients: Sequence[tuple[float, float, float]]) -> Tensor:
    """Return matrices x (N, R, C), R <= C, with singular values near 1, by Newton-Schulz iteration."""
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    if x.dtype != torch.bfloat16 and 2 * x.size(1) <= x.size(2):
        return _gram_newton_schulz(x, ns_coefficients)
    for a, b, c in ns_coefficients:
        square = x @ x.mT  # (N, R, R)
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x


def _gram_newton_schulz(x: Tensor, ns_coefficients: Sequence[tuple[float, float, float]]) -> Tensor:
    """Iterate on the Gram matrix of wide matrices x (N, R, C), with fewer operations: about half if C = 4 R.

    All iterates are polynomials of x @ x.mT times x, and polynomials of one matrix commute. The squares of small
    singular values need the precision of float32.
    """
    square, product = x @ x.mT, None  # (N, R, R)
    for iteration, (a, b, c) in enumerate(ns_coefficients, 1):
        factor = torch.baddbmm(square, square, square, beta=b, alpha=c)
        factor.diagonal(dim1=1, dim2=2).add_(a)
        product = factor if product is None else factor @ product
        if iteration < len(ns_coefficients):
            square = factor @ square @ factor
    return x if product is None else product @ x


class Optimizer:
    """The optimizers of a model: Muon for the matrices of the blocks if `optim.name` is normuon, AdamW for the rest.

    Weight decay applies to matrices, embeddings included, but not to biases and gains.
    """

    def __init__(self, model: nn.Module, config: OptimConfig, dtype: torch.dtype = torch.bfloat16) -> None:
        """Create the optimizer. `dtype` is the precision of Muon's matrix multiplications."""
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        hidden: dict[Tensor, str] = {}
        if config.name == "normuon":
            hidden = {p: name for p, name in self.names.items() if p.ndim == 2 and name.startswith("blocks.")}
        rest = [p for p in self.names if p not in hidden]
        rest_lr = config.embedding_lr if hidden else config.lr
        heads = {at.qkv.weight: 3 * at.n_head for at in model.modules() if isinstance(at, Attention)}
        groups: list[AdamW | Muon] = [
            AdamW([p for p in rest if p.ndim == 2], rest_lr, config.weight_decay, config.beta1, config.beta2),
            AdamW([p for p in rest if p.ndim != 2], rest_lr, 0.0, config.beta1, config.beta2),
            Muon(list(hidden), config.lr, config.weight_decay, config.momentum, dtype, heads),
        ]
        self.groups = [group for group in groups if group.parameters]
        self.peak_rates = {"learning_rate": config.lr} | ({"embedding_learning_rate": rest_lr} if hidden else {})

    @property
    def parameters(self) -> list[Tensor]:
        """All parameters of the model."""
        return list(self.names)

    def step(self, factor: float) -> None:
        """Update all parameters. `factor` is the learning rate as a fraction of its peak."""
        for group in self.groups:
            group.step(group.peak_rate * factor)

    def zero_grad(self) -> None:
        """Remove the gradients."""
        for parameter in self.names:
            parameter.grad = None

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state by "KIND/PARAMETER", such as "exp_avg/norm.weight"."""
        return {
            f"{kind}/{self.names[parameter]}": value
            for group in self.groups
            for kind, values in group.state.items()
            for parameter, value in zip(group.parameters, values, strict=True)
        }

    def create_state(self) -> dict[str, Tensor]:
        """Create the state, with zeros, and return it like `state_dict`. The first step does the same."""
        for group in self.groups:
            group.state_tensors()
        return self.state_dict()
