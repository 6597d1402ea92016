"""How the weights move: which parameters go to which optimizer, and the learning rate along the run."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from minigpt.config import OptimConfig

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of a polynomial that brings any singular value near one in few rounds (Jordan et al. 2024)."""
ROUNDS = 5


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, made orthogonal: each update turns and scales all directions alike (Jordan et al. 2024).

    torch's own, but for its taking one matrix at a time: here those of one shape are stacked, which for small
    ones saves half of the time.
    """

    def __init__(self, matrices: Iterable[Tensor], lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Move the matrices by their gradients."""
        for group in self.param_groups:
            matrices = group["params"]
            for matrix in matrices:
                if not self.state[matrix]:
                    self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
            gradients, momenta = zip(*((m.grad, self.state[m]["momentum_buffer"]) for m in matrices), strict=True)
            torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
            updates = torch._foreach_lerp(gradients, momenta, group["momentum"])
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
            stacks: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for matrix, update in zip(matrices, updates, strict=True):
                stacks[_lying(matrix).shape].append((matrix, update))
            for stack in stacks.values():
                for (matrix, _), update in zip(stack, orthogonal([_lying(u) for _, u in stack]), strict=True):
                    scale = math.sqrt(max(1, matrix.size(0) / matrix.size(1)))
                    _lying(matrix).add_(update, alpha=-group["lr"] * scale)


def _lying(matrix: Tensor) -> Tensor:
    """Return the matrix or its transpose, whichever has no more rows than columns."""
    return matrix.mT if matrix.size(0) > matrix.size(1) else matrix


def orthogonal(updates: list[Tensor]) -> Tensor:
    """Return N matrices (R, C), R at most C, with their singular values brought near one, as (N, R, C) in bfloat16."""
    a, b, c = NEWTON_SCHULZ
    x = torch.stack(updates).bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ROUNDS):
        square = x @ x.mT  # (N, R, R)
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x


KEPT = {torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"), Muon: ("momentum_buffer",)}
"""What each kind of optimizer remembers of a parameter."""


class Optimizer:
    """AdamW, with Muon beside it for the matrices of the blocks when asked for, behind one step.

    Weight decay is decoupled (Loshchilov and Hutter 2019) and falls on matrices only, embeddings among them;
    biases and gains are left alone.
    """

    def __init__(self, model: nn.Module, config: OptimConfig) -> None:
        self.config = config
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        hidden = {p: name for p, name in self.names.items() if p.ndim == 2 and name.startswith("blocks.")}
        muon = list(hidden) if config.name == "muon" else []
        rest = [p for p in self.names if not (muon and p in hidden)]
        groups = [
            {"params": [p for p in rest if p.ndim == 2], "weight_decay": config.weight_decay},
            {"params": [p for p in rest if p.ndim != 2], "weight_decay": 0.0},
        ]
        betas = (config.beta1, config.beta2)
        adamw = torch.optim.AdamW([g for g in groups if g["params"]], lr=config.lr, betas=betas, fused=True)
        self.optimizers: list[tuple[torch.optim.Optimizer, float]] = [(adamw, config.lr)]
        self.peak_rates = {"learning_rate": config.lr}
        if muon:
            decay = config.weight_decay
            matrices = Muon(muon, config.muon_lr, config.momentum, decay)
            self.optimizers.append((matrices, config.muon_lr))
            self.peak_rates["muon_learning_rate"] = config.muon_lr

    def step(self, progress: float) -> float:
        """Apply the gradients at this point of the run, and return the factor on the peak learning rates."""
        factor = lr_factor(progress, self.config)
        for optimizer, peak in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            optimizer.step()
        return factor

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.names:
            parameter.grad = None

    def state_dict(self) -> dict[str, Tensor]:
        """Return the optimizers' state as tensors named "KIND/PARAMETER", such as "exp_avg/norm.weight"."""
        state: dict[str, Tensor] = {}
        for optimizer, _ in self.optimizers:
            for parameter, entries in optimizer.state.items():
                state |= {f"{kind}/{self.names[parameter]}": value for kind, value in entries.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state_dict` returned. Raises ValueError when it is not of these parameters."""
        expected = {
            f"{kind}/{self.names[parameter]}": () if kind == "step" else tuple(parameter.shape)
            for optimizer, _ in self.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
            for kind in KEPT[type(optimizer)]
        }
        found = {name: tuple(tensor.shape) for name, tensor in state.items()}
        if found and found != expected:
            wrong = min(name for name in {*found, *expected} if found.get(name) != expected.get(name))
            raise ValueError(f"the optimizer's {wrong} does not fit the model")
        for optimizer, _ in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"] if found else ():
                    optimizer.state[parameter] = {
                        kind: state[f"{kind}/{self.names[parameter]}"].to(parameter.device).clone()
                        for kind in KEPT[type(optimizer)]
                    }


def lr_factor(progress: float, config: OptimConfig) -> float:
    """Return the learning rate at `progress` (0 to 1 of the run) as a share of its peak.

    It rises in a line over `warmup`, then falls to `min_lr`: along half a cosine (Loshchilov and Hutter
    2017), in a line, or, with "wsd", in a line over the last `decay` of the run only (Hu et al. 2024).
    """
    if progress < config.warmup:
        return progress / config.warmup
    fall = config.decay if config.schedule == "wsd" else 1 - config.warmup
    fallen = max(0.0, 1 - (1 - progress) / fall)  # 0 at the peak, 1 at the end
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "cosine":
        fallen = (1 - math.cos(math.pi * fallen)) / 2
    return 1 - (1 - config.min_lr) * fallen
