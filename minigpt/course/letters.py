"""What chapters 1 to 5 measure: tables of letters, an average, a score, the scale, and one head.

The networks here compute what the reader's networks compute, so the reader's own training gives about the same losses.

Letters in shapes: B batch, T time, C width, D head size, V vocabulary.
Each network maps ids (B, T) to logits (B, T, V).
"""

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from minigpt.course.by_hand import W_K, W_Q, WORDS, X
from minigpt.course.small_models import small_config
from minigpt.model.gpt import Attention, Block, attention_weights, causal_mask, rope_cos_sin
from minigpt.model.kernels import apply_rope
from minigpt.text.sources import STORIES
from minigpt.text.stories import stories
from minigpt.text.tokenizer import CharTokenizer

VALIDATION = 20_000
"""Characters at the end of the text on which losses are measured."""
CONTEXT, BATCH, WIDTH = 64, 16, 64
EARLY, STEPS = 100, 1000
SIZES = (4, 16, 64, 256)
"""The head sizes of chapter 4."""
KEYS = 256
PROMPT = 'Jakob has a new boat.\nAnna has a red kite.\nShe says: "I am '


@cache
def text() -> tuple[CharTokenizer, Tensor, Tensor]:
    """Return the tokenizer of the stories, and the ids of their training and validation text."""
    letters = "".join(stories(*STORIES))
    tokenizer = CharTokenizer(sorted(set(letters)))
    ids = torch.from_numpy(tokenizer.encode(letters).astype("int64"))
    return tokenizer, ids[:-VALIDATION], ids[-VALIDATION:]


def table(ids: Tensor, length: int, V: int) -> Tensor:
    """Return the probability of each letter after each sequence of `length` letters, (V ** length, V).

    Each count is raised by one, so that nothing is impossible (Laplace's rule of succession).
    """
    counts = 1 + torch.bincount(numbered(ids, length + 1, V), minlength=V ** (length + 1)).view(-1, V)
    return counts / counts.sum(1, keepdim=True)


def numbered(ids: Tensor, length: int, V: int) -> Tensor:
    """Return the number of each sequence of `length` letters in a text, from 0 to V ** length - 1."""
    return ids.unfold(0, length, 1) @ V ** torch.arange(length).flip(0)


def loss_of_table(probabilities: Tensor, ids: Tensor, length: int, V: int) -> float:
    """Return the mean loss of a table on a text, in nats per letter."""
    return -probabilities.flatten()[numbered(ids, length + 1, V)].log().mean().item()


@cache
def loss_of_pairs() -> float:
    """Return the loss of the table of pairs on the validation text."""
    tokenizer, training, validation = text()
    V = tokenizer.vocab_size
    return loss_of_table(table(training, 1, V), validation, 1, V)


def guess(seed: int) -> dict[str, float]:
    """Measure chapter 1: tables of letters. Nothing is random."""
    tokenizer, training, validation = text()
    V = tokenizer.vocab_size
    share = torch.bincount(training, minlength=V) / len(training)
    pairs, triples = table(training, 1, V), table(training, 2, V)
    H, e = tokenizer.encode("He").tolist()
    return {
        "letters": V,
        "uniform": math.log(V),
        "frequencies": -share[validation].log().mean().item(),
        "pairs": loss_of_pairs(),
        "A pairs": chance_of_name(lambda ids: pairs[ids].log()),
        "A triples": triples[:, tokenizer.encode("A")[0]][tokenizer.encode("m ") @ np.array([V, 1])].item(),
        "triples": loss_of_table(triples, validation, 2, V),
        "cells": V**3,
        "seen": len(numbered(training, 3, V).unique()) / V**3,
        "e after H": pairs[H, e].item(),
    }


def average(seed: int) -> dict[str, float]:
    """Measure chapter 2: an average of the letters so far, alone and with the last letter."""
    numbers = {"pairs": loss_of_pairs()}
    for name, with_last in (("average", False), ("both", True)):
        torch.manual_seed(seed)
        model = Average(text()[0].vocab_size, with_last)
        train(model, STEPS)
        numbers[name] = loss_of(model)
    return {**numbers, "A average": chance_of_name(model)}


def fox(seed: int) -> dict[str, float]:
    """Measure chapter 3: the scores of "fox". Nothing is random."""
    x, w_q, w_k = (torch.tensor(matrix, dtype=torch.float32) for matrix in (X, W_Q, W_K))
    scores = (x @ w_q) @ (x @ w_k).T
    return {word.lower(): score for word, score in zip(WORDS, scores[-1].tolist(), strict=True)}


def scale(seed: int) -> dict[str, float]:
    """Measure chapter 4: random queries and keys, with and without the scale.

    The keys in use are exp of the mean entropy of the rows: N for equal weights on N keys, 1 if one key has all weight.
    """
    generator = torch.Generator().manual_seed(seed)
    numbers: dict[str, float] = {}
    for D in SIZES:
        q, k = torch.randn(2, KEYS, D, generator=generator)
        scores = q @ k.T
        numbers[f"spread {D}"] = scores.std().item()
        for name, divisor in (("raw", 1.0), ("scaled", math.sqrt(D))):
            entropy = torch.special.entr((scores / divisor).softmax(-1)).sum(-1)
            numbers[f"{name} {D}"] = math.exp(entropy.mean().item())
    return numbers


