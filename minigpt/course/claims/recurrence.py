"""Recurrent networks.

A recurrent network reads one token at a time. A plain one (Elman 1990) has one state vector, which it updates with
each token:

    h_t = f(W h_(t-1) + x_t)

Everything that the last state knows about the first passes through every step between them. On the way back, each
step multiplies a gradient by a matrix diag(f') W. Such a product vanishes or explodes unless each factor is just right
(Bengio et al. 1994). Attention connects any two positions in one step.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minigpt.course.claims.claim import Claim, Finding, fmt, max_abs
from minigpt.course.claims.experiment import Experiment
from minigpt.course.small_models import EXACT, normal, randomize, record_inputs, small_gpt
from minigpt.model.gpt import attention_weights, use_kernels
from minigpt.model.kernels import TORCH

WIDTH, STEPS = 32, 64
Activation = Callable[[Tensor], Tensor]


def last_state(weight: Tensor, inputs: Tensor, start: Tensor, activation: Activation) -> Tensor:
    """Return the state (C) of a recurrent network with matrix W (C, C) after reading inputs (T, C)."""
    state = start
    for x in inputs:
        state = activation(weight @ state + x)
    return state


def jacobians(weight: Tensor, inputs: Tensor, activation: Activation) -> list[Tensor]:
    """Return ∂h_t/∂h_0 (C, C) for each step t. Each step adds a factor diag(f') W."""
    state, product, products = torch.zeros(WIDTH, dtype=torch.float64), torch.eye(WIDTH, dtype=torch.float64), []
    for x in inputs:
        before = (weight @ state + x).detach().requires_grad_()
        state = activation(before)
        (slope,) = torch.autograd.grad(state.sum(), before)  # f', because f is elementwise
        product = slope[:, None] * weight @ product
        products.append(product)
    return products


def norm(matrix: Tensor) -> float:
    """Return the spectral norm: the largest factor by which a matrix changes the length of a vector."""
    return float(torch.linalg.matrix_norm(matrix, ord=2))


def rotation(claim: int) -> Tensor:
    """Return a random orthogonal matrix (C, C). Multiplied by a gain g, it scales every vector's length by g."""
    q: Tensor = torch.linalg.qr(normal(WIDTH, WIDTH, claim=claim, part="rotation"))[0]
    return q


def product_vanishes() -> Finding:
    """Multiply the Jacobians of 64 steps. Their product vanishes. At step 8 it equals the Jacobian from autograd."""
    weight, inputs = 0.9 * rotation(73), normal(STEPS, WIDTH, claim=73)
    chain = jacobians(weight, inputs, torch.tanh)
    start = torch.zeros(WIDTH, dtype=torch.float64)
    by_torch = torch.autograd.functional.jacobian(lambda h: last_state(weight, inputs[:8], h, torch.tanh), start)
    error = max_abs(chain[7] - by_torch)
    norms = [norm(chain[step - 1]) for step in (1, 4, 16, 64)]
    measured = f"|∂h_t/∂h_0| at t = 1, 4, 16, 64: {fmt(norms)}; autograd differs by {fmt(error)}"
    return Finding(error < EXACT and norms == sorted(norms, reverse=True) and norms[-1] < 1e-6, measured)


DISTANCES = (1, 4, 16, 63)


def weight_decides_not_distance() -> Finding:
    """Place a matching key at four distances. At any distance, the gradient that reaches its value is its weight."""
    q, k, v, inputs = normal(4, STEPS, WIDTH, claim=78)
    values, attention, recurrence = v.requires_grad_(), [], []
    chain = jacobians(rotation(78), inputs, torch.tanh)
    for distance in DISTANCES:
        position = STEPS - 1 - distance
        keys = k.clone()
        keys[position] = 2 * q[-1]  # matches the last query
        (gradient,) = torch.autograd.grad((attention_weights(q[-1:], keys) @ values)[0, 0], values)
        attention.append(gradient[position, 0].item())
        recurrence.append(norm(chain[distance - 1]))
    measured = (
        f"gradient that reaches the matching value at distances 1, 4, 16, 63: {fmt(attention)}; "
        f"in a recurrent network: {fmt(recurrence)}"
    )
    return Finding(min(attention) > 0.9 and recurrence[-1] < 1e-6, measured)


def steps_counted() -> Finding:
    """Count forward passes. In training a GPT reads all tokens in one pass; generation needs one pass per token."""
    model, cell = small_gpt(81, context=128), randomize(lambda: nn.RNNCell(WIDTH, WIDTH), claim=81)
    ids = torch.arange(100)[None] % 12

    def write(text: Tensor) -> None:
        for _ in range(100):
            text = torch.cat((text, model(text)[:, -1:].argmax(-1)), dim=1)

    def recur(text: Tensor | None) -> None:
        state = torch.zeros(WIDTH, dtype=torch.float64)
        for position in range(100):
            state = cell(state if text is None else text[position], state)  # without a text, feeds its output back

    steps = [
        len(record_inputs(model.token_embedding, lambda: model(ids))),
        len(record_inputs(model.token_embedding, lambda: write(ids[:, :1]))),
        len(record_inputs(cell, lambda: recur(normal(100, WIDTH, claim=81)))),
        len(record_inputs(cell, lambda: recur(None))),
    ]
    measured = "steps to read and generate 100 tokens: attention {} and {}, recurrence {} and {}".format(*steps)
    return Finding(steps == [1, 100, 100, 100], measured)


class CountMultiplications(TorchFunctionMode):
    """Counts the scalar multiplications of matrix products within a `with` block."""

    count: int = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.__name__ in ("matmul", "linear"):
            self.count += out.numel() * args[0].size(-1)
        return out


def multiplications(run: Callable[[], object]) -> int:
    """Call `run` and return its number of multiplications."""
    with CountMultiplications() as counter:
        run()
    return int(counter.count)


def products_counted() -> Finding:
    """Count multiplications. Attention needs 2 d per pair of tokens; a recurrent network needs d² per token.

    The 2 d are d for the score and d for the weighted sum. A transformer block also has 12 d² weights, each used once
    per token. Attention therefore costs more than the rest of its block only for texts longer than 6 d tokens.
    """

    def attend(T: int, d: int) -> int:
        q, k, v = torch.zeros(3, T, d)
        return multiplications(lambda: attention_weights(q, k) @ v)

    def recur(T: int, d: int) -> int:
        return multiplications(lambda: last_state(torch.zeros(d, d), torch.zeros(T, d), torch.zeros(d), torch.tanh))

    longer = attend(128, 32) / attend(64, 32), recur(128, 32) / recur(64, 32)
    wider = attend(64, 64) / attend(64, 32), recur(64, 64) / recur(64, 32)
    model, core = small_gpt(82, n_layer=1, n_embd=32, context=192), attend(192, 32)  # 192 tokens are 6 d
    use_kernels(model, TORCH)  # its attention is one fused function, so only the weight matrices are counted
    weights = multiplications(lambda: model.blocks[0](torch.zeros(1, 192, 32, dtype=torch.float64)))
    measured = (
        f"cost of attention and recurrence: ×{fmt(longer[0])} and ×{fmt(longer[1])} at twice the length, "
        f"×{fmt(wider[0])} and ×{fmt(wider[1])} at twice the width; at length 6 d attention takes "
        f"{core:,} multiplications, the block's weights {weights:,}"
    )
    return Finding((*longer, *wider) == (4, 2, 2, 4) and weights == core, measured)


LSTM_AGAINST_GPT = Experiment(
    "rivals",
    "recurrence#does-attention-learn-more-than-recurrence",
    "After a minute of training at equal size and time, the loss of a GPT on Tiny Shakespeare is {baseline}. Those of "
    "an LSTM, a GRU and a plain recurrent network are {lstm}, {gru} and {rnn}.",
    lambda gpt, lstm, gru, rnn: lstm < gpt,
)

GRADIENTS = Experiment(
    "rivals",
    "recurrence#how-far-back-does-each-network-look",
    "It vanishes in trained networks too. Divide the gradient at distances 91 to 107 by that at distance 1. After a "
    "minute of training, this ratio is {lstm/gradient[91:107] / lstm/gradient[1:1]} in an LSTM and "
    "{gru/gradient[91:107] / gru/gradient[1:1]} in a GRU. In a plain recurrent network, it is "
    "{rnn/gradient[91:107] / rnn/gradient[1:1]}.",
    lambda *ratios: max(ratios) < 0.001,
)
GRADIENT_OF_ATTENTION = Experiment(
    "rivals",
    "recurrence#how-far-back-does-each-network-look",
    "After a minute of training, the gradient of a GPT at distances 91 to 107, divided by that at distance 1, is "
    "{baseline/gradient[91:107] / baseline/gradient[1:1]}. In an LSTM, it is "
    "{lstm/gradient[91:107] / lstm/gradient[1:1]}.",
    lambda gpt, lstm: gpt > 0.01 > 100 * lstm,
)
FORGETTING = Experiment(
    "rivals-pydoc",
    "recurrence#how-far-back-does-each-network-look",
    "On Python's documentation, the loss of a GPT is {baseline/by_position[17:32] - baseline/by_position[65:128]} "
    "nats lower at positions 65 to 128 than at positions 17 to 32. The loss of an LSTM is "
    "{lstm/by_position[17:32] - lstm/by_position[65:128]} nats lower there.",
    lambda gpt, lstm: gpt > 1.5 * lstm > 0,
)
STEPS_TAKE_TIME = Experiment(
    "lengths",
    "recurrence#how-do-time-and-memory-grow-with-the-length",
    "Fewer steps are not always faster. On two CPU cores, a GPT takes "
    "{modern/train_ms[6:6] / lstm/train_ms[6:6]} times as long as an LSTM of the same size to train on 2,048 "
    "characters. It takes {modern/train_ms[6:6] / rnn/train_ms[6:6]} times as long as a plain recurrent network.",
    lambda lstm, rnn: min(lstm, rnn) > 1,
)
GROWTH = Experiment(
    "lengths",
    "recurrence#how-do-time-and-memory-grow-with-the-length",
    "From 256 to 2,048 characters, the training time of a GPT grows as the length to the power of "
    "{modern/train_ms exponent}, that of an LSTM to the power of {lstm/train_ms exponent}. The GPT's "
    "exponent is below 2, because its matrix multiplications with the weights grow only linearly with the length.",
    lambda gpt, lstm: lstm + 0.2 < gpt < 2 and abs(lstm - 1) < 0.1,
)


CLAIMS = (
    Claim(
        73,
        "The gradient over many steps of a recurrent network is a product of Jacobians, which can vanish",
        product_vanishes,
        said="Recurrent networks forget because a product of Jacobians vanishes.",
        trained=(GRADIENTS,),
    ),
    Claim(
        78,
        "In attention, the gradient that reaches a value is its weight, at any distance",
        weight_decides_not_distance,
        said="Attention does not forget, because it weighs every word.",
        trained=(GRADIENT_OF_ATTENTION, FORGETTING),
    ),
    Claim(
        79,
        "In a minute on a CPU, a small LSTM learns Tiny Shakespeare faster than a GPT of its size",
        trained=(LSTM_AGAINST_GPT,),
        said="Attention replaces recurrent networks because these forget.",
        mistake="Not at this scale. They do forget: their gradients vanish with distance, also after training. But the "
        "next character of this text depends mostly on the last 16.",
    ),
    Claim(
        81,
        "Attention reads 100 tokens in 1 step, but generates them in 100, like a recurrent network",
        steps_counted,
        said="Attention takes 1 step where a recurrent network takes 100.",
        mistake="This is true of processing a text. Generating one takes a step per token.",
        trained=(STEPS_TAKE_TIME,),
    ),
    Claim(
        82,
        "For n tokens, a recurrent network costs n·d² and attention n²·d",
        products_counted,
        trained=(GROWTH,),
    ),
)
