"""How the weights move: which parameters go to which optimizer, and the learning rate along the run."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from minigpt.config.schema import OptimConfig

EPS = 1e-8
NS_COEFFICIENTS = ((3.4445, -4.7750, 2.0315),) * 5
"""Coefficients of ns_coefficients that one after the other bring any singular value near one (Jordan et al. 2024)."""


class ParamGroupOptimizer:
    """How some parameters move. Not a torch.optim.Optimizer, whose making imports the compiler, nearly a second."""

    state_shapes: ClassVar[dict[str, Callable[[Tensor], tuple[int, ...]]]]
    """What is remembered of each parameter, and in which shape. It begins as zeros."""

    def __init__(self, parameters: Sequence[Tensor], peak_rate: float, weight_decay: float) -> None:
        self.parameters, self.peak_rate, self.weight_decay = list(parameters), peak_rate, weight_decay
        self.state: dict[str, list[Tensor]] = {}

    def state_tensors(self) -> list[list[Tensor]]:
        """Return for each kind in `state_shapes` what is remembered of the parameters."""
        for kind, shape in self.state_shapes.items():
            if kind not in self.state:
                self.state[kind] = [_zeros(p, shape(p)) for p in self.parameters]
        return [self.state[kind] for kind in self.state_shapes]

    def gradients(self) -> list[Tensor]:
        """Return the gradient of each parameter; each must have one."""
        gradients = []
        for parameter in self.parameters:
            assert parameter.grad is not None
            gradients.append(parameter.grad)
        return gradients

    def step(self, lr: float) -> None:
        """Move the parameters by their gradients at this learning rate."""
        raise NotImplementedError


class AdamW(ParamGroupOptimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), as torch's fused kernel computes it."""

    state_shapes: ClassVar = {
        "step": lambda p: (),
        "exp_avg": lambda p: tuple(p.shape),
        "exp_avg_sq": lambda p: tuple(p.shape),
    }

    def __init__(
        self, parameters: Sequence[Tensor], peak_rate: float, weight_decay: float, beta1: float, beta2: float
    ) -> None:
        super().__init__(parameters, peak_rate, weight_decay)
        self.beta1, self.beta2 = beta1, beta2

    @torch.no_grad()
    def step(self, lr: float) -> None:
        steps, averages, squares = self.state_tensors()
        gradients = self.gradients()
        adamw(
            self.parameters,
            gradients,
            averages,
            squares,
            [],
            steps,
            lr=lr,
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=self.weight_decay,
            eps=EPS,
            fused=True,
            amsgrad=False,
            maximize=False,
        )


