"""Drawing text from a model, token by token, with a key-value cache, and several in one pass where guesses are right.

One window rule decides what the model sees, with the cache and without, so both draw the same text:
up to the context length it sees everything; then the oldest half of a context is dropped at a time. A new
window is computed afresh, because its tokens stand at new positions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minigpt.config import RuntimeConfig, SampleConfig
from minigpt.decode import KVCache, decoder
from minigpt.draft import LONGEST, Draft
from minigpt.errors import UserError
from minigpt.kernels import store_by_columns
from minigpt.model import GPT, evaluating
from minigpt.runtime import Runtime, choose, sampling_threads
from minigpt.seeds import mix_seed
from minigpt.tokenizer import Tokenizer, Unknown

AHEAD, MORE = 8, 4
"""How many tokens are guessed at once at most, and how many more than were right the time before."""
ROWS, MOST_STREAMS = 50, 16
"""How many rows a pass over several streams and their guesses has, at most, and in how many streams guesses pay."""
AT_ONCE = 1 << 14
"""Random numbers that are made at once."""
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
    threads = config.threads
    if threads == "auto":
        threads = sampling_threads(sum(parameter.numel() for parameter in model.parameters()), num_samples)
    runtime = choose(config.model_copy(update={"threads": threads}))
    model.to(runtime.device)
    model.use(runtime.use_kernels())
    if runtime.device == "cpu":
        store_by_columns(model)
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
    not a whole character are left out. An empty prompt starts as after a line end. A `draft` changes how soon one
    sample is drawn, not what. Raises UserError for a prompt with characters the model does not know, unless `unknown`
    is "skip" or "replace".
    """
    settings = settings or SampleConfig()
    ids = tokenizer.encode(prompt, unknown)
    if len(ids) == 0:
        ids = tokenizer.encode("\n", "replace")
    streams = [_Stream(index, tokenizer, stop) for index in range(num_samples)]
    start = torch.tensor(ids.astype("int64"))
    for drawn, logprobs in generate_ids(model, start, settings, num_samples=num_samples, cache=cache, draft=draft):
        for stream, token, logprob in zip(streams, drawn.tolist(), logprobs.tolist(), strict=True):
            yield from stream.push(token, logprob)
        if all(stream.ended for stream in streams):
            return
    for stream in streams:
        yield from stream.flush()


