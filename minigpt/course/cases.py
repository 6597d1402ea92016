"""What `course check` compares: the reader's code in `mygpt.py` with minigpt's own computation.

Letters in shapes: B batch, T time, C width, H heads, D head size, V vocabulary.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.course import letters
from minigpt.course.by_hand import W_K, W_Q, X
from minigpt.course.comparison import EXCHANGED, Case
from minigpt.course.gpt_cases import block, heads, learned, yours
from minigpt.course.muon_cases import muon
from minigpt.course.recorder import check_rate, check_training
from minigpt.course.small_models import randn
from minigpt.model.gpt import attention_weights, causal_mask, rope_cos_sin
from minigpt.model.kernels import apply_rope

TEXT = 'She says: "I am Ada from Maporo."'


def guess(my: Any) -> Iterator[Case]:
    """Check chapter 1."""
    alphabet = sorted(set(TEXT))
    ids = torch.tensor([alphabet.index(letter) for letter in TEXT])
    V = len(alphabet)
    expected = letters.table(ids, 1, V)
    counts = 1 + torch.bincount(ids[:-1] * V + ids[1:], minlength=V * V).view(V, V)
    yield Case("vocabulary(text)", lambda: my.vocabulary(TEXT), alphabet)
    yield Case("encode(text, letters)", lambda: my.encode(TEXT, alphabet), ids)
    mistakes = {
        "each column sums to 1, not each row": counts / counts.sum(0),
        "the sum of the rows has no keepdim=True": counts / counts.sum(1),
        "no 1 is added to the counts": (counts - 1) / (counts - 1).sum(1, keepdim=True),
    }
    yield Case("pair_probabilities(ids, V)", lambda: my.pair_probabilities(ids, V), expected, mistakes)
    loss = torch.tensor(letters.loss_of_table(expected, ids, 1, V))
    mistakes = {"the minus is missing": -loss, "it is the sum, not the mean": loss * (len(ids) - 1)}
    yield Case("loss_of_pairs(probabilities, ids)", lambda: my.loss_of_pairs(expected, ids), loss, mistakes)
    logits = randn(V, V)
    x, y = (ids[start : start + 30].view(6, 5) for start in (0, 1))
    losses = F.cross_entropy(logits[x].flatten(0, 1), y.flatten(), reduction="none")
    mistakes = {
        "the targets are not the next letters": F.cross_entropy(logits[x].flatten(0, 1), x.flatten()),
        "it is the sum, not the mean": losses.sum(),
        "it is the loss of one window": losses[:5].mean(),
    }
    call = partial(my.evaluate, lambda ids: logits[ids] * ids.size(1) / 5, ids, context=5)
    yield Case("evaluate(model, ids, context=5)", call, losses.mean(), mistakes)
    prompt, shares = "I am Ada", logits[ids[TEXT.index("Ada") + 2]].softmax(-1)
    mistakes = {
        "it is the probability at the first position": logits[ids[TEXT.index("I")]].softmax(-1)[alphabet.index("m")],
        "it is the logit, without a softmax": logits[ids[TEXT.index("Ada") + 2]][alphabet.index("m")],
    }
    call = partial(my.chance, lambda ids: logits[ids], prompt, "m", alphabet)
    yield Case('chance(model, text, "m", letters)', call, shares[alphabet.index("m")], mistakes)


def average(my: Any) -> Iterator[Case]:
    """Check chapter 2."""
    values, mask = randn(2, 6, 4), causal_mask(6, 6, torch.device("cpu"))
    mistakes = {"it is true for later letters, not for earlier ones": mask.T, "a letter must see itself": mask.tril(-1)}
    yield Case("may_see(6)", lambda: my.may_see(6), mask, mistakes)
    mistakes = {
        "each column of the weights sums to 1, not each row": (mask / mask.sum(0)) @ values,
        "each row is divided by T, not by its sum": (mask / 6) @ values,
        "it averages later letters too": values.mean(1, keepdim=True).expand(2, 6, 4),
    }
    expected = (mask / mask.sum(1, keepdim=True)) @ values
    yield Case("average_past(values)", lambda: my.average_past(values), expected, mistakes)


def score(my: Any) -> Iterator[Case]:
    """Check chapter 3."""
    fox, w_q, w_k = (torch.tensor(matrix, dtype=torch.float32) for matrix in (X, W_Q, W_K))
    expected = (fox @ w_q) @ (fox @ w_k).T
    yield Case("scores(fox, W_Q, W_K)", lambda: my.scores(fox, w_q, w_k), expected, {EXCHANGED: expected.T})
    x, a, b = randn(6, 4), randn(4, 3), randn(4, 3).flip(0)
    yield Case("scores(x, W_Q, W_K)", lambda: my.scores(x, a, b), (x @ a) @ (x @ b).T)


def attend(my: Any) -> Iterator[Case]:
    """Check chapter 4."""
    small, large = randn(3, 5), 1000 * randn(2, 5)
    q, k, v = randn(3, 2, 6, 4)
    weights, products = attention_weights(q, k), q @ k.mT
    mistakes = {
        "each column sums to 1, not each row": small.softmax(0),
        "all scores together sum to 1": small.flatten().softmax(0).view_as(small),
    }
    yield Case("softmax(scores)", lambda: my.softmax(small), small.softmax(-1), mistakes)
    mistakes = {"the largest score is not subtracted": large.exp() / large.exp().sum(-1, keepdim=True)}
    yield Case("softmax(1000 * scores)", lambda: my.softmax(large), large.softmax(-1), mistakes)
    mistakes = {
        "the scores are not divided by the root of d_k": attention_weights(2 * q, k),
        "the scores are divided by d_k, not by its root": attention_weights(q / 2, k),
        EXCHANGED: attention_weights(k, q),
        "later letters are not masked": (products / 2).softmax(-1),
        "the mask comes after the softmax": (products / 2).softmax(-1).tril(),
    }
    yield Case("attention_weights(q, k)", lambda: my.attention_weights(q, k), weights, mistakes)
    yield Case("attend(q, k, v)", lambda: my.attend(q, k, v), weights @ v)


def head(my: Any) -> Iterator[Case]:
    """Check chapter 5."""
    x, zeros, theirs = randn(2, 6, 8), torch.zeros(1, 8), my.Head(8, 4)
    for name in ("query", "key", "value"):
        call = partial(_project, getattr(theirs, name), zeros)
        yield Case(f"Head(8, 4).{name}(zeros)", call, torch.zeros(1, 4), {"it has a bias": call()})
    mistakes = {EXCHANGED: _head_output(theirs, x, swap=True)}
    yield Case("Head(8, 4)(x)", lambda: theirs(x), _head_output(theirs, x), mistakes)
    model = my.OneHead(9, 8)
    ids = torch.arange(12).view(2, 6) % 9
    embedded = model.embedding(ids)
    attended = _head_output(model.head, embedded)
    mistakes = {
        "the letter's own x is not added": model.output(attended),
        "the head is left out": model.output(embedded),
    }
    yield Case("OneHead(9, 8)(ids)", lambda: model(ids), model.output(embedded + attended), mistakes)
    yield Case("train(model, ids, steps=30, context=4, batch=4)", partial(check_training, my.train))
    yield Case("train(model, ids, steps=1, context=4, batch=4, rate=0)", partial(check_rate, my.train))


def _project(layer: Any, x: Tensor) -> Tensor:
    """Return the output of a head's layer for x (..., C), or the product of x with a matrix."""
    if isinstance(layer, Tensor):
        return x @ (layer if layer.size(0) == x.size(-1) else layer.T)
    output: Tensor = layer(x)
    return output


