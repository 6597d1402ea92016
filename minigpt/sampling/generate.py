"""Drawing text from a model, token by token, with a key-value cache, and several in one pass where guesses are right.

One window rule decides what the model sees, with the cache and without, so both draw the same text:
up to the context length it sees everything; then the oldest half of a context is dropped at a time. A new
window is computed afresh, because its tokens stand at new positions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minigpt.config.schema import RuntimeConfig, SampleConfig
from minigpt.errors import CheckpointError
from minigpt.model.device import Runtime, choose_runtime, configure_torch
from minigpt.model.gpt import GPT, eval_mode
from minigpt.sampling.decode import KVCache, decoder
from minigpt.sampling.draft import LONGEST, Draft
from minigpt.seeds import mix_seed
from minigpt.text.tokenizer import Tokenizer, Unknown

AHEAD, MORE = 8, 4
"""How many tokens are guessed at once at most, and how many more than were right the time before."""
ROWS, MOST_STREAMS = 50, 16
"""How many rows a pass over several streams and their guesses has, at most, and in how many streams guesses pay."""
AT_ONCE = 1 << 14
"""Random numbers that are made at once, for all streams together."""
LEAST = 1e-20
"""Of exponential numbers: one in 2**53 would be zero, whose logarithm is infinite."""


@dataclass(frozen=True)
class Piece:
    """One drawn character: which sample it belongs to, and how likely the model itself held it.

    `logprob` is in nats, at temperature 1 and before any filter. With the byte tokenizer it is the sum
    over the bytes drawn since the character before.
    """

    sample: int
    text: str
    logprob: float


def settle(model: GPT, config: RuntimeConfig, num_samples: int) -> Runtime:
    """Move `model` to the device of `config`, with kernels, threads and layout to draw `num_samples` texts fast."""
    is_small = sum(parameter.numel() for parameter in model.parameters()) < 1_500_000
    if config.threads == "auto" and num_samples == 1 and is_small:
        config = config.model_copy(update={"threads": 1})
    runtime = choose_runtime(config)
    configure_torch(runtime)
    model.to(runtime.device)
    model.use_kernels(runtime.model_kernels)
    return runtime


def generate(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str = "\n",
    settings: SampleConfig | None = None,
    *,
    num_samples: int = 1,
    stop: Sequence[str] = (),
    unknown: Unknown = "error",
    cache: bool = True,
    draft: Draft | None = None,
) -> Iterator[Piece]:
    """Continue `prompt`, and yield each character as soon as it is certain.

    `settings` gives length, temperature, filters and seed; its own prompt is not used. A sample ends
    before the first of the `stop` strings, or after `settings.length` tokens; bytes that by then are
    not a whole character are left out. An empty prompt starts as after a line end. A `draft` changes how soon
    samples are drawn, not what. Raises UserError for a prompt with characters the model does not know, unless
    `unknown` is "skip" or "replace".
    """
    settings = settings or SampleConfig()
    ids = tokenizer.encode(prompt, unknown)
    if len(ids) == 0:
        ids = tokenizer.encode("\n", "replace")
    samples = [_Characters(index, tokenizer, stop) for index in range(num_samples)]
    drawing = _Drawing(model, torch.tensor(ids.astype("int64")), settings, num_samples, cache, draft)
    while drawing.going:
        for stream, drawn, logprobs in drawing.go_on():
            sample = samples[stream.index]
            for token, logprob in zip(drawn, logprobs, strict=True):
                yield from sample.push(token, logprob)
            if sample.ended:
                drawing.let_go(stream)
    for sample in samples:
        yield from sample.flush()


def generate_ids(
    model: GPT,
    prompt: Tensor,
    settings: SampleConfig,
    *,
    num_samples: int = 1,
    cache: bool = True,
    draft: Draft | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Continue the ids `prompt` (T,) in `num_samples` streams; yield ids (B,) and log-probabilities (B,), on the CPU.

    Sample i draws from a generator of its own, named by (seed, i), and so does not depend on how many are drawn. On a
    CPU, with a cache and no repetition penalty, a few streams are drawn faster with a `draft`; elsewhere it is
    not used. Raises UserError when the model's logits are not finite.
    """
    drawing = _Drawing(model, prompt, settings, num_samples, cache, draft)
    logprobs = np.empty(drawing.ids.shape, dtype=np.float32)
    given = drawing.begin
    while given < drawing.end:
        for stream, _, values in drawing.go_on():
            logprobs[stream.index, stream.length - len(values) : stream.length] = values
        ready = min((stream.length for stream in drawing.going), default=drawing.end)  # some may be ahead of others
        columns = (torch.from_numpy(rows[:, given:ready].copy()).unbind(1) for rows in (drawing.ids, logprobs))
        yield from zip(*columns, strict=True)
        given = ready