class Muon(ParamGroupOptimizer):
    """Nesterov momentum whose update of each matrix is replaced by the nearest orthogonal one (Jordan et al. 2024).

    That makes the vectors along a matrix's shorter side equally long, but not those along the longer one, such as one
    for each unit of the MLP. So each of those is divided by a running root mean square of its entries, and the whole
    scaled back to its norm. NorMuon (Li et al. 2025) does this to the rows of every matrix, and also sets the norm.
    Matrices of one shape are stacked, which for small ones saves 40 % of the time.
    """

    state_shapes: ClassVar = {"momentum_buffer": lambda p: tuple(p.shape), "squared_size": lambda p: (1, max(p.shape))}
    size_decay = 0.95
    """Of the average of squared sizes."""
    ns_coefficients = NS_COEFFICIENTS

    def __init__(
        self,
        matrices: Sequence[Tensor],
        peak_rate: float,
        weight_decay: float,
        momentum: float,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        super().__init__(matrices, peak_rate, weight_decay)
        self.momentum, self.dtype = momentum, dtype

    @torch.no_grad()
    def step(self, lr: float) -> None:
        momenta, sizes = self.state_tensors()
        gradients = self.gradients()
        torch._foreach_lerp_(momenta, gradients, 1 - self.momentum)
        updates = torch._foreach_lerp(gradients, momenta, self.momentum)
        torch._foreach_mul_(self.parameters, 1 - lr * self.weight_decay)
        stacks: dict[torch.Size, list[tuple[Tensor, Tensor, Tensor]]] = defaultdict(list)
        for matrix, update, size in zip(self.parameters, updates, sizes, strict=True):
            stacks[_wide(matrix).shape].append((matrix, update, size))
        for stack in stacks.values():
            wide = torch.stack([_wide(update) for _, update, _ in stack])  # (N, R, C)
            turned = orthogonal(wide.to(self.dtype), self.ns_coefficients)
            equal = self.equalize_columns(turned, [size for *_, size in stack])
            for (matrix, _, _), update in zip(stack, equal, strict=True):
                scale = math.sqrt(max(1, matrix.size(0) / matrix.size(1)))
                _wide(matrix).add_(update, alpha=-lr * scale)

    def equalize_columns(self, updates: Tensor, squared_sizes: list[Tensor]) -> Tensor:
        """Return updates (N, R, C), R at most C, each column over its running RMS, each matrix's norm as it was.

        `squared_sizes`, (1, C) each, are the running mean squares, and are updated in place. Of a square matrix the
        columns are the inputs.
        """
        x = updates.to(squared_sizes[0].dtype)
        torch._foreach_lerp_(squared_sizes, list(x.square().mean(1, keepdim=True)), 1 - self.size_decay)
        equal = x / torch.stack(squared_sizes).sqrt().clamp(min=EPS)
        before, after = (y.norm(dim=(1, 2), keepdim=True) for y in (x, equal))
        return equal.mul_(before / after.clamp(min=EPS))


def _wide(matrix: Tensor) -> Tensor:
    """Return the matrix or its transpose, whichever has no more rows than columns."""
    return matrix.mT if matrix.size(0) > matrix.size(1) else matrix


def orthogonal(x: Tensor, ns_coefficients: Sequence[tuple[float, float, float]]) -> Tensor:
    """Return matrices x (N, R, C), R at most C, with their singular values brought near one."""
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for a, b, c in ns_coefficients:
        square = x @ x.mT  # (N, R, R)
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x


class Optimizer:
    """AdamW, with Muon beside it for the matrices of the blocks when asked for, behind one step.

    Weight decay falls on matrices only, embeddings among them; biases and gains are left alone. `dtype` is the
    precision of Muon's products, for which bfloat16 suffices; a processor that lacks it takes four times as long so.
    """

    def __init__(self, model: nn.Module, config: OptimConfig, dtype: torch.dtype = torch.bfloat16) -> None:
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}

        def takes_muon(p: Tensor) -> bool:
            return config.name == "muon" and p.ndim == 2 and self.names[p].startswith("blocks.")

        matrices = [p for p in self.names if takes_muon(p)]
        rest = [p for p in self.names if not takes_muon(p)]
        betas = (config.beta1, config.beta2)
        rules = [
            AdamW([p for p in rest if p.ndim == 2], config.lr, config.weight_decay, *betas),
            AdamW([p for p in rest if p.ndim != 2], config.lr, 0.0, *betas),
            Muon(matrices, config.muon_lr, config.weight_decay, config.momentum, dtype),
        ]
        self.rules = [rule for rule in rules if rule.parameters]
        self.peak_rates = {"learning_rate": config.lr} | ({"muon_learning_rate": config.muon_lr} if matrices else {})

    def step(self, factor: float) -> None:
        """Apply the gradients, with this share of the peak learning rates."""
        for rule in self.rules:
            rule.step(rule.peak_rate * factor)

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.names:
            parameter.grad = None

    def state_dict(self) -> dict[str, Tensor]:
        """Return what is remembered as tensors named "KIND/PARAMETER", such as "exp_avg/norm.weight"."""
        return {
            f"{kind}/{self.names[parameter]}": value
            for rule in self.rules
            for kind, values in rule.state.items()
            for parameter, value in zip(rule.parameters, values, strict=True)
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state_dict` returned. Raises ValueError when it is not of these parameters."""
        if not state:  # saved before the first update
            return
        expected = {
            f"{kind}/{self.names[parameter]}": shape(parameter)
            for rule in self.rules
            for kind, shape in rule.state_shapes.items()
            for parameter in rule.parameters
        }
        found = {name: tuple(tensor.shape) for name, tensor in state.items()}
        if found != expected:
            wrong = min(name for name in {*found, *expected} if found.get(name) != expected.get(name))
            raise ValueError(f"the optimizer's {wrong} does not fit the model")
        for rule in self.rules:
            rule.state = {
                kind: [_zeros(p, shape(p)).copy_(state[f"{kind}/{self.names[p]}"]) for p in rule.parameters]
                for kind, shape in rule.state_shapes.items()
            }


def _zeros(parameter: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return zeros, in the parameter's own shape with its strides: the fused kernel goes through memory in order."""
    return torch.zeros_like(parameter) if shape == parameter.shape else parameter.new_zeros(shape)