def _head_output(theirs: Any, x: Tensor, swap: bool = False) -> Tensor:
    """Return what a head with `query`, `key` and `value` computes. With `swap`, queries and keys are exchanged."""
    q, k, v = (_project(layer, x) for layer in (theirs.query, theirs.key, theirs.value))
    return (attention_weights(k, q) if swap else attention_weights(q, k)) @ v


def positions(my: Any) -> Iterator[Case]:
    """Check chapter 6."""
    x, (cos, sin) = randn(2, 6, 8), rope_cos_sin(6, 8)
    neighbors = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    of_neighbors = apply_rope(x[..., neighbors], torch.stack((cos, sin)))
    mistakes = {
        "it rotates backward": apply_rope(x, torch.stack((cos, -sin))),
        "it pairs neighbors, not the two halves": of_neighbors,
        "it pairs neighbors, and leaves them in place": of_neighbors[..., neighbors.argsort()],
        "the first position is 1, not 0": apply_rope(F.pad(x, (0, 0, 1, 0)), rope_cos_sin(7, 8))[:, 1:],
    }
    yield Case("rope(x)", lambda: my.rope(x), apply_rope(x, torch.stack((cos, sin))), mistakes)


def replaced(my: Any) -> Iterator[Case]:
    """Check chapter 12."""
    layer = nn.LSTM(4, 4, bias=True, batch_first=True)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = randn(2, 6, 4)
    W, U, b1, b2 = layer.parameters()
    b = b1 + b2
    h, c = randn(2, 2, 4)
    _, ((h2,), (c2,)) = layer(x[:, :1], (h[None], c[None]))
    swapped = {"h and c are exchanged": c2}
    yield Case("lstm_step(x, h, c, W, U, b)[0]", lambda: my.lstm_step(x[:, 0], h, c, W, U, b)[0], h2, swapped)
    yield Case("lstm_step(x, h, c, W, U, b)[1]", lambda: my.lstm_step(x[:, 0], h, c, W, U, b)[1], c2)
    yield Case("lstm(x, W, U, b)", lambda: my.lstm(x, W, U, b), layer(x)[0])


CASES: tuple[Callable[[Any], Iterator[Case]], ...]
CASES = (guess, average, score, attend, head, positions, heads, block, yours, muon, learned, replaced)