def generate_ids(
    model: GPT,
    prompt: Tensor,
    settings: SampleConfig,
    *,
    num_samples: int = 1,
    cache: bool = True,
    draft: Draft | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Continue the ids `prompt` (T,) in `num_samples` streams; yield ids (B,) and their log-probabilities (B,).

    Sample i draws from a generator of its own, named by (seed, i), and so does not depend on how many are drawn. On a
    CPU, with a cache and no repetition penalty, a few streams are drawn faster with a `draft`; elsewhere that is
    untried. Raises UserError when the model's logits are not finite.
    """
    device, context = model.token_embedding.weight.device, model.config.context
    begin, end = prompt.numel(), prompt.numel() + settings.length
    if not cache or settings.repetition_penalty != 1 or device.type != "cpu" or num_samples > MOST_STREAMS:
        draft = None
    gumbel = _GumbelNumbers(settings.seed, num_samples, model.token_embedding.num_embeddings)
    texts = [_Text(stream, prompt.tolist()) for stream in range(num_samples)]
    going = texts.copy()  # those that are not finished
    reader = _Reader(model, min(context, end) + (AHEAD if draft else 0)) if cache else None
    given = 0
    while given < settings.length:
        ahead = min(ROWS // len(going) - 1, max(text.ahead for text in going)) if draft else 0
        numbers = gumbel.of([text.stream for text in going], [len(text.logprobs) for text in going], 1 + ahead)
        for text in going:
            text.see_from(window_start(len(text.ids), begin, context))
        if draft:
            for text, noise in zip(going, numbers.numpy(), strict=True):  # (1 + ahead, V)
                room = min(ahead, text.ahead, text.start + context - len(text.ids), end - 1 - len(text.ids))
                recent = text.ids[max(text.start, len(text.ids) - LONGEST) :]
                text.guesses = draft.guess(recent, noise[:room], settings.temperature)
        with torch.inference_mode(), evaluating(model):  # not across the yield: what the caller does is its own
            seen = None
            if reader is None or settings.repetition_penalty != 1:
                seen = torch.tensor([text.ids[text.start :] for text in going], device=device)  # (B, S)
            logits = (reader.read(going) if reader else model(seen)[:, -1:]).float()  # (B, T, V)
            if not bool(logits.isfinite().all()):
                raise UserError("the model's outputs are not finite; choose an earlier one with --checkpoint")
            B, T, _ = logits.shape
            drawn = next_token(logits.flatten(0, 1), seen, settings, numbers[:, :T].flatten(0, 1)).view(B, T)
            logprobs = logits.log_softmax(-1).gather(2, drawn[..., None])[..., 0]  # (B, T)
            for text, *row in zip(going, drawn.tolist(), logprobs.tolist(), strict=True):
                text.extend(*row)
            for place in [place for place, text in enumerate(going) if len(text.ids) == end][::-1]:
                going[place] = going[-1]
                going.pop()
                if reader:
                    reader.cache.drop(place)
        ready = min(len(text.logprobs) for text in texts)  # right guesses bring a text ahead of others
        ids = torch.tensor([text.ids[begin + given : begin + ready] for text in texts])
        values = torch.tensor([text.logprobs[given:ready] for text in texts])
        yield from zip(ids.unbind(1), values.unbind(1), strict=True)
        given = ready


@dataclass
class _Text:
    """What one stream has come to."""

    stream: int
    ids: list[int]
    """Those of the prompt, and those drawn."""
    logprobs: list[float] = field(default_factory=list)
    """Of those drawn."""
    start: int = -1
    """Where the window begins that the model sees."""
    moved: bool = False
    """Whether it began elsewhere the time before."""
    guesses: list[int] = field(default_factory=list)
    """What may come next."""
    ahead: int = AHEAD
    """How many tokens are worth guessing."""

    def see_from(self, start: int) -> None:
        self.start, self.moved = start, start != self.start

    def extend(self, drawn: list[int], logprobs: list[float]) -> None:
        """Take what was drawn after the last token and after each guess, up to the first that was guessed wrong."""
        right = next((at for at, guess in enumerate(self.guesses) if guess != drawn[at]), len(self.guesses))
        self.ids += drawn[: right + 1]
        self.logprobs += logprobs[: right + 1]
        self.ahead = min(AHEAD, right + MORE)


class _Reader:
    """Reads texts with a key-value cache: what is new in each, and a window that has moved from its start."""

    def __init__(self, model: GPT, slots: int) -> None:
        """Keep up to `slots` tokens of each text."""
        self.decode, self.device = decoder(model), model.token_embedding.weight.device
        self.cache = KVCache.empty(model, 1, slots)

    def read(self, texts: list[_Text]) -> Tensor:
        """Return logits (B, T, V) after the last token of each text and after its guesses; those of fewer are void."""
        moved = [place for place, text in enumerate(texts) if text.moved]
        if len(self.cache.lengths) < len(texts):  # they all begin alike
            self._read_windows(texts[:1], self.cache)
            self.cache = self.cache.repeated(len(texts))
        elif len(moved) == len(texts):
            self._read_windows(texts, self.cache)
        else:
            for place in moved:
                self._read_windows(texts[place : place + 1], self.cache.stream(place))
        most = max(len(text.guesses) for text in texts)
        ids = [[text.ids[-1], *text.guesses, *[0] * (most - len(text.guesses))] for text in texts]
        self.cache.lengths = [len(text.ids) - 1 - text.start for text in texts]  # wrong guesses are forgotten
        return self.decode(torch.tensor(ids, device=self.device), self.cache)

    def _read_windows(self, texts: list[_Text], cache: KVCache) -> None:
        """Read all but the last token, after which guesses may follow."""
        cache.lengths = [0] * len(texts)
        ids = [text.ids[text.start : -1] for text in texts]
        if ids[0]:
            self.decode(torch.tensor(ids, device=self.device), cache)


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
    """Independent numbers of the standard Gumbel distribution, V for each token, made as drawing comes to them."""

    def __init__(self, seed: int, num_samples: int, vocab_size: int) -> None:
        """Give each stream a generator of its own."""
        seeds = (mix_seed(seed, "sample", index) for index in range(num_samples))
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.start, self.made = 0, torch.empty(num_samples, 0, vocab_size, dtype=torch.float64)  # from token `start` on

    def of(self, streams: list[int], starts: list[int], count: int) -> Tensor:
        """Return those of `count` tokens from each of these streams' starts on (B, count, V), and forget all before."""
        first, last = min(starts), max(starts)
        self.made, self.start = self.made[:, first - self.start :], first
        B, ready, V = self.made.shape
        if ready < last + count - first:
            uniform = self.made.new_empty(B, max(last + count - first - ready, AT_ONCE // (B * V)), V)
            for row, generator in zip(uniform, self.generators, strict=True):
                row.uniform_(generator=generator)
            exponential = uniform.neg_().log1p_().neg_().clamp_(min=LEAST)
            self.made = torch.cat((self.made, exponential.log_().neg_()), dim=1)
        if first == last and len(streams) == len(self.generators):
            return self.made[:, :count]
        return torch.stack([self.made[s, start - first :][:count] for s, start in zip(streams, starts, strict=True)])


class _Stream:
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
