"""What `course check` compares in chapter 10: Newton-Schulz, and three steps of Muon.

Results are in float64, so that rounding hides no mistake: five rounds multiply a rounding error by up to 485.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minigpt.course.comparison import Case, Mistake
from minigpt.course.recorder import BATCH, Recorder, V
from minigpt.course.small_models import randn
from minigpt.training.optim import NS_COEFFICIENTS, orthogonalize

STEPS, RATE, MOMENTUM, DECAY = 3, 0.1, 0.95, 0.1


def rounds(g: Tensor, count: int = 5, divide: bool = True) -> Tensor:
    """Return `g` after `count` rounds of the polynomial, or after five without first dividing `g` by its norm."""
    wide = g if g.size(0) <= g.size(1) else g.T
    x = orthogonalize(wide[None], NS_COEFFICIENTS[:1] * count)[0]
    if not divide:
        x = wide
        for a, b, c in NS_COEFFICIENTS:
            s = x @ x.T
            x = a * x + (b * s + c * s @ s) @ x
    return x if wide is g else x.T


def muon(my: Any) -> Iterator[Case]:
    """Check chapter 10."""
    for shape in ((3, 6), (6, 3)):
        g = randn(*shape).double()
        mistakes = {
            "the gradient is not divided by its norm": rounds(g, divide=False),
            **{f"it takes {count} rounds, not 5": rounds(g, count) for count in (1, 2, 3, 4, 6, 10)},
            "the result is transposed": rounds(g).T,
        }
        name = f"orthogonalize(g) of shape {shape}"
        yield Case(name, partial(my.orthogonalize, g), rounds(g), mistakes)
    yield Case("orthogonalize(g) of shape (64, 4)", partial(_check_size, my.orthogonalize))
    mistakes = {name: _three_steps(my, partial(_Muon, **change)) for name, change in WRONG.items()}
    call = partial(_three_steps, my, my.Muon)
    yield Case("three steps of Muon(gpt)", call, _three_steps(my, _Muon), mistakes)
    yield Case("train_gpt(gpt, ids, steps=2, optimizer=optimizer)", partial(_check_optimizer, my))


class _Largest(TorchFunctionMode):
    """Record the size of the largest tensor that a torch function returns."""

    size = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.size = max(self.size, result.numel())
        return result


def _check_size(function: Callable[[Tensor], Any]) -> None:
    """Raise Mistake if a tall matrix is not transposed first: then the same result takes much longer."""
    with _Largest() as largest:
        function(randn(64, 4))
    if largest.size > 64 * 4:
        raise Mistake("multiplies matrices of 64 by 64: transpose a tall matrix first, then 4 by 4 are enough")


WRONG: dict[str, dict[str, Any]] = {
    "the queries, keys and values are one matrix": {"parts": 1},
    "Muon also trains the embeddings": {"prefix": ""},
    "the weight decay is missing": {"decay": 0.0},
    "the momentum is that of the updates, not of the gradients": {"is_late": True},
    "the gradient is not added to its mean again (Nesterov)": {"nesterov": False},
    "the updates are not scaled by the root of rows / columns": {"power": 0.0},
    "the updates are scaled by rows / columns, not by its root": {"power": 1.0},
    "the updates are scaled by the root of columns / rows": {"is_inverse": True},
    "the mean keeps 5% of its value at each step, not 95%": {"kept": 1 - MOMENTUM},
}
"""How `_Muon` differs for each mistake of a reader."""


@dataclass
class _Muon:
    """Muon for the matrices whose names start with `prefix`, and AdamW for the other parameters."""

    gpt: nn.Module
    prefix: str = "blocks."
    parts: int = 3
    decay: float = DECAY
    is_late: bool = False
    nesterov: bool = True
    power: float = 0.5
    is_inverse: bool = False
    kept: float = MOMENTUM

    def __post_init__(self) -> None:
        named = dict(self.gpt.named_parameters())
        self.matrices = {n: p for n, p in named.items() if p.ndim == 2 and n.startswith(self.prefix)}
        self.means: dict[str, Tensor] = {}
        rest = [p for name, p in named.items() if name not in self.matrices]
        groups = [{"params": [p], "weight_decay": 0.1 * (p.ndim == 2)} for p in rest]
        self.rest = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.99))

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for name, p in self.matrices.items():
            assert p.grad is not None
            parts = self.parts if "qkv" in name else 1
            change = self.mean(name, p.grad) if not self.is_late else p.grad
            update = torch.cat([rounds(part) for part in change.chunk(parts)])
            if self.is_late:
                update = self.mean(name, update)
            ratio = p.size(0) / parts / p.size(1)
            ratio = 1 / ratio if self.is_inverse else ratio
            p.mul_(1 - rate * self.decay).sub_(update, alpha=rate * max(1, ratio) ** self.power)
        self.rest.step()

    def mean(self, name: str, value: Tensor) -> Tensor:
        """Add `value` to the running mean with this name. Return the mean, moved toward `value` again if `nesterov`."""
        mean = self.means.setdefault(name, torch.zeros_like(value)).lerp_(value, 1 - self.kept)
        return value.lerp(mean, MOMENTUM) if self.nesterov else mean


def _three_steps(my: Any, make: Callable[[nn.Module], Any]) -> Tensor:
    """Return the parameters of a small GPT after three steps of the optimizer that `make` returns for it."""
    gpt = my.GPT(9, 16, n_layer=1, n_head=2, C=4).double()
    for parameter in gpt.parameters():
        parameter.data = randn(*parameter.shape).double()
    optimizer = make(gpt)
    for step in range(STEPS):
        for parameter in gpt.parameters():
            parameter.grad = randn(*parameter.shape).double().roll(step)
        optimizer.step(RATE)
    return torch.cat([parameter.detach().flatten() for parameter in gpt.parameters()])


def _check_optimizer(my: Any) -> None:
    """Raise Mistake if `train_gpt` does not use the optimizer that it is given."""
    rates: list[float] = []
    my.train_gpt(Recorder(), torch.arange(V), 2, batch=BATCH, optimizer=SimpleNamespace(step=rates.append))
    if len(rates) != 2:
        raise Mistake(f"calls optimizer.step {len(rates)} times, not 2 times")
