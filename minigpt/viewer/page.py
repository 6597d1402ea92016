"""Build the page for a checkpoint and a text: one HTML file that works offline, in which the model runs.

Python packs the weights and computes what the page starts with. JavaScript, built from `web/`, does the rest.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt import __version__
from minigpt.errors import CheckpointError, UserError, ViewError, count, escape
from minigpt.interpret.descriptions import NO_PATTERN, describe_heads, score_model, untrained_warning
from minigpt.interpret.effects import probabilities_without, strongest_effect
from minigpt.interpret.excerpt import Excerpt, characters
from minigpt.interpret.extract import extract
from minigpt.interpret.scores import are_letters
from minigpt.model.gpt import GPT
from minigpt.model.load import Model, load_model
from minigpt.paths import run_of
from minigpt.storage.checkpoint import Checkpoint
from minigpt.storage.records import read_starts
from minigpt.text.tokenizer import Ids, Tokenizer
from minigpt.viewer.document import assemble
from minigpt.viewer.film import Film, choose_moments, loss_curve
from minigpt.viewer.packing_weights import dequantized, pack_weights, packed_size

MAX_WEIGHTS = 12_000_000
"""Maximum size of the packed weights of all models, in bytes. As base64, they take a third more: 16 MB."""
CONFIG = {"family", "n_layer", "n_head", "n_embd", "context", "position", "norm", "activation", "qk_norm", "bias"}
SAMPLE = {"temperature", "top_k", "top_p", "min_p"}
UNITS = (("hour", 3600, 7200), ("minute", 60, 90), ("second", 1, 0))
"""Units of a duration: name, seconds, and the shortest duration in this unit, in seconds."""
Data = dict[str, Any]


@dataclass(frozen=True)
class Start:
    """What the page shows first. Default: a letter for which one head matters, and this head (see `_choose_start`)."""

    layer: int | None = None
    head: int | None = None
    at_end: bool = False
    """Select the last letter."""


def build_page(
    checkpoint: Checkpoint,
    excerpt: Excerpt,
    *,
    film: Film | None = None,
    others: Sequence[Checkpoint] = (),
    split: Ids | None = None,
    start: Start | None = None,
) -> str:
    """Return the page as HTML. On one machine, equal arguments give equal bytes.

    Args:
        checkpoint: The model to show.
        excerpt: The text that the page starts with.
        film: The moments of the checkpoint's run, of which the page shows some: see `choose_moments`.
        others: Models with the same vocabulary, to compare the model with.
        split: The validation split, to describe the heads. Default: the excerpt.
        start: What the page shows first.

    Raises:
        CheckpointError: A model computes numbers that are not finite.
        ViewError: The page cannot show one of the models, or its weights are too large for the page.
    """
    check_size(checkpoint, *others)
    tokenizer = checkpoint.tokenizer
    if tokenizer.kind not in ("char", "byte"):
        raise ViewError(f"the page cannot show a model whose tokenizer is {tokenizer.kind}")
    for other in others:
        if other.tokenizer.to_json() != tokenizer.to_json():
            problem = f"cannot compare with {other.run_name}: its vocabulary is different"
            raise ViewError(f"{problem}; choose a run that was trained on the same text")
    text, ids = _whole_characters(tokenizer, excerpt.ids)
    first = _Shown(checkpoint, ids)
    selected, head = _choose_start(first, start or Start())
    if tokenizer.kind == "byte":
        selected = _end_of_character(first.ids, selected)
    models = [first.data(selected, split)]
    if film:
        for moment in _chosen(first, film):
            with film.leave_out(moment.checkpoint.metadata.step):
                models.append(moment.data(selected, split))
    in_order = sorted(range(len(models)), key=lambda index: models[index]["step"]) if len(models) > 1 else []
    models += [_Shown(other, ids, selected).data(selected, split) for other in others]
    warnings = [warning] if (warning := untrained_warning(checkpoint)) else []
    if excerpt.skipped:
        warnings.append(f"The text is too long: its first {excerpt.skipped:,} tokens are not shown.")
    data: Data = {
        "version": __version__,
        "models": models,
        "tokenizer": tokenizer.kind,
        "text": text,
        "selected": selected,
        "head": head,
        "film": in_order,
        "batch": checkpoint.config.tokens_per_step,
        "losses": loss_curve(run) if in_order and (run := run_of(checkpoint.path)) else [],
        "sample": checkpoint.config.sample.model_dump(include=SAMPLE),
        "warnings": warnings,
    }
    if tokenizer.kind == "char":
        data["vocabulary"] = [tokenizer.decode([i]) for i in range(tokenizer.vocab_size)]
    return assemble(data, f"{checkpoint.run_name}, step {checkpoint.metadata.step:,}")


def _chosen(first: "_Shown", film: Film) -> list["_Shown"]:
    """Return the moments of the film that the page shows beside the first model."""
    shown = list[_Shown]()
    for moment in film.moments:
        step = moment.metadata.step
        with film.leave_out(step):
            shown.append(first if step == first.checkpoint.metadata.step else _Shown(moment, first.ids))
    if len(shown) < 2:
        return []
    came = torch.cat([torch.from_numpy(first.ids[1:]).long(), shown[-1].probabilities[-1].argmax()[None]])
    chances = [moment.probabilities.gather(1, came[:, None])[:, 0] for moment in shown]
    chosen = choose_moments(chances, film.room, shown.index(first))
    return [shown[index] for index in chosen if shown[index] is not first]


def check_size(*models: Checkpoint) -> None:
    """Raise ViewError if the weights of the models are too large for one page."""
    size, names = sum(packed_size(model.weights) for model in models), " and ".join(model.run_name for model in models)
    if size > MAX_WEIGHTS:
        problem = f"the weights of {names} take {size / 1e6:.1f} MB"
        raise ViewError(f"{problem}, and a page has room for {MAX_WEIGHTS / 1e6:.0f} MB")


def _whole_characters(tokenizer: Tokenizer, ids: Ids) -> tuple[str, Ids]:
    """Return the text of `ids`, and its ids as the page encodes it: without parts of characters at its ends."""
    text = tokenizer.decode(ids)
    if tokenizer.kind == "byte":
        text = text.strip("\ufffd") or "?"
        if len(tokenizer.encode(text)) > len(ids):
            text = text.replace("\ufffd", "?")  # bytes that are not UTF-8, which a model may generate
    return text, tokenizer.encode(text)


def _end_of_character(ids: Ids, index: int) -> int:
    """Return the index of the last byte of a character, given the index of one of its bytes in UTF-8."""
    while index + 1 < len(ids) and ids[index + 1] >> 6 == 0b10:  # bytes that continue a character start with these bits
        index += 1
    return index


class _Shown:
    """A model with the weights that the page has, and its predictions for the text."""

    def __init__(self, checkpoint: Checkpoint, ids: Ids, selected: int = 0) -> None:
        self.checkpoint = checkpoint
        self.model = load_model(replace(checkpoint, weights=dequantized(checkpoint.weights)))
        context = len(ids) if checkpoint.config.model.is_recurrent else checkpoint.config.model.context
        self.skipped = max(0, selected + 1 - context)
        """Number of tokens before the model's window, which contains the selected token."""
        self.ids = ids[self.skipped :][:context]
        self.logits = _logits(self.model, self.ids)  # (T, V)
        if not self.logits.isfinite().all():
            raise CheckpointError("the model's activations are not finite; an earlier checkpoint may work")
        self.probabilities = self.logits.softmax(-1)
        exact = _logits(load_model(checkpoint), self.ids).softmax(-1)
        self.rounding = (self.probabilities - exact).abs().max().item()

    @cached_property
    def without(self) -> Tensor:
        """The probabilities in the second half of the text without each head, (1 + L H, T - T // 2, V)."""
        assert isinstance(self.model, GPT)
        return probabilities_without(self.model, self.ids, len(self.ids) // 2)

    def data(self, selected: int, split: Ids | None) -> Data:
        """Return what the page knows of this model. `selected` is a position in the whole text."""
        checkpoint, model, at = self.checkpoint, self.model, selected - self.skipped
        heads: list[list[Data]] = []
        if isinstance(model, GPT):
            scores = score_model(model, checkpoint.tokenizer, checkpoint.config.data, self.ids, split)
            choices = self.without.argmax(-1)  # (1 + L H, T - T // 2)
            breaks = (choices[1:] != choices[0]).double().mean(-1).tolist()
            described = describe_heads(scores)
            heads = [
                [
                    {**asdict(one), "phrase": one.phrase.replace(NO_PATTERN, ""), "breaks": breaks.pop(0)}
                    for one in layer
                ]
                for layer in described
            ]
        in_order = {name: checkpoint.weights[name] for name in model.state_dict()}  # files have no fixed order
        return {
            "name": escape(checkpoint.run_name),
            "step": checkpoint.metadata.step,
            "parameters": checkpoint.metadata.parameters,
            "summary": _summary(checkpoint),
            "config": checkpoint.config.model.model_dump(include=CONFIG),
            "weights": pack_weights(in_order),
            "check": {"ids": self.ids[: at + 1].tolist(), "logits": self.logits[at].tolist()},
            "rounding": self.rounding,
            "heads": heads,
        }


@torch.no_grad()
def _logits(model: Model, ids: Ids) -> Tensor:
    logits: Tensor = model(torch.from_numpy(ids.astype("int64"))[None])[0]  # (T, V)
    return logits


def _choose_start(shown: _Shown, start: Start) -> tuple[int, tuple[int, int] | None]:
    """Return the token to select, and the head that matters most there. None: there are no heads.

    Without `start.at_end`, the token is in the second half of the text: see `strongest_effect`, which prefers tokens
    before a letter. The last token is left out, because nothing follows it. A drop in probability counts more if the
    head attends to one letter far back, which a reader can see. A drop after a space counts twice: a word begins there.
    """
    T, config = len(shown.ids), shown.checkpoint.config.model
    at = torch.arange(T - 1, T) if start.at_end else torch.arange(T // 2, max(T // 2 + 1, T - 1))  # (P,)
    if not isinstance(shown.model, GPT):
        if (start.layer, start.head) != (None, None):
            raise UserError("a recurrent network has no layers of heads")
        return int(at[shown.probabilities[at].amax(-1).argmax()]), None
    L, H = config.n_layer, config.n_head
    allowed = torch.tensor([start.layer in (None, n // H) and start.head in (None, n % H) for n in range(L * H)])
    if not allowed.any():
        raise UserError(f"there is no such head: this model has layers 0 to {L - 1}, with heads 0 to {H - 1}")
    focus, keys = extract(shown.model, shown.ids).weights.flatten(0, 1)[:, at].max(-1)  # (L H, P) each
    text = characters(shown.checkpoint.tokenizer, shown.ids)
    is_letter = torch.tensor([*are_letters(text), False])
    is_newline, is_space = (torch.tensor([token == blank for token in text]) for blank in "\n ")
    interest = focus * (at - keys).sqrt() * (1 + is_space[at])
    before_letter = is_letter[at + 1] & ~is_newline[at]  # what begins a line is rarely known
    position, head = strongest_effect(shown.without[:, at - T // 2], interest, allowed, before_letter)
    return int(at[position]), divmod(head, H)


def _summary(checkpoint: Checkpoint) -> str:
    """Return where the model comes from, such as "trained in 2 minutes on 25 November 2026"."""
    metadata, run = checkpoint.metadata, run_of(checkpoint.path)
    if metadata.imported:
        return f"imported from {escape(metadata.imported)}"
    if metadata.step == 0 and metadata.origin:
        return f"with the weights of {escape(metadata.origin.run)}, step {metadata.origin.step:,}"
    if metadata.step == 0:
        return "untrained"
    seconds = metadata.state.seconds
    unit, size = next((name, size) for name, size, shortest in UNITS if seconds >= shortest)
    date = last_start(run, metadata.step) if run else ""
    return f"trained in {count(round(seconds / size), unit)}" + f" on {date}" * bool(date)


def last_start(run: Path, step: int) -> str:
    """Return the date of the last start before a checkpoint, such as "25 November 2026". Return "" if unknown."""
    for start in reversed(read_starts(run)):
        with suppress(ValueError, KeyError, TypeError):
            started = datetime.fromisoformat(start["started"])
            if start["step"] < step:
                return f"{started.day} {started:%B %Y}"
    return ""
