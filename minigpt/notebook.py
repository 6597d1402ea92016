"""The simple API for notebooks: load a model, generate, measure losses, look inside. Jupyter displays the results.

`load` and `generate` do not import torch.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.config.resolve import flatten, resolve
from minigpt.errors import TextError, UnknownCharacterError, count, sanitize_terminal
from minigpt.interpret.excerpt import glyph, last_tokens, validation_split
from minigpt.sampling.generate import generate
from minigpt.sampling.load import AnyEngine, load_engine
from minigpt.storage.checkpoint import Checkpoint, load_checkpoint
from minigpt.storage.records import read_metrics
from minigpt.storage.runs import find_run
from minigpt.text.tokenizer import Ids, unix_newlines

BLOCK = '<pre style="white-space:pre-wrap;overflow-wrap:anywhere;padding:0.6em;background:#fff;color:#000">{}</pre>'


@dataclass(frozen=True)
class Text:
    """A generated text. Jupyter shows the prompt in gray."""

    prompt: str
    text: str
    """The continuation, without the prompt."""
    logprobs: NDArray[np.float64]
    """The log-probability of each generated character in nats, at temperature 1 and before filters, (N,)."""

    def __str__(self) -> str:
        return self.prompt + self.text

    def _repr_html_(self) -> str:
        prompt = f'<span style="color:#767676">{_escaped(self.prompt)}</span>'
        return BLOCK.format(prompt + _escaped(self.text))


def _escaped(text: str) -> str:
    return html.escape(sanitize_terminal(text))


@dataclass(frozen=True)
class Loss:
    """How well a model predicts a text of N characters. Jupyter colors each character by its loss."""

    text: str
    losses: NDArray[np.float64]
    """The loss of each character in nats, (N,). The first loss is NaN: nothing predicts the first character."""
    uniform: float
    """The loss of a uniform guess, ln(vocabulary size), in nats. The darkest color starts at this loss."""

    @property
    def mean(self) -> float:
        """The mean of the losses after the first, in nats per character."""
        return float(self.losses[1:].mean())

    def __float__(self) -> float:
        return self.mean

    def __repr__(self) -> str:
        return f"Loss({self.mean:.4f} nats per character, {count(len(self.text), 'character')})"

    def _repr_html_(self) -> str:
        spans = []
        for char, loss in zip(self.text, self.losses.tolist(), strict=True):
            shown = html.escape(char if char == " " else glyph(char)) + "\n" * (char == "\n")
            strength = 0.8 * min(1.0, loss / self.uniform) if self.uniform and loss >= 0 else 0.0  # not of NaN
            style = f"background:rgba(213,94,0,{strength:.2f})"
            spans.append(f'<span style="{style}" title="{loss:.2f} nats">{shown}</span>')
        facts = f"{self.mean:.4f} nats per character. The darkest characters have {self.uniform:.2f} or more."
        return BLOCK.format("".join(spans)) + f"<p>{facts}</p>"


@dataclass(frozen=True)
class Page:
    """The page of `minigpt inspect`, in which the model runs. Jupyter shows it in an iframe."""

    html: str

    def __repr__(self) -> str:
        return f"Page({len(self.html) / 1e6:.2f} MB)"

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self.html)}" style="width:100%;height:800px;border:0"></iframe>'


class Model:
    """A trained model, as `load` returns it."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Wrap a checkpoint."""
        self.checkpoint = checkpoint

    def __repr__(self) -> str:
        metadata, family = self.checkpoint.metadata, self.checkpoint.config.model.family
        return f"Model({self.checkpoint.run_name}, step {metadata.step}, {family}, {metadata.parameters:,} parameters)"

    def generate(
        self,
        prompt: str | None = None,
        *,
        length: int | None = None,
        temperature: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        **settings: Any,
    ) -> Text:
        """Continue a prompt. Omitted arguments, except `stop`, default to the run's `sample` settings.

        Args:
            prompt: The text to continue.
            length: The most tokens to generate.
            temperature: Higher is more random. 0: always the most likely token.
            seed: Equal seeds give equal texts if nothing else differs.
            stop: End before this text. Of several texts, end before the one that is completed first.
            settings: Other settings of the section `sample`, such as `top_k`.

        Raises:
            UnknownCharacterError: The prompt has characters outside the vocabulary.
            ConfigError: A setting is unknown or invalid.
        """
        settings |= {"length": length, "temperature": temperature, "seed": seed}
        chosen = {f"sample.{key}": value for key, value in settings.items() if value is not None}
        sample = resolve(("run", flatten(self.checkpoint.config)), ("arguments", chosen)).config.sample
        tokenizer = self.checkpoint.tokenizer
        if prompt is None:  # not every text has the default, a newline
            default = unix_newlines(sample.prompt)
            prompt = tokenizer.decode(tokenizer.encode(default, "error" if sample.has_own_prompt else "replace"))
        prompt = unix_newlines(prompt)
        self._encode("prompt", prompt)
        stops = (stop,) if isinstance(stop, str) else stop
        chars = list(generate(self._engine, tokenizer, prompt, sample, stop=stops))
        return Text(prompt, "".join(char.text for char in chars), np.array([char.logprob for char in chars]))

    def loss(self, text: str) -> Loss:
        """Measure how well the model predicts each character of a text but the first.

        A text longer than the context is cut into adjacent windows, as in `minigpt eval`. Imports torch.

        Raises:
            UnknownCharacterError: The text has characters outside the vocabulary.
            TextError: The text has fewer than two characters or tokens.
        """
        import torch
        from torch.nn.functional import cross_entropy

        from minigpt.text.batches import evaluation_windows

        text = unix_newlines(text)
        ids, tokenizer = self._encode("text", text), self.checkpoint.tokenizer
        if min(len(text), len(ids)) < 2:
            raise TextError("the loss of a text needs at least two characters, and two tokens")
        parts, context = [], self.checkpoint.config.model.context
        with torch.no_grad():
            for x, y, _ in evaluation_windows(ids, context, context, batch_size=max(1, 4096 // context)):
                logits = self._torch_model(x)  # (B, T, V)
                parts.append(cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").double().numpy())
        losses, nats, decode = list[float](), math.nan, tokenizer.decoder()
        for i, following in zip(ids.tolist(), [*np.concatenate(parts).tolist(), 0.0], strict=True):
            for _ in decode(i):  # a token may complete no character, or several, of which the first gets the loss
                losses.append(nats)
                nats = 0.0
            nats += following
        return Loss(text, np.array(losses), math.log(tokenizer.vocab_size))

    def inspect(self, text: str) -> Page:
        """Return the page of `minigpt inspect`, which starts with the last tokens of a text. Imports torch.

        Raises:
            TextError: The text is empty.
            UnknownCharacterError: The text has characters outside the vocabulary.
        """
        from minigpt.viewer.page import Start, build_page

        ids = self._encode("text", unix_newlines(text))
        excerpt = last_tokens(self.checkpoint, ids, "the notebook")
        split = validation_split(self.checkpoint)
        return Page(build_page(self.checkpoint, excerpt, split=split, start=Start(at_end=True)))

    def _encode(self, argument: str, text: str) -> Ids:
        """Return the ids of an argument. Raise UnknownCharacterError with the name of the argument."""
        try:
            return self.checkpoint.tokenizer.encode(text)
        except UnknownCharacterError as error:
            raise UnknownCharacterError(f"{argument} has characters {error}") from error

    @cached_property
    def _engine(self) -> AnyEngine:
        return load_engine(self.checkpoint)

    @cached_property
    def _torch_model(self) -> Any:
        from minigpt.model.load import load_model

        return load_model(self.checkpoint)


def history(run: str = "last") -> dict[str, dict[str, list[float]]]:
    """Return the curves of a run: for "train" and "validation", lists of equal length by name.

    Names are "step", "time" in seconds, "loss" and others. `plt.plot("step", "loss", data=history("mine")["train"])`
    plots the training loss.

    Raises:
        RunNotFoundError: There is no such run.
    """
    curves: dict[str, dict[str, list[float]]] = {"train": {}, "validation": {}}
    for entry in read_metrics(find_run(run)):
        curve = curves.get(str(entry.pop("split", "")), {})
        for name, value in entry.items():
            curve.setdefault(name, []).append(math.nan if value is None else value)
    return curves


def load(run: str = "last", which: str | int | None = None) -> Model:
    """Load a trained model.

    Args:
        run: A run as in every command: "mine", "mine@400", "last", its folder, or the folder of a checkpoint.
        which: "best", "last" or a step. By default, what `run` names, or else the best.

    Raises:
        RunNotFoundError: There is no such run.
        CheckpointError: There is no such checkpoint, or it is damaged.
    """
    return Model(load_checkpoint(run, which))