@dataclass(eq=False)
class _Stream:
    """Token ids of one sample, and what the next pass needs of it."""

    index: int
    ids: NDArray[np.int64]
    """Those of the prompt, those drawn, and room for those to come."""
    length: int
    """How many there are."""
    gumbel: "_GumbelNumbers"
    start: int = -1
    """Where the window begins that the model sees."""
    moved: bool = False
    """Whether it began elsewhere the time before."""
    guesses: list[int] = field(default_factory=list)
    """What may come next."""
    ahead: int = AHEAD
    """How many tokens are worth guessing."""

    @property
    def window(self) -> NDArray[np.int64]:
        """What the model sees."""
        return self.ids[self.start : self.length]

    def move_window(self, start: int) -> None:
        """Let the model see what is there from `start` on."""
        self.start, self.moved = start, start != self.start

    def extend(self, drawn: list[int]) -> int:
        """Take the tokens drawn after the last one and each guess, up to the first guessed wrong; return how many."""
        right = next((at for at, guess in enumerate(self.guesses) if guess != drawn[at]), len(self.guesses))
        self.ids[self.length : self.length + right + 1] = drawn[: right + 1]
        self.length += right + 1
        self.ahead = min(AHEAD, right + MORE)
        return right + 1


class _Drawing:
    """Streams that are drawn together: a pass of the model gives each a token, and one more for each right guess."""

    def __init__(
        self,
        model: GPT,
        prompt: Tensor,
        settings: SampleConfig,
        num_samples: int,
        cache: bool,
        draft: Draft | None,
    ) -> None:
        self.model, self.settings, self.device = model, settings, model.token_embedding.weight.device
        self.begin, self.end = prompt.numel(), prompt.numel() + settings.length
        if not cache or settings.repetition_penalty != 1 or self.device.type != "cpu" or num_samples > MOST_STREAMS:
            draft = None
        self.draft, self.cache, self.decode = draft, None, decoder(model)
        if cache:
            slots = min(model.config.context, self.end) + (AHEAD if draft else 0)
            self.cache = KVCache.empty(model, num_samples, slots)
            if draft and num_samples > 1:
                self.cache.clear()
        vocab_size = model.token_embedding.num_embeddings
        self.ids = np.empty((num_samples, self.end), dtype=np.int64)
        self.ids[:, : self.begin] = prompt.numpy(force=True)
        self.going = [
            _Stream(index, row, self.begin, _GumbelNumbers(settings.seed, index, vocab_size, AT_ONCE // num_samples))
            for index, row in enumerate(self.ids)
            if settings.length
        ]
        """The streams that are not finished, in the order of the cache."""

    def go_on(self) -> list[tuple[_Stream, list[int], list[float]]]:
        """Draw on in the streams that are not finished; return each, its new tokens, and their log-probabilities."""
        streams = self.going.copy()
        for stream in streams:
            stream.move_window(window_start(stream.length, self.begin, self.model.config.context))
            if self.draft:
                stream.guesses = self._guess(self.draft, stream, ROWS // len(streams) - 1)
        with torch.inference_mode(), eval_mode(self.model):
            seen = None
            if self.cache is None or self.settings.repetition_penalty != 1:
                seen = self._tensor(np.stack([stream.window for stream in streams]))  # (B, S)
            logits = (self._read(self.cache) if self.cache else self.model(seen)[:, -1:]).float()  # (B, T, V)
            if not bool(logits.isfinite().all()):
                raise CheckpointError("the model's outputs are not finite")
            B, T, _ = logits.shape
            gumbel = torch.cat([stream.gumbel.of(stream.length - self.begin, T) for stream in streams])  # (B T, V)
            drawn = next_token(logits.flatten(0, 1), seen, self.settings, gumbel).view(B, T)
            logprobs = logits.log_softmax(-1).gather(2, drawn[..., None])[..., 0]  # (B, T)
        found = []
        for stream, ids, values in zip(streams, drawn.tolist(), logprobs.tolist(), strict=True):
            count = stream.extend(ids)
            found.append((stream, ids[:count], values[:count]))
        for stream in reversed(streams):
            if stream.length == self.end:
                self.let_go(stream)
        return found

    def let_go(self, stream: _Stream) -> None:
        """Draw no more of a stream."""
        if stream not in self.going:
            return
        place = self.going.index(stream)
        self.going[place] = self.going[-1]
        self.going.pop()
        if self.cache:
            self.cache.drop(place)

    def _guess(self, draft: Draft, stream: _Stream, most: int) -> list[int]:
        context = self.model.config.context
        count = min(most, stream.ahead, stream.start + context - stream.length, self.end - 1 - stream.length)
        noise = stream.gumbel.of(stream.length - self.begin, count).numpy()
        return draft.guess(stream.window[-LONGEST:].tolist(), noise, self.settings.temperature)

    def _read(self, cache: KVCache) -> Tensor:
        """Return logits (B, T, V) after the last token of each stream and its guesses; those of fewer are void."""
        streams = self.going
        moved = [place for place, stream in enumerate(streams) if stream.moved]
        if streams[0].length == self.begin:  # all begin alike
            self._read_windows(streams[:1], cache.stream(0))
            cache.spread(len(streams[0].window) - 1)
        elif len(moved) == len(streams):
            self._read_windows(streams, cache)
        else:
            for place in moved:
                self._read_windows(streams[place : place + 1], cache.stream(place))
        ids = np.zeros((len(streams), 1 + max(len(stream.guesses) for stream in streams)), dtype=np.int64)
        for row, stream in zip(ids, streams, strict=True):
            row[: 1 + len(stream.guesses)] = stream.ids[stream.length - 1], *stream.guesses
        cache.lengths = [len(stream.window) - 1 for stream in streams]  # wrong guesses are forgotten
        return self.decode(self._tensor(ids), cache)

    def _read_windows(self, streams: list[_Stream], cache: KVCache) -> None:
        """Read all but the last token, after which guesses may follow."""
        cache.lengths = [0] * len(streams)
        ids = np.stack([stream.window[:-1] for stream in streams])
        if ids.size:
            self.decode(self._tensor(ids), cache)

    def _tensor(self, ids: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(ids).to(self.device)


def window_start(length: int, prompt_length: int, context: int) -> int:
    """Return how many of `length` tokens are dropped before predicting the next one.

    At first the window holds the prompt, or the last `context` tokens of a longer one. Each time it
    would outgrow the context it lets go of half a context at once, so that a cache lives for as many steps.
    """
    first = max(0, prompt_length - context)
    stride = max(1, context // 2)
    overflow = max(0, length - first - context)
    return first + -(-overflow // stride) * stride


def next_token(logits: Tensor, seen: Tensor | None, settings: SampleConfig, gumbel: Tensor) -> Tensor:
    """Choose a token (B,) from logits (B, V), with independent numbers of the standard Gumbel distribution (B, V).

    `seen` (B, S) are the tokens in the window, for the repetition penalty. Temperature 0 is greedy. Else the greatest
    sum of log-probability and number wins, which each token does as often as it is likely (Maddison et al. 2014). By
    the same numbers similar distributions mostly choose the same token (Daliri et al. 2024).
    """
    if settings.temperature == 0:
        return penalized(logits, seen, settings.repetition_penalty).argmax(-1)
    log_probs = probabilities(logits, seen, settings).log()  # (B, V), minus infinity for filtered ones
    return (log_probs + gumbel.to(log_probs.dtype).to(log_probs.device)).argmax(-1)


def probabilities(logits: Tensor, seen: Tensor | None, settings: SampleConfig) -> Tensor:
    """Return the distribution (B, V) that is drawn from: penalty, temperature, then top-k, top-p, min-p in turn."""
    if logits.device.type != "mps":  # which has no float64
        logits = logits.double()
    logits = penalized(logits, seen, settings.repetition_penalty)
    # With the largest at zero, no temperature is so small that the quotient overflows.
    probs = ((logits - logits.amax(-1, keepdim=True)) / settings.temperature).softmax(-1)
    if 0 < settings.top_k < probs.size(-1):
        order = probs.argsort(dim=-1, descending=True, stable=True)
        probs = probs.scatter(1, order[:, settings.top_k :], 0.0)
    if settings.top_p < 1:
        # Nucleus sampling (Holtzman et al. 2020): the smallest set of likeliest tokens that reaches top_p.
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered
        beyond = before >= settings.top_p * ordered.sum(-1, keepdim=True)
        probs = probs.masked_fill(beyond.scatter(1, order, beyond), 0.0)
    if settings.min_p > 0:
        probs = probs.masked_fill(probs < settings.min_p * probs.amax(-1, keepdim=True), 0.0)
    return probs / probs.sum(-1, keepdim=True)


def penalized(logits: Tensor, seen: Tensor | None, penalty: float) -> Tensor:
    """Make the tokens that stand in `seen` less likely (Keskar et al. 2019, section 4.1)."""
    if seen is None or penalty == 1:
        return logits
    score, most = logits.gather(1, seen), torch.finfo(logits.dtype).max / 4  # beyond which differences are infinite
    changed = torch.where(score > 0, score / penalty, score * penalty).clamp(-most, most)
    return logits.scatter(1, seen, changed)


class _GumbelNumbers:
    """Independent numbers of the standard Gumbel distribution, V for each token of one stream."""

    def __init__(self, seed: int, stream: int, vocab_size: int, at_once: int) -> None:
        """Make `at_once` numbers at a time, or as many as are asked for."""
        self.generator = torch.Generator().manual_seed(mix_seed(seed, "sample", stream))
        self.at_once = at_once // vocab_size
        self.start, self.made = 0, torch.empty(0, vocab_size, dtype=torch.float64)  # from token `start` on

    def of(self, start: int, count: int) -> Tensor:
        """Return those of `count` tokens from the `start`-th on, (count, V). Those before it are forgotten."""
        self.made, self.start = self.made[start - self.start :], start
        missing = count - self.made.size(0)
        if missing > 0:
            uniform = self.made.new_empty(max(missing, self.at_once), self.made.size(1))
            exponential = uniform.uniform_(generator=self.generator).neg_().log1p_().neg_().clamp_(min=LEAST)
            self.made = torch.cat((self.made, exponential.log_().neg_()))
        return self.made[:count]


class _Characters:
    """Turns the tokens of one sample into characters, and holds back what may be the start of a stop string."""

    def __init__(self, index: int, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self.index = index
        self.decode = tokenizer.decoder()
        self.stop = [text for text in stop if text]
        self.held: list[Piece] = []
        self.logprob = 0.0
        self.ended = False

    def push(self, token: int, logprob: float) -> Iterator[Piece]:
        if self.ended:
            return
        self.logprob += logprob
        # A byte may complete no character, or two: one that it shows to be malformed, and its own.
        for char in self.decode(token):
            self.held.append(Piece(self.index, char, self.logprob))
            self.logprob = 0.0
        held = "".join(piece.text for piece in self.held)
        found = [at for at in (held.find(text) for text in self.stop) if at >= 0]
        if found:
            self.ended = True
            yield from self._release(min(found))
        else:
            yield from self._release(len(held) - self._possible_stop(held))

    def flush(self) -> Iterator[Piece]:
        if not self.ended:
            yield from self.held

    def _release(self, characters: int) -> list[Piece]:
        released, self.held = self.held[:characters], self.held[characters:]
        return released

    def _possible_stop(self, held: str) -> int:
        """Return the length of the longest end of `held` that some stop string begins with."""
        lengths = (n for text in self.stop for n in range(1, len(text)) if held.endswith(text[:n]))
        return max(lengths, default=0)
