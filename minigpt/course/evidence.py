"""What chapter 9 measures about the heads of a model: attention to links, and the loss without each head."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from minigpt.interpret.extract import ablate_heads, extract
from minigpt.interpret.links import link_scores, linked_windows
from minigpt.interpret.scores import Score
from minigpt.model.gpt import GPT
from minigpt.model.load import load_transformer
from minigpt.seeds import mix_seed
from minigpt.storage.checkpoint import Checkpoint
from minigpt.text.tokenizer import Ids
from minigpt.training.evaluate import evaluate

WINDOWS, MAX_LENGTH = 8, 256
"""The number of windows, and the maximum number of tokens in each."""
LINKED_WINDOWS = 32
"""The number of windows for the links of `builtin:stories`. Some windows have none."""


@dataclass(frozen=True)
class Evidence:
    """A trained model, and the validation split to evaluate it on."""

    loaded: Checkpoint
    tokens: Ids

    def _windows(self) -> Iterator[Ids]:
        length = min(self.loaded.config.model.context, MAX_LENGTH)
        for start in range(0, len(self.tokens) - length + 1, length):
            yield np.asarray(self.tokens[start : start + length])

    @cached_property
    def model(self) -> GPT:
        with torch.random.fork_rng(devices=[]):  # a new model samples its initial weights
            return load_transformer(self.loaded)

    @cached_property
    def untrained_model(self) -> GPT:
        """The same model with its initial weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix_seed(self.loaded.config.train.seed, "weights"))
            return GPT(self.loaded.config.model, self.loaded.tokenizer.vocab_size).eval()

    @cached_property
    def _link_scores(self) -> list[tuple[dict[str, Score], dict[str, Score]]]:
        return [
            (
                link_scores(extract(self.model, window).weights, text),
                link_scores(extract(self.untrained_model, window).weights, text),
            )
            for window, text in islice(linked_windows(self._windows(), self.loaded.tokenizer), LINKED_WINDOWS)
        ]

    def link_scores(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return a score of `LINKS` for each linked window: of heads now and untrained, (N, L, H), and uniform (N)."""
        now, then = ([scores[name] for scores in column] for column in zip(*self._link_scores, strict=True))
        trained, untrained = (torch.stack([score.values for score in scores]) for scores in (now, then))
        return trained, untrained, torch.tensor([score.uniform for score in now])

    def _losses(self) -> Tensor:
        windows = islice(self._windows(), WINDOWS)
        return torch.tensor([evaluate(self.model, window, self.loaded.tokenizer).loss for window in windows])

    @cached_property
    def costs(self) -> Tensor:
        """The increase in loss when each head is removed, (N, L, H), in nats."""
        shape, usual, costs = self.loaded.config.model, self._losses(), list[Tensor]()
        for layer in range(shape.n_layer):
            for head in range(shape.n_head):
                with ablate_heads(self.model, {(layer, head)}):
                    costs.append(self._losses() - usual)
        return torch.stack(costs, 1).view(len(usual), shape.n_layer, shape.n_head)
