"""Recurrent networks.

A recurrent network processes one token at a time. A plain one (Elman 1990) has one state vector, which it updates with
each token:

    h_t = f(W h_(t-1) + x_t)

Everything that the last state knows about the first token passes through every step between them. On the way back, each
step multiplies a gradient by a matrix diag(f') W. The product of many such matrices usually vanishes or explodes
(Bengio et al. 1994). Attention connects any two positions in one step.
"""

from collections.abc import Callable
from typing import Any

import torch
from claim import claim, fmt, trained
from models import EXACT, calls, max_abs, normal, small_gpt
from torch import Tensor
from torch.overrides import TorchFunctionMode

from minigpt.model.gpt import attention_weights, use_kernels
from minigpt.model.kernels import TORCH

WIDTH, STEPS = 32, 64


def last_state(weight: Tensor, inputs: Tensor, start: Tensor) -> Tensor:
    """Return the state (C) of a recurrent network with matrix W (C, C) after the inputs (T, C)."""
    state = start
    for x in inputs:
        state = (weight @ state + x).tanh()
    return state


@claim("The gradient over many steps of a recurrent network is a product of Jacobians, which can vanish")
@trained(
    "rivals",
    "recurrence#how-far-back-does-each-network-look",
    "The gradient vanishes in trained networks too. Divide the gradient at distances 91 to 107 by that at distance 1. "
    "After a minute of training, this ratio is {lstm/gradient[91:107] / lstm/gradient[1:1]} in an LSTM and "
    "{gru/gradient[91:107] / gru/gradient[1:1]} in a GRU. In a plain recurrent network, it is "
    "{rnn/gradient[91:107] / rnn/gradient[1:1]}.",
    lambda *ratios: max(ratios) < 0.001,
)
def test_claim_vanishing_gradients() -> str:
    """Multiply the Jacobians of 64 steps. Their product vanishes. At step 8 it equals the Jacobian from autograd."""
    weight, inputs = 0.9 * torch.linalg.qr(normal(WIDTH, WIDTH))[0], normal(STEPS, WIDTH)  # 0.9 times a rotation
    start = state = torch.zeros(WIDTH, dtype=torch.float64)
    product, products = torch.eye(WIDTH, dtype=torch.float64), []  # ∂h_t/∂h_0 (C, C)
    for x in inputs:
        state = (weight @ state + x).tanh()
        product = (1 - state**2)[:, None] * weight @ product  # diag(f') W
        products.append(product)
    by_torch = torch.autograd.functional.jacobian(lambda h: last_state(weight, inputs[:8], h), start)
    error = max_abs(products[7] - by_torch)
    norms = [float(torch.linalg.matrix_norm(products[step - 1], ord=2)) for step in (1, 4, 16, 64)]
    assert error < EXACT
    assert norms == sorted(norms, reverse=True)
    assert norms[-1] < 1e-6
    return f"|∂h_t/∂h_0| at t = 1, 4, 16, 64: {fmt(norms)}; autograd differs by {fmt(error)}"


@claim("In attention, the gradient of the output with respect to a value is its weight, at any distance")
@trained(
    "rivals",
    "recurrence#how-far-back-does-each-network-look",
    "After a minute of training, the gradient of a GPT at distances 91 to 107, divided by that at distance 1, is "
    "{baseline/gradient[91:107] / baseline/gradient[1:1]}. In an LSTM, it is "
    "{lstm/gradient[91:107] / lstm/gradient[1:1]}.",
    lambda gpt, lstm: gpt > 0.01 > 100 * lstm,
)
@trained(
    "rivals-pydoc",
    "recurrence#how-far-back-does-each-network-look",
    "On Python's documentation, the loss of a GPT is {baseline/by_position[17:32] - baseline/by_position[65:128]} "
    "nats lower at positions 65 to 128 than at positions 17 to 32. For an LSTM, the "
    "difference is {lstm/by_position[17:32] - lstm/by_position[65:128]} nats.",
    lambda gpt, lstm: gpt > 1.5 * lstm > 0,
)
def test_claim_attention_gradients() -> str:
    """Place a matching key at four distances. At each, the gradient that reaches its value is its weight."""
    q, k, v = normal(3, STEPS, WIDTH)
    values, gradients = v.requires_grad_(), []
    for distance in (1, 4, 16, 63):
        position = STEPS - 1 - distance
        keys = k.clone()
        keys[position] = 1.5 * q[-1]  # matches the last query
        weights = attention_weights(q[-1:], keys)
        (gradient,) = torch.autograd.grad((weights @ values)[0, 0], values)
        assert abs(gradient[position, 0] - weights[0, position]) < EXACT
        gradients.append(gradient[position, 0].item())
    assert min(gradients) > 0.9
    return f"gradient that reaches the matching value at distances 1, 4, 16, 63: {fmt(gradients)}"


