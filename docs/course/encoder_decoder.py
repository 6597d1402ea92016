"""Train three encoder-decoders to reverse words, and compare them. The page encoder-decoder.md explains this file.

    python docs/course/encoder_decoder.py              # two to three minutes on one core
    python docs/course/encoder_decoder.py --plot .     # also draw two figures into the current folder

The encoder processes the source, and the decoder writes the target one letter at a time. The models differ mainly in
what the decoder gets: only the encoder's last state, or by attention all outputs of the encoder. The words are random
letters, so nothing can be guessed: each letter must come from the source.

Letters in shapes: B words, S source and T target letters with the end, C width, H heads, D head size, V vocabulary.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.config.schema import ModelConfig, OptimConfig
from minigpt.model.gpt import Block, make_norm, rope_cos_sin
from minigpt.training.optim import Optimizer
from minigpt.training.schedule import lr_factor

END = 26  # ends source and target, and starts the decoder's input; 0 to 25 are the letters a to z
VOCAB = 27
TRAINED, TESTED = range(2, 17), range(2, 25)  # lengths of the words
EXAMPLES = ("lumberjacks", "lumberjackswithtools")  # one of a trained length, one longer


class CrossAttention(nn.Module):
    """Attention from the decoder to the encoder: queries from one sequence, keys and values from another."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.query = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.key_value = nn.Linear(config.n_embd, 2 * config.n_embd, bias=False)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output (B, T, C) and the weights (B, H, T, S) for x (B, T, C) and memory (B, S, C)."""
        q = self.query(x).unflatten(2, (self.n_head, -1)).transpose(1, 2)  # (B, H, T, D)
        k, v = self.key_value(memory).unflatten(2, (2, self.n_head, -1)).permute(2, 0, 3, 1, 4)  # (B, H, S, D) each
        weights = (q @ k.mT / q.size(-1) ** 0.5).softmax(-1)  # no mask: the whole source is known
        return self.proj((weights @ v).transpose(1, 2).flatten(2)), weights


