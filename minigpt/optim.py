"""How the weights move: which parameters go to which optimizer, and the learning rate along the run."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from minigpt.config import OptimConfig

KEPT = {torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"), torch.optim.Muon: ("momentum_buffer",)}
"""What each kind of optimizer remembers of a parameter."""


class Optimizer:
    """AdamW, with Muon beside it for the matrices of the blocks when asked for, behind one step.

    Muon (Jordan et al. 2024) makes each update orthogonal. Weight decay is decoupled (Loshchilov and
    Hutter 2019) and falls on matrices only, embeddings among them; biases and gains are left alone.
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
            matrices = torch.optim.Muon(muon, lr=config.muon_lr, momentum=config.momentum, weight_decay=decay)
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
