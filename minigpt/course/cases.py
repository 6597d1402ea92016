"""Compare the functions of the reader's `mygpt.py` with minigpt's own computation, in a process of its own.

Usage: python -m minigpt.course.cases CHAPTER FILE. The last line on stdout is JSON: {"passed": [...], "problem": ""}.
What the file prints goes to stderr.

Letters in shapes: B batch, T time, C width, H heads, D head size, V vocabulary.
"""

import importlib.util
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.course import letters
from minigpt.course.by_hand import W_K, W_Q, X
from minigpt.course.small_models import small_config
from minigpt.model.gpt import GPT, Block, attention_weights, causal_mask, rope_cos_sin
from minigpt.model.gpt import Attention as GPTAttention
from minigpt.model.kernels import apply_rope
from minigpt.paths import RUNS, is_run

TOLERANCE = 1e-4
CLASSIC: dict[str, Any] = {"n_embd": 8, "context": 16, "position": "learned", "bias": True}
"""The shape of a small `classic` model, for `small_config`."""
CLASSIC_RUN = "course-8"
Case = tuple[str, Callable[[], Any], Any]
"""What the reader would type, the call, and the expected result."""
TEXT = 'She says: "I am Ada from Maporo."'


def run_file(path: Path) -> ModuleType:
    """Return the reader's file as a module named `mygpt`."""
    spec = importlib.util.spec_from_file_location("mygpt", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mygpt"] = module
    sys.path.insert(0, str(path.parent))  # as if Python ran the file
    spec.loader.exec_module(module)
    return module


def randn(*shape: int) -> Tensor:
    """Return the same random numbers for the same shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def guess(my: Any) -> Iterator[Case]:
    """Check chapter 1."""
    alphabet = sorted(set(TEXT))
    ids = torch.tensor([alphabet.index(letter) for letter in TEXT])
    V = len(alphabet)
    expected = letters.table(ids, 1, V)
    yield "vocabulary(text)", lambda: my.vocabulary(TEXT), alphabet
    yield "encode(text, letters)", lambda: my.encode(TEXT, alphabet), ids
    yield "pair_probabilities(ids, V)", lambda: my.pair_probabilities(ids, V), expected
    yield (
        "loss_of_pairs(probabilities, ids)",
        lambda: my.loss_of_pairs(expected, ids),
        torch.tensor(letters.loss_of_table(expected, ids, 1, V)),
    )


def average(my: Any) -> Iterator[Case]:
    """Check chapter 2."""
    values, mask = randn(6, 4), causal_mask(6, 6, torch.device("cpu"))
    yield "may_see(6)", lambda: my.may_see(6), mask
    yield "average_past(values)", lambda: my.average_past(values), (mask / mask.sum(1, keepdim=True)) @ values


def score(my: Any) -> Iterator[Case]:
    """Check chapter 3."""
    fox, w_q, w_k = (torch.tensor(matrix, dtype=torch.float32) for matrix in (X, W_Q, W_K))
    yield "scores(fox, W_Q, W_K)", lambda: my.scores(fox, w_q, w_k), (fox @ w_q) @ (fox @ w_k).T
    x, a, b = randn(6, 4), randn(4, 3), randn(4, 3).flip(0)
    yield "scores(x, W_Q, W_K)", lambda: my.scores(x, a, b), (x @ a) @ (x @ b).T


def attend(my: Any) -> Iterator[Case]:
    """Check chapter 4."""
    large = 1000 * randn(2, 5)
    q, k, v = randn(3, 2, 6, 4)
    weights = attention_weights(q, k)
    yield "softmax(scores)", lambda: my.softmax(randn(3, 5)), randn(3, 5).softmax(-1)
    yield "softmax(1000 * scores)", lambda: my.softmax(large), large.softmax(-1)
    yield "attention_weights(q, k)", lambda: my.attention_weights(q, k), weights
    yield "attend(q, k, v)", lambda: my.attend(q, k, v), weights @ v


def head(my: Any) -> Iterator[Case]:
    """Check chapter 5."""
    x, one = randn(2, 6, 8), my.Head(8, 4)
    yield "Head(8, 4)(x)", lambda: one(x), expected_head(one, x)
    model = my.OneHead(9, 8)
    ids = torch.arange(12).view(2, 6) % 9
    embedded = model.embedding(ids)
    yield "OneHead(9, 8)(ids)", lambda: model(ids), model.output(embedded + expected_head(model.head, embedded))
    before = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).item()
    yield (
        "train(model, ids, steps=30, ...) lowers the loss",
        lambda: my.train(model, ids.flatten(), steps=30, context=4, batch=4) < before,
        True,
    )


def expected_head(one: Any, x: Tensor) -> Tensor:
    """Return what a head with layers `query`, `key` and `value` computes."""
    found: Tensor = attention_weights(one.query(x), one.key(x)) @ one.value(x)
    return found


def positions(my: Any) -> Iterator[Case]:
    """Check chapter 6."""
    x = randn(2, 6, 8)
    yield "rope(x)", lambda: my.rope(x), apply_rope(x, rope_cos_sin(6, 8))


def heads(my: Any) -> Iterator[Case]:
    """Check chapter 7."""
    x = randn(2, 6, 8)
    own = GPTAttention(small_config(**CLASSIC))
    mine = my.Attention(8, 4)
    mine.load_state_dict(own.state_dict())
    yield "Attention(8, 4)(x)", lambda: mine(x), own(x)


def classic() -> GPT:
    """Return a small `classic` model with large random weights, so that each part matters."""
    torch.manual_seed(2)
    model = GPT(small_config(**CLASSIC), 9).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def block(my: Any) -> Iterator[Case]:
    """Check chapter 8, and the trained model of `minigpt course run 8` if there is one."""
    own, ids = classic(), torch.arange(12).view(2, 6) % 9
    mine = my.GPT(9, 16, n_layer=2, n_head=4, C=8)
    x = randn(2, 6, 8)
    theirs = own.blocks[0]
    assert isinstance(theirs, Block)
    mine.load_state_dict(own.state_dict())
    yield "MLP of a block", lambda: mine.blocks[0].mlp(x), theirs.mlp(x)
    yield "Block(8, 4)(x)", lambda: mine.blocks[0](x), theirs(x)
    yield "GPT(9, 16, n_layer=2, n_head=4, C=8)(ids)", lambda: mine(ids), own(ids)
    yield "generate(gpt, ids, 5) keeps the prompt", lambda: my.generate(mine, ids[0], 5)[:6], ids[0]
    yield "generate(gpt, ids, 5) adds five letters", lambda: len(my.generate(mine, ids[0], 5)), 11
    if is_run(RUNS / CLASSIC_RUN):
        from minigpt.model.load import load_transformer
        from minigpt.storage.checkpoint import load_checkpoint

        checkpoint = load_checkpoint(CLASSIC_RUN, "last")
        network, config = load_transformer(checkpoint), checkpoint.config.model
        prompt = torch.from_numpy(checkpoint.tokenizer.encode(letters.PROMPT[: config.context]))[None]
        shape = checkpoint.tokenizer.vocab_size, config.context, config.n_layer, config.n_head, config.n_embd
        whole = my.GPT(*shape)
        whole.load_state_dict(network.state_dict())
        yield f"the logits of {RUNS.name}/{CLASSIC_RUN}", lambda: whole(prompt), network(prompt)


def learned(my: Any) -> Iterator[Case]:
    """Check chapter 9."""
    from minigpt.interpret.extract import ablate_heads, extract

    own, ids = classic(), torch.arange(6) % 9
    mine = my.GPT(9, 16, n_layer=2, n_head=4, C=8)
    mine.load_state_dict(own.state_dict())
    weights = extract(own, ids.numpy()).weights
    yield "weights_of(gpt, ids, layer=1)", lambda: my.weights_of(mine, ids[None], layer=1), weights[1][None]
    with ablate_heads(own, {(1, 2)}):
        expected = own(ids[None])
    yield "without_head(gpt, layer=1, head=2)(ids)", lambda: my.without_head(mine, 1, 2)(ids[None]), expected
    yield "gpt(ids) is as before", lambda: mine(ids[None]), own(ids[None])


def replaced(my: Any) -> Iterator[Case]:
    """Check chapter 10."""
    layer = nn.LSTM(4, 4, bias=True, batch_first=True)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = randn(2, 6, 4)
    W, U, b1, b2 = layer.parameters()
    b = b1 + b2
    h, c = randn(2, 2, 4)
    _, (h2, c2) = layer(x[:, :1], (h[None], c[None]))
    yield "lstm_step(x, h, c, W, U, b)[0]", lambda: my.lstm_step(x[:, 0], h, c, W, U, b)[0], h2[0]
    yield "lstm_step(x, h, c, W, U, b)[1]", lambda: my.lstm_step(x[:, 0], h, c, W, U, b)[1], c2[0]
    yield "lstm(x, W, U, b)", lambda: my.lstm(x, W, U, b), layer(x)[0]


CASES: tuple[Callable[[Any], Iterator[Case]], ...] = (
    *(guess, average, score, attend, head, positions, heads, block, learned, replaced),
)


def difference(actual: Any, expected: Any) -> str:
    """Return how `actual` differs from `expected`: "is ..., expected ...", or "" if they agree."""
    if not isinstance(expected, Tensor):
        return "" if actual == expected else f"is {_short(actual)}, expected {_short(expected)}"
    wanted = f"expected a tensor of shape {tuple(expected.shape)}"
    if not isinstance(actual, Tensor):
        return f"is {_short(actual)}, {wanted}"
    if actual.shape != expected.shape:
        return f"has shape {tuple(actual.shape)}, {wanted}"
    error = (actual.detach().double() - expected.detach().double()).abs()
    if error.numel() and not error.max() <= TOLERANCE:  # true for NaN as well
        first = (~(error <= TOLERANCE)).nonzero()[0].tolist()
        at = f" at [{', '.join(map(str, first))}]" if first else ""
        return f"is {actual[tuple(first)].item():.4f}{at}, expected {expected[tuple(first)].item():.4f}"
    return ""


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    text = repr(value)
    return (
        text if len(text) <= 60 else f"a {type(value).__name__} of {len(value)}" if hasattr(value, "__len__") else "?"
    )


def where(error: BaseException, path: Path) -> str:
    """Return an error with the last line of the reader's file that led to it."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    first = next(iter(str(error).splitlines()), "")
    return (f"line {lines[-1]}: " if lines else "") + f"{type(error).__name__}: {first}"


def check(chapter: int, path: Path) -> dict[str, Any]:
    """Compare chapter after chapter, up to `chapter`. Return what agrees, by chapter, and the first problem."""
    passed: dict[int, list[str]] = {}
    at = path.name
    try:
        my = run_file(path)
        for number, cases in enumerate(CASES[:chapter], 1):
            passed[number], at = [], f"chapter {number}"
            torch.manual_seed(number)
            for name, call, expected in cases(my):
                at = f"chapter {number}: {name}"
                if problem := difference(call(), expected):
                    return {"passed": passed, "problem": f"{at} {problem}"}
                passed[number].append(name)
                at = f"chapter {number}, after {name}"
    except AttributeError as error:
        is_missing = error.obj is sys.modules.get("mygpt")
        problem = f"{at}: {where(error, path)}"
        if is_missing:
            problem = f"chapter {len(passed)}: {path.name} has no {error.name}"
        return {"passed": passed, "problem": problem}
    except (Exception, SystemExit) as error:
        return {"passed": passed, "problem": f"{at}: {where(error, path)}"}
    return {"passed": passed, "problem": ""}


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):
        answer = check(int(sys.argv[1]), Path(sys.argv[2]).resolve())
    print(json.dumps(answer))