class DecoderBlock(Block):
    """minigpt's block with cross-attention between its self-attention and its MLP."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.norm_cross = make_norm(config)
        self.cross = CrossAttention(config)

    def forward(self, x: Tensor, cos_sin: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.attention(self.norm1(x), cos_sin)  # causal
        read, weights = self.cross(self.norm_cross(x), memory)
        x = x + read
        return x + self.mlp(self.norm2(x)), weights


def sdpa_unmasked(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """Return attention without the causal mask, for the blocks of the encoder."""
    return F.scaled_dot_product_attention(q, k, v)


class Transformer(nn.Module):
    """The encoder-decoder of Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762), from minigpt's modern blocks."""

    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        config = ModelConfig(n_embd=width, n_layer=layers, n_head=heads)
        self.embedding = nn.Embedding(VOCAB, width)
        self.encoder = nn.ModuleList(Block(config) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderBlock(config) for _ in range(layers))
        for block in self.encoder:
            block.attention.attend = sdpa_unmasked
        self.norm_memory, self.norm = make_norm(config), make_norm(config)
        self.unembed = nn.Linear(width, VOCAB)
        self.register_buffer("cos_sin", rope_cos_sin(config.context, config.head_size))

    def encode(self, source: Tensor) -> Tensor:
        x = self.embedding(source)  # (B, S, C)
        for block in self.encoder:
            x = block(x, self.cos_sin[:, : x.size(1)])
        return self.norm_memory(x)

    def decode(self, memory: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embedding(target)  # (B, T, C)
        for block in self.decoder:
            x, weights = block(x, self.cos_sin[:, : x.size(1)], memory)
        return self.unembed(self.norm(x)), weights.mean(1)  # the last block's, as the mean of its heads


class ContextVector(nn.Module):
    """LSTMs as in Sutskever et al. 2014 (https://arxiv.org/abs/1409.3215): the decoder starts from the last state."""

    def __init__(self, width: int = 140, embedding: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, embedding)
        self.encoder = nn.LSTM(embedding, width, batch_first=True)
        self.decoder = nn.LSTM(embedding, width, batch_first=True)
        self.unembed = nn.Linear(width, VOCAB)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        return self.encoder(self.embedding(source))[1]  # the context vector: h and c, (1, B, C) each

    def decode(self, memory: tuple[Tensor, Tensor], target: Tensor) -> tuple[Tensor, None]:
        return self.unembed(self.decoder(self.embedding(target), memory)[0]), None


class AdditiveAttention(nn.Module):
    """The attention of Bahdanau et al. 2015 (https://arxiv.org/abs/1409.0473), with LSTMs instead of GRUs."""

    def __init__(self, width: int = 118, embedding: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, embedding)
        self.encoder = nn.LSTM(embedding, width // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.LSTMCell(embedding + width, width)
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.score = nn.Linear(width, 1, bias=False)
        self.unembed = nn.Linear(2 * width, VOCAB)

    def encode(self, source: Tensor) -> tuple[Tensor, ...]:
        states, last = self.encoder(self.embedding(source))  # (B, S, C), and h and c (2, B, C / 2) each
        h, c = (both.transpose(0, 1).flatten(1) for both in last)  # (B, C) each
        return states, self.key(states), h, c

    def decode(self, memory: tuple[Tensor, ...], target: Tensor) -> tuple[Tensor, Tensor]:
        states, keys, h, c = memory
        outputs, rows = [], []
        for letter in self.embedding(target).unbind(1):
            weights = self.score(torch.tanh(self.query(h)[:, None] + keys)).softmax(1)  # (B, S, 1)
            context = (weights * states).sum(1)  # (B, C)
            h, c = self.decoder(torch.cat((letter, context), 1), (h, c))
            outputs.append(torch.cat((h, context), 1))
            rows.append(weights.squeeze(2))
        return self.unembed(torch.stack(outputs, 1)), torch.stack(rows, 1)


RIVALS: dict[str, tuple[Callable[[], nn.Module], float, int]] = {  # model, learning rate, steps that take equal time
    "LSTM": (ContextVector, 0.008, 4000),
    "LSTM with attention": (AdditiveAttention, 0.002, 2000),
    "transformer": (Transformer, 0.008, 1600),
}


def make_batch(length: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return source, decoder input and expected output, (count, length + 1) each, of random words."""
    words = torch.randint(END, (count, length), generator=generator)
    end = torch.full((count, 1), END)
    backward = words.flip(1)
    return torch.cat((words, end), 1), torch.cat((end, backward), 1), torch.cat((backward, end), 1)


def train(model: nn.Module, seed: int, rate: float, steps: int, lengths: range = TRAINED) -> tuple[list[float], float]:
    """Train on batches of 64 random words. Return the loss of each step and the seconds of processor time."""
    generator, start = torch.Generator().manual_seed(seed), time.process_time()
    config = OptimConfig(name="adamw", lr=rate, weight_decay=0.01, warmup=0.05)
    optimizer, losses = Optimizer(model, config), []
    for step in range(steps):
        length = lengths[int(torch.randint(len(lengths), (), generator=generator))]
        source, target, expected = make_batch(length, 64, generator)
        logits, _ = model.decode(model.encode(source), target)
        loss = F.cross_entropy(logits.mT, expected)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        optimizer.step(lr_factor((step + 0.5) / steps, config))
        losses.append(loss.item())
    return losses, time.process_time() - start


@torch.no_grad()
def accuracy(model: nn.Module, length: int, seed: int, count: int = 1000) -> float:
    """Return the share of random words that greedy decoding reverses without a mistake.

    Greedy decoding makes no mistake if and only if, after each right prefix, the right letter is the most likely one.
    So one pass over the right prefixes is enough.
    """
    source, target, expected = make_batch(length, count, torch.Generator().manual_seed(1000 * (seed + 1) + length))
    logits, _ = model.decode(model.encode(source), target)
    return (logits.argmax(2) == expected).all(1).double().mean().item()


@torch.no_grad()
def write(model: nn.Module, word: str) -> tuple[str, list[list[float]]]:
    """Return what greedy decoding writes for `word`, at most twice its length, and any attention weights (T, S)."""
    source, target = torch.tensor([[ord(letter) - ord("a") for letter in word] + [END]]), torch.tensor([[END]])
    memory = model.encode(source)
    for _ in range(2 * len(word)):
        logits, weights = model.decode(memory, target)
        letter = logits[:, -1:].argmax(2)
        if letter.item() == END:
            break
        target = torch.cat((target, letter), 1)
    text = "".join(chr(ord("a") + i) for i in target[0, 1:].tolist())
    return text, [] if weights is None else weights[0].double().round(decimals=3).tolist()


def study(name: str, seed: int, rate: float, steps: int) -> dict[str, Any]:
    """Train one model and test it."""
    torch.manual_seed(seed)
    model = RIVALS[name][0]()
    losses, seconds = train(model, seed, rate, steps)
    last = losses[-steps // 10 :]  # each measured on a new batch, before the update
    size = sum(parameter.numel() for parameter in model.parameters())
    run = {"model": name, "seed": seed, "rate": rate, "parameters": size, "steps": steps, "seconds": round(seconds, 1)}
    run |= {"loss": round(sum(last) / len(last), 5), "accuracy": {n: accuracy(model, n, seed) for n in TESTED}}
    print("{model}: {parameters} parameters, {steps} steps in {seconds} s, loss {loss}".format(**run), flush=True)
    return run | {"written": {word: write(model, word) for word in EXAMPLES}}


def main() -> None:
    """Train the three models, print their accuracy by length and what they write, and draw with --plot."""
    parser = argparse.ArgumentParser(description="Train three encoder-decoders to reverse words, and compare them.")
    parser.add_argument("--seed", type=int, default=1, help="seed of the weights and the words (default: 1)")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw two figures into an existing folder")
    options = parser.parse_args()
    if options.plot and not options.plot.is_dir():
        parser.error(f"{options.plot} is not a folder")
    torch.set_num_threads(1)  # the matrices are too small for several threads
    runs = [study(name, options.seed, rate, steps) for name, (_, rate, steps) in RIVALS.items()]
    print(f"\nWords reversed without a mistake. Training words had {TRAINED[0]} to {TRAINED[-1]} letters.")
    print(f"{'':20}", *(f"{length:4}" for length in TESTED[::2]))
    for run in runs:
        print(f"{run['model']:20}", *(f"{run['accuracy'][length]:4.0%}" for length in TESTED[::2]))
    for word in EXAMPLES:
        print(f"\n{word:20} should be {word[::-1]}")
        for run in runs:
            print(f"{run['model']:20}", run["written"][word][0])
    if options.plot:
        from encoder_decoder_figures import draw

        draw(runs, TRAINED[-1], options.plot)


if __name__ == "__main__":
    main()