@claim(
    "In a minute on a CPU, a small LSTM learns Tiny Shakespeare faster than a GPT of its size",
    said="Attention replaces recurrent networks because these forget.",
    mistake="At this scale, attention has no advantage. Recurrent networks do forget: also after training, their "
    "gradients vanish with distance. But the next character of this text depends mostly on the last 16 characters.",
)
@trained(
    "rivals",
    "recurrence#does-attention-learn-more-than-recurrence",
    "After a minute of training at equal size and time, the loss of a GPT on Tiny Shakespeare is {baseline}. The "
    "losses of an LSTM, a GRU and a plain recurrent network are {lstm}, {gru} and {rnn}.",
    lambda gpt, lstm, gru, rnn: lstm < gpt,
)
def test_claim_lstm() -> None: ...


@claim(
    "Attention processes 100 tokens in 1 step, but generates them in 100, like a recurrent network",
    said="Attention takes 1 step where a recurrent network takes 100.",
    mistake="This is true of processing a text. Generating a text takes a step per token.",
)
@trained(
    "lengths",
    "recurrence#how-do-time-and-memory-grow-with-the-length",
    "Fewer steps are not always faster. On two CPU cores, a GPT takes {modern/train_ms[6:6] / lstm/train_ms[6:6]} "
    "times as long as an LSTM of the same size to train on 2,048 characters. It takes "
    "{modern/train_ms[6:6] / rnn/train_ms[6:6]} times as long as a plain recurrent network.",
    lambda lstm, rnn: min(lstm, rnn) > 1,
)
def test_claim_steps() -> str:
    """Count forward passes. A GPT trains on all tokens in one pass; generation needs one pass per token."""
    model, ids = small_gpt(context=128), torch.arange(100)[None] % 12

    def write(text: Tensor) -> None:
        for _ in range(100):
            text = torch.cat((text, model(text)[:, -1:].argmax(-1)), dim=1)

    reading = calls(model.token_embedding, lambda: model(ids))
    writing = calls(model.token_embedding, lambda: write(ids[:, :1]))
    assert (reading, writing) == (1, 100)
    return f"steps of attention to process 100 tokens: {reading}; to generate them: {writing}"


class CountMultiplications(TorchFunctionMode):
    """Count the scalar multiplications of the matrix multiplications in a `with` block."""

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


@claim("For n tokens of width d, the cost of a recurrent network grows as n·d², that of attention as n²·d")
@trained(
    "lengths",
    "recurrence#how-do-time-and-memory-grow-with-the-length",
    "From 256 to 2,048 characters, the training time of a GPT grows as the length to the power of "
    "{modern/train_ms exponent}, that of an LSTM to the power of {lstm/train_ms exponent}. The GPT's exponent is "
    "below 2, because its matrix multiplications with the weights grow only linearly with the length.",
    lambda gpt, lstm: lstm + 0.2 < gpt < 2 and abs(lstm - 1) < 0.1,
)
def test_claim_cost() -> str:
    """Count multiplications. Attention needs 2 d per pair of tokens; a recurrent network needs d² per token.

    Of these 2 d multiplications, d compute the score and d the weighted sum. A transformer block also has 12 d²
    weights, each used once per token. Attention therefore costs more than the rest of its block only for texts longer
    than 6 d tokens.
    """

    def attend(T: int, d: int) -> int:
        q, k, v = torch.zeros(3, T, d)
        return multiplications(lambda: attention_weights(q, k) @ v)

    def recur(T: int, d: int) -> int:
        return multiplications(lambda: last_state(torch.zeros(d, d), torch.zeros(T, d), torch.zeros(d)))

    longer = attend(128, 32) / attend(64, 32), recur(128, 32) / recur(64, 32)
    wider = attend(64, 64) / attend(64, 32), recur(64, 64) / recur(64, 32)
    model, core = small_gpt(n_layer=1, n_embd=32, context=192), attend(192, 32)  # 192 tokens are 6 d
    use_kernels(model, TORCH)  # its attention is one fused function, so only the weight matrices are counted
    weights = multiplications(lambda: model.blocks[0](torch.zeros(1, 192, 32, dtype=torch.float64)))
    assert (*longer, *wider) == (4, 2, 2, 4)
    assert weights == core
    return (
        f"cost of attention and recurrence: ×{fmt(longer[0])} and ×{fmt(longer[1])} at twice the length, "
        f"×{fmt(wider[0])} and ×{fmt(wider[1])} at twice the width; at length 6 d attention takes "
        f"{core:,} multiplications, the block's weights {weights:,}"
    )
