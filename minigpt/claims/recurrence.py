"""What attention replaced: a network that reads one character after the other, and has to remember.

A plain recurrent network (Elman 1990) keeps one vector, and makes the next of it and of the next character:

    h_t = f(W h_(t-1) + x_t)

What the last state still knows of the first passes through every step between. The way back of a gradient is the
product of as many matrices diag(f') W, and such a product goes to zero or to infinity unless each is just right
(Bengio et al. 1994). Attention goes from any place to any other in one step.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minigpt.claims.claim import Claim, Finding, figure, figures, largest
from minigpt.claims.material import EXACT, attention, awake, gpt, normal, reaching
from minigpt.config.schema import SampleConfig
from minigpt.model.gpt import attention_weights
from minigpt.model.kernels import TORCH
from minigpt.sampling.generate import generate_ids

WIDTH, STEPS = 32, 64
Activation = Callable[[Tensor], Tensor]


def last_state(weight: Tensor, inputs: Tensor, start: Tensor, activation: Activation) -> Tensor:
    """Return the state (C) after reading inputs (T, C) from the state `start`, by a matrix W (C, C)."""
    state = start
    for x in inputs:
        state = activation(weight @ state + x)
    return state


def jacobians(weight: Tensor, inputs: Tensor, activation: Activation) -> list[Tensor]:
    """Return the derivatives of each state by the first, (C, C) each: one factor diag(f') W more at every step."""
    state, product, found = torch.zeros(WIDTH, dtype=torch.float64), torch.eye(WIDTH, dtype=torch.float64), []
    for x in inputs:
        before = (weight @ state + x).detach().requires_grad_()
        state = activation(before)
        (slope,) = torch.autograd.grad(state.sum(), before)  # f', for f works on each number alone
        product = slope[:, None] * weight @ product
        found.append(product)
    return found


def size(matrix: Tensor) -> float:
    """Return by what a matrix multiplies the length of the vector that it lengthens most."""
    return float(torch.linalg.matrix_norm(matrix, ord=2))


def rotation(claim: int) -> Tensor:
    """Return a random matrix (C, C) that changes no length, so that gain times it changes each by the gain."""
    q: Tensor = torch.linalg.qr(normal(WIDTH, WIDTH, claim=claim, part="rotation"))[0]
    return q


# --- gradients over distance -------------------------------------------------------------------------


def product_vanishes() -> Finding:
    """The chain rule, step by step, and torch's own derivative through all of the steps, are the same matrix."""
    weight, inputs = 0.9 * rotation(73), normal(STEPS, WIDTH, claim=73)
    chain = jacobians(weight, inputs, torch.tanh)
    start = torch.zeros(WIDTH, dtype=torch.float64)
    by_torch = torch.autograd.functional.jacobian(lambda h: last_state(weight, inputs[:8], h, torch.tanh), start)
    error = largest(chain[7] - by_torch)
    sizes = [size(chain[step - 1]) for step in (1, 4, 16, 64)]
    measured = f"|∂h_t/∂h_0| at t = 1, 4, 16, 64: {figures(sizes)}; torch's derivative differs by {figure(error)}"
    return Finding(error < EXACT and sizes == sorted(sizes, reverse=True) and sizes[-1] < 1e-6, measured)


def why_it_vanishes() -> Finding:
    """Without either cause nothing vanishes; each of them alone is enough. A sigmoid's slope is 1/4 at most."""
    inputs, left = normal(STEPS, WIDTH, claim=74) / 4, {}
    for name, activation in {"none": lambda z: 1 * z, "tanh": torch.tanh, "sigmoid": torch.sigmoid}.items():
        for gain in (1.0, 0.9):
            left[name, gain] = size(jacobians(gain * rotation(74), inputs, activation)[-1])
    measured = f"of 1 there is left after {STEPS} steps, at gain 1 and 0.9 of W: " + "; ".join(
        f"{figure(left[name, 1.0])} and {figure(left[name, 0.9])} ({name})" for name in ("none", "tanh", "sigmoid")
    )
    neither, small, flat = left["none", 1.0], left["none", 0.9], (left["tanh", 1.0], left["sigmoid", 1.0])
    return Finding(abs(neither - 1) < EXACT and small < 0.01 and max(flat) < 0.01, measured)


def cure_explodes() -> Finding:
    """What makes up for a slope below 1 is a gain above 1, and where the slope is 1 that grows without end.

    Clipping (Pascanu et al. 2013) shortens such a gradient, and leaves it its direction.
    """
    inputs, grown = normal(STEPS, WIDTH, claim=75) / 4, {}
    for name, activation in {"none": lambda z: 1 * z, "relu": torch.relu, "tanh": torch.tanh}.items():
        grown[name] = size(jacobians(2.0 * rotation(75), inputs, activation)[-1])
    gradient = 1e6 * normal(WIDTH, claim=75, part="gradient")
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient.clone()
    nn.utils.clip_grad_norm_([parameter], max_norm=1.0)
    length, cosine = parameter.grad.norm().item(), F.cosine_similarity(parameter.grad, gradient, dim=0).item()
    measured = (
        f"after {STEPS} steps at gain 2: "
        + ", ".join(f"{figure(value)} ({name})" for name, value in grown.items())
        + f"; clipped, a gradient of length {figure(gradient.norm())} has {figure(length)} and cosine {figure(cosine)}"
    )
    return Finding(min(grown.values()) > 1000 and abs(length - 1) < 1e-6 and abs(cosine - 1) < EXACT, measured)


DISTANCES = (1, 4, 16, 63)


def shortcut_to_the_source() -> Finding:
    """How strongly the last output depends on a character, by its distance: in one layer each is one step away."""
    inputs, direction = normal(STEPS, WIDTH, claim=18).requires_grad_(), normal(WIDTH, claim=18, part="direction")
    zeros = torch.zeros(WIDTH, dtype=torch.float64)
    outputs = {
        "attention": attention(18)(inputs[None])[0, -1],
        "recurrence": last_state(rotation(18), inputs, zeros, torch.tanh),
    }
    felt = {}
    for name, output in outputs.items():
        (gradient,) = torch.autograd.grad(output @ direction, inputs)
        felt[name] = [gradient[STEPS - 1 - distance].norm().item() for distance in DISTANCES]
    measured = "gradient at distance 1, 4, 16, 63: " + "; ".join(f"{figures(g)} ({name})" for name, g in felt.items())
    attended, recalled = felt["attention"], felt["recurrence"]
    return Finding(min(attended) > 0.1 * max(attended) and recalled[-1] < 1e-6 * recalled[0], measured)


def weight_decides_not_distance() -> Finding:
    """The gradient that reaches a value is its weight. So who fits the query learns, wherever it stands."""
    q, k, v, inputs = normal(4, STEPS, WIDTH, claim=78)
    values, reached, recalled = v.requires_grad_(), [], []
    chain = jacobians(rotation(78), inputs, torch.tanh)
    for distance in DISTANCES:
        place = STEPS - 1 - distance
        keys = k.clone()
        keys[place] = 2 * q[-1]  # what the last query looks for stands there
        (gradient,) = torch.autograd.grad((attention_weights(q[-1:], keys) @ values)[0, 0], values)
        reached.append(gradient[place, 0].item())
        recalled.append(size(chain[distance - 1]))
    measured = (
        f"of a gradient, {figures(reached)} reaches the value of the key that fits, at distance 1, 4, 16, 63; "
        f"{figures(recalled)} goes back as far in a recurrence"
    )
    return Finding(min(reached) > 0.9 and recalled[-1] < 1e-6, measured)


# --- steps and products ------------------------------------------------------------------------------


def steps_counted() -> Finding:
    """To train, a GPT reads all characters in one pass. To write, it needs each character for the next, as any."""
    model, cell, ids = gpt(81, context=128), awake(lambda: nn.RNNCell(WIDTH, WIDTH), claim=81), torch.arange(100) % 12

    def recur(text: Tensor | None) -> None:
        state = torch.zeros(WIDTH, dtype=torch.float64)
        for place in range(100):
            state = cell(state if text is None else text[place], state)  # what it writes is what it reads next

    steps = [
        len(reaching(model.token_embedding, lambda: model(ids[None]))),
        len(reaching(model.token_embedding, lambda: list(generate_ids(model, ids[:1], SampleConfig(length=100))))),
        len(reaching(cell, lambda: recur(normal(100, WIDTH, claim=81)))),
        len(reaching(cell, lambda: recur(None))),
    ]
    measured = "steps to read and to write 100 characters: {} and {} with attention, {} and {} by recurrence".format(
        *steps
    )
    return Finding(steps == [1, 100, 100, 100], measured)


class Multiplications(TorchFunctionMode):
    """Counts the multiplications of numbers in the matrix products of its block."""

    count: int = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.__name__ in ("matmul", "linear"):
            self.count += out.numel() * args[0].size(-1)
        return out


def multiplications(run: Callable[[], object]) -> int:
    """Return how many numbers are multiplied while `run` runs."""
    counter = Multiplications()
    with counter:
        run()
    return counter.count


def products_counted() -> Finding:
    """Attention multiplies for each pair of characters d numbers, a recurrence for each character d times d.

    A block also has matrices of 12 d² weights that meet each character once, as a recurrence's do. So attention
    comes to outweigh the rest of its block only in texts longer than 6 d.
    """

    def attend(T: int, d: int) -> int:
        q, k, v = torch.zeros(3, T, d)
        return multiplications(lambda: attention_weights(q, k) @ v)

    def recur(T: int, d: int) -> int:
        return multiplications(lambda: last_state(torch.zeros(d, d), torch.zeros(T, d), torch.zeros(d), torch.tanh))

    longer = attend(128, 32) / attend(64, 32), recur(128, 32) / recur(64, 32)
    wider = attend(64, 64) / attend(64, 32), recur(64, 64) / recur(64, 32)
    model, core = gpt(82, n_layer=1, n_embd=32, context=192), attend(192, 32)  # 192 characters are 6 d
    model.use(TORCH)  # whose attention is one function, so that only the block's own matrices are counted
    own = multiplications(lambda: model.blocks[0](torch.zeros(1, 192, 32, dtype=torch.float64)))
    measured = (
        f"attention and recurrence: twice the text ×{figure(longer[0])} and ×{figure(longer[1])}, twice the width "
        f"×{figure(wider[0])} and ×{figure(wider[1])}; at 6 d attention makes {core:,}, its block's matrices {own:,}"
    )
    return Finding((*longer, *wider) == (4, 2, 2, 4) and own == core, measured)


CLAIMS = (
    Claim(73, "Recurrent networks forget because a product of Jacobians vanishes.", ("001",), product_vanishes),
    Claim(74, "Recurrent gradients vanish because W is small or the activation is flat.", ("001",), why_it_vanishes),
    Claim(75, "A start or an activation that stops the vanishing invites explosion.", ("001",), cure_explodes),
    Claim(18, "Attention is a shortcut to the whole source.", ("004",), shortcut_to_the_source),
    Claim(78, "Attention does not forget, for it weighs every word.", ("001", "004"), weight_decides_not_distance),
    Claim(
        81,
        "Where a recurrent network takes 100 steps, attention takes 1.",
        ("001",),
        steps_counted,
        correction="In training it does. To write 100 characters both take 100 steps.",
    ),
    Claim(82, "A recurrent network costs n·d² for n characters, attention n²·d.", ("001",), products_counted),
)
