"""Drawing text from a model, token by token, with a key-value cache, and several in one pass where guesses are right.

One window rule decides what the model sees, with the cache and without, so both draw the same text:
up to the context length it sees everything; then the oldest half of a context is dropped at a time. A new
window is computed afresh, because its tokens stand at new positions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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

AHEAD = 8
"""How many tokens are guessed at once."""
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

    Sample i draws from a generator of its own, named by (seed, i), and so does not depend on how many
    are drawn. One stream on a CPU, with a cache and no repetition penalty, is drawn faster with a `draft`; elsewhere
    that is untried. Raises UserError when the model's logits are not finite.
    """
    device = model.token_embedding.weight.device
    context = model.config.context
    gumbel = _GumbelNumbers(settings.seed, num_samples, model.token_embedding.num_embeddings)
    if num_samples > 1 or not cache or settings.repetition_penalty != 1 or device.type != "cpu":
        draft = None
    ids = prompt.to(device).repeat(num_samples, 1)  # (B, T), grows by what a step draws
    continued = decoder(model)
    start, store, step = 0, None, 0
    while step < settings.length:
        previous, start = start, window_start(ids.size(1), prompt.numel(), context)
        if cache and (store is None or start != previous):
            store = KVCache.empty(model, num_samples if step else 1)
        seen = ids[:, start:]  # (B, S)
        guesses: list[int] = []
        if draft:
            ahead = min(AHEAD, context - seen.size(1), settings.length - step - 1)
            guesses = draft.guess(seen[0, -LONGEST:].tolist(), gumbel.of(step, ahead)[0].numpy(), settings.temperature)
        drawing = 1 + len(guesses)
        with torch.inference_mode(), evaluating(model):  # not across the yield: what the caller does is its own
            tokens = torch.cat((seen, ids.new_tensor([guesses])), dim=1) if guesses else seen
            if store is None:
                logits = model(tokens)  # (B, T, V)
            elif step:
                logits = continued(tokens[:, store.length :], store)
            else:  # all streams begin alike
                logits, store = continued(tokens[:1], store).expand(num_samples, -1, -1), store.repeated(num_samples)
            logits = logits[:, -drawing:].float()  # (B, drawing, V)
            if not bool(logits.isfinite().all()):
                raise UserError("the model's outputs are not finite; choose an earlier one with --checkpoint")
            numbers = gumbel.of(step, drawing).flatten(0, 1)  # (B drawing, V)
            drawn = next_token(logits.flatten(0, 1), seen, settings, numbers).view(num_samples, drawing)
            if guesses and store is not None:
                right = _agreeing(guesses, drawn[0].tolist())
                logits, drawn = logits[:, : right + 1], drawn[:, : right + 1]  # what came after a wrong guess is void
                store.length -= len(guesses) - right
            logprobs = logits.log_softmax(-1).gather(2, drawn[..., None])[..., 0]  # (B, drawn)
            ids = torch.cat((ids, drawn), dim=1)
        step += drawn.size(1)
        yield from zip(drawn.unbind(1), logprobs.unbind(1), strict=True)


def window_start(length: int, prompt_length: int, context: int) -> int:
    """Return how many of `length` tokens are dropped before predicting the next one.

    At first the window holds the prompt, or the last `context` tokens of a longer one. Each time it
    would outgrow the context it lets go of half a context at once, so that a cache lives for as many steps.
    """
    first = max(0, prompt_length - context)
    stride = max(1, context // 2)
    overflow = max(0, length - first - context)
    return first + -(-overflow // stride) * stride


def next_token(logits: Tensor, seen: Tensor, settings: SampleConfig, gumbel: Tensor) -> Tensor:
    """Choose a token (B,) from logits (B, V), with independent numbers of the standard Gumbel distribution (B, V).

    `seen` (B, S) are the tokens in the window, for the repetition penalty. Temperature 0 is greedy. Else the greatest
    sum of log-probability and number wins, which each token does as often as it is likely (Maddison et al. 2014). By
    the same numbers similar distributions mostly choose the same token (Daliri et al. 2024).
    """
    if settings.temperature == 0:
        return penalized(logits, seen, settings.repetition_penalty).argmax(-1)
    log_probs = probabilities(logits, seen, settings).log()  # (B, V), minus infinity for filtered ones
    return (log_probs + gumbel.to(log_probs.dtype).to(log_probs.device)).argmax(-1)


def probabilities(logits: Tensor, seen: Tensor, settings: SampleConfig) -> Tensor:
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


def penalized(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Make the tokens that stand in `seen` less likely (Keskar et al. 2019, section 4.1)."""
    if penalty == 1:
        return logits
    score, most = logits.gather(1, seen), torch.finfo(logits.dtype).max / 4  # beyond which differences are infinite
    changed = torch.where(score > 0, score / penalty, score * penalty).clamp(-most, most)
    return logits.scatter(1, seen, changed)


def _agreeing(guesses: list[int], drawn: list[int]) -> int:
    """Return how many tokens were guessed right, up to the first that was not."""
    return next((at for at, guess in enumerate(guesses) if guess != drawn[at]), len(guesses))


class _GumbelNumbers:
    """Independent numbers of the standard Gumbel distribution, V for each token, made as drawing comes to them."""

    def __init__(self, seed: int, num_samples: int, vocab_size: int) -> None:
        """Give each stream a generator of its own."""
        seeds = (mix_seed(seed, "sample", index) for index in range(num_samples))
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.start, self.made = 0, torch.empty(num_samples, 0, vocab_size, dtype=torch.float64)  # from token `start` on

    def of(self, start: int, count: int) -> Tensor:
        """Return those of `count` tokens from the `start`-th on, (B, count, V). Those before it are forgotten."""
        self.made, self.start = self.made[:, start - self.start :], start
        uniform = self.made.new_empty(self.made.size(0), max(0, count - self.made.size(1)), self.made.size(2))
        for row, generator in zip(uniform, self.generators, strict=True):
            row.uniform_(generator=generator)
        exponential = uniform.neg_().log1p_().neg_().clamp_(min=LEAST)
        self.made = torch.cat((self.made, exponential.log_().neg_()), dim=1)
        return self.made[:, :count]


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