class Average(nn.Module):
    """Predict the next letter from the mean of the embeddings so far and, if `with_last`, from the last letter."""

    def __init__(self, V: int, with_last: bool) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(V, WIDTH), nn.Linear(WIDTH, V)
        self.pairs = nn.Embedding(V, V) if with_last else None

    def forward(self, ids: Tensor) -> Tensor:
        seen = causal_mask(ids.size(1), ids.size(1), ids.device).float()
        logits: Tensor = self.output(seen / seen.sum(1, keepdim=True) @ self.embedding(ids))
        return logits if self.pairs is None else logits + self.pairs(ids)


class OneHead(nn.Module):
    """Predict the next letter from the current letter's embedding plus the output of one head."""

    def __init__(self, V: int, has_rope: bool = False) -> None:
        super().__init__()
        self.has_rope = has_rope
        self.embedding, self.output = nn.Embedding(V, WIDTH), nn.Linear(WIDTH, V)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def weights(self, ids: Tensor) -> Tensor:
        """Return the attention weights (B, T, T) for ids (B, T)."""
        x = self.embedding(ids)
        q, k = self.query(x), self.key(x)
        if self.has_rope:
            q, k = (apply_rope(part, rope_cos_sin(ids.size(1), WIDTH)) for part in (q, k))
        return attention_weights(q, k)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        logits: Tensor = self.output(x + self.weights(ids) @ self.value(x))
        return logits


def train(model: nn.Module, steps: int, rate: float = 0.01) -> None:
    """Train `model` on the stories with AdamW, as `train` of chapter 5 does."""
    _, ids, _ = text()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=rate)
    for _ in tqdm(range(steps), leave=False, disable=None, unit="step"):
        starts = torch.randint(len(ids) - CONTEXT, (BATCH, 1))
        windows = ids[starts + torch.arange(CONTEXT + 1)]  # (B, T + 1)
        loss = loss_on(model, windows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def loss_of(model: nn.Module) -> float:
    """Return the loss of a model on the validation text, in windows of CONTEXT."""
    _, _, ids = text()
    return loss_on(model, ids.unfold(0, CONTEXT + 1, CONTEXT)).item()


def loss_on(model: Callable[[Tensor], Tensor], windows: Tensor) -> Tensor:
    """Return the mean loss on windows (B, T + 1), for a function from ids (B, T) to logits (B, T, V)."""
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def chance_of_name(model: Callable[[Tensor], Tensor]) -> float:
    """Return the probability of "A" after PROMPT, for a function from ids (B, T) to logits (B, T, V)."""
    tokenizer, _, _ = text()
    ids = torch.from_numpy(tokenizer.encode(PROMPT).astype("int64"))[None]
    return model(ids)[0, -1].softmax(-1)[tokenizer.encode("A")[0]].item()


class Small(nn.Module):
    """An embedding, layers, and an output: what the reader trains in chapters 7 and 8."""

    def __init__(self, V: int, layers: Sequence[Attention | Block]) -> None:
        super().__init__()
        self.embedding, self.layers, self.output = nn.Embedding(V, WIDTH), nn.ModuleList(layers), nn.Linear(WIDTH, V)

    def forward(self, ids: Tensor) -> Tensor:
        x, cos_sin = self.embedding(ids), rope_cos_sin(ids.size(1), WIDTH // 4)
        for layer in self.layers:
            x = layer(x, cos_sin) if isinstance(layer, Block) else x + layer(x, cos_sin)
        logits: Tensor = self.output(x)
        return logits


def small(name: str, seed: int) -> dict[str, float]:
    """Train the reader's model of chapter 6 ("rope"), 7 ("heads") or 8 ("blocks"). Return its loss and its P("A")."""
    V, config = text()[0].vocab_size, small_config(n_embd=WIDTH, position="rotary", bias=True)
    makers: dict[str, Callable[[], nn.Module]] = {
        "rope": lambda: OneHead(V, has_rope=True),
        "heads": lambda: Small(V, [Attention(config)]),
        "blocks": lambda: Small(V, [Block(config) for _ in range(3)]),
    }
    torch.manual_seed(seed)
    model = makers[name]()
    train(model, STEPS, 0.01 if name == "rope" else 0.003)
    return {f"mine {name}": loss_of(model), f"A {name}": chance_of_name(model)}


def one_head(seed: int) -> dict[str, float]:
    """Measure chapter 5: a head while it learns, and one whose W_V stays random."""
    tokenizer, _, _ = text()
    torch.manual_seed(seed)
    model = OneHead(tokenizer.vocab_size)
    numbers = {"pairs": loss_of_pairs()}
    for name, steps in (("untrained", 0), ("early", EARLY), ("trained", STEPS - EARLY)):
        train(model, steps)
        numbers[name] = loss_of(model)
    numbers["A head"] = chance_of_name(model)
    with torch.no_grad():
        weights = model.weights(torch.from_numpy(tokenizer.encode(PROMPT))[None])[0, -1]
    numbers["speech"] = sum(w for letter, w in zip(PROMPT, weights.tolist(), strict=True) if letter in 'I:"')
    torch.manual_seed(seed)
    frozen = OneHead(tokenizer.vocab_size)
    frozen.value.requires_grad_(False)
    train(frozen, STEPS)
    return {**numbers, "frozen": loss_of(frozen)}
