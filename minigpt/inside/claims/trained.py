"""What a trained model says to the claims that no formula decides: what its heads came to do, and what for.

Each check measures on windows of the run's validation split, side by side and as long as the context. A difference is
SUPPORTED or NOT SUPPORTED where it lies on its side of the margin by two standard errors over the windows, else
INCONCLUSIVE. Attention is compared with what looking everywhere alike would give, or with the same model before
training; heads are chosen on one half of the windows and measured on the other, for the best of many is good by luck.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.checkpoint import Checkpoint
from minigpt.errors import UserError
from minigpt.inside.claims.claim import Result, figure
from minigpt.inside.extract import Attend, Extraction, attending, extract, logit_lens, without_heads
from minigpt.inside.passage import characters
from minigpt.inside.scores import divergence, head_scores
from minigpt.model import GPT
from minigpt.seeds import mix_seed
from minigpt.tokenizer import Ids

WINDOWS = 8
SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE = "SUPPORTED", "NOT SUPPORTED", "INCONCLUSIVE"
FREE = 0.001
"""Nats that a head may cost at most to be called free to remove."""
SHUFFLES = 2000


@dataclass(frozen=True)
class Evidence:
    """A trained model and the windows of text that it is asked about."""

    loaded: Checkpoint
    windows: Sequence[Ids]

    @property
    def model(self) -> GPT:
        return self.loaded.model

    @cached_property
    def seen(self) -> list[Extraction]:
        """What the model computes for each window."""
        return [extract(self.model, window) for window in self.windows]

    @cached_property
    def untrained(self) -> list[Extraction]:
        """What the same model computed before it was trained."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix_seed(self.loaded.config.train.seed, "weights"))
            fresh = GPT(self.loaded.config.model, self.loaded.tokenizer.vocab_size)
        return [extract(fresh, window) for window in self.windows]

    def scores(self, name: str) -> tuple[Tensor, Tensor]:
        """Return one score of all heads in each window, (N, L, H), and what uniform attention gets, (N)."""
        found = [
            head_scores(seen.weights, characters(self.loaded.tokenizer, window))[name]
            for seen, window in zip(self.seen, self.windows, strict=True)
        ]
        return torch.stack([score.values for score in found]), torch.tensor([score.uniform for score in found])

    def losses(self) -> Tensor:
        """Return the loss of the model in each window as it is now, (N), in nats."""
        return torch.stack([_losses(self.model, window).mean() for window in self.windows])

    @cached_property
    def costs(self) -> Tensor:
        """How much the loss of each window rises without each head, (N, L, H), in nats."""
        shape = self.loaded.config.model
        usual, found = self.losses(), []
        for layer in range(shape.n_layer):
            for head in range(shape.n_head):
                with without_heads(self.model, {(layer, head)}):
                    found.append(self.losses() - usual)
        return torch.stack(found, 1).view(len(self.windows), shape.n_layer, shape.n_head)


@torch.no_grad()
def _losses(model: GPT, window: Ids) -> Tensor:
    """Return the cross entropy of each token of a window but the first, (T - 1)."""
    ids = torch.from_numpy(window.astype(np.int64)).to(model.token_embedding.weight.device)
    return F.cross_entropy(model(ids[None, :-1])[0].float(), ids[1:], reduction="none").cpu()


@dataclass(frozen=True)
class Question:
    """A claim of the notes, and what a trained model is measured for."""

    id: int
    says: str
    notes: tuple[str, ...]
    ask: Callable[[Evidence], tuple[str, str]]
    """Returns the verdict, and the figures that say so with their baseline."""


def judge(values: Tensor, margin: float = 0.0) -> str:
    """Return the verdict on whether values, one for each window, lie above a margin in the mean."""
    values = values.double()
    if len(values) < 3 or not values.isfinite().all():
        return INCONCLUSIVE
    mean, error = values.mean().item(), values.std().item() / math.sqrt(len(values))
    if mean - 2 * error > margin:
        return SUPPORTED
    return NOT_SUPPORTED if mean + 2 * error < margin else INCONCLUSIVE


def attention_selects(evidence: Evidence) -> tuple[str, str]:
    """The entropy of attention, against the largest possible: a tenth less is a choice."""
    entropy, uniform = evidence.scores("entropy")
    share = (entropy / uniform[:, None, None]).mean((1, 2))  # (N,)
    return judge(1 - share, 0.1), f"mean entropy {figure(entropy.mean())} nats, uniform {figure(uniform.mean())}"


def training_sharpens(evidence: Evidence) -> tuple[str, str]:
    """The same model before training is the baseline, for a random head is not quite uniform either."""
    after = torch.stack([_entropy(seen.weights) for seen in evidence.seen])
    before = torch.stack([_entropy(seen.weights) for seen in evidence.untrained])
    return judge(before - after), f"mean entropy {figure(after.mean())} nats, before training {figure(before.mean())}"


def _entropy(weights: Tensor) -> Tensor:
    mean: Tensor = torch.special.entr(weights[:, :, 1:].double()).sum(-1).mean()
    return mean


def places_differ(evidence: Evidence) -> tuple[str, str]:
    """The cosine between two places of one character, where the blocks begin and where they end."""
    alike = torch.tensor([_alikeness(seen) for seen in evidence.seen])  # (N, L + 1)
    measured = f"cosine of equal characters by layer {', '.join(map(figure, alike.mean(0)))}"
    return judge(alike[:, 0] - alike[:, -1]), measured


def _alikeness(seen: Extraction) -> list[float]:
    pairs = (seen.ids[:, None] == seen.ids).triu(1)  # (T, T)
    units = F.normalize(seen.stream, dim=-1)  # (L + 1, T, C)
    return [(stream @ stream.T)[pairs].mean().item() for stream in units]


def hard_attention_suffices(evidence: Evidence) -> tuple[str, str]:
    """Let each query take its strongest key alone: were the others of no use, the loss would stay."""

    def strongest(layer: int, attend: Attend) -> Attend:
        def attend_to_one(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
            hidden = torch.full((q.size(2), k.size(2)), -math.inf, device=q.device).triu(1)
            key = (q @ k.mT + hidden).argmax(-1, keepdim=True)  # (B, H, T, 1)
            return v.gather(2, key.expand(-1, -1, -1, v.size(-1)))

        return attend_to_one

    usual = evidence.losses()
    with attending(evidence.model, strongest):
        hard = evidence.losses()
    measured = f"loss {figure(hard.mean())} with the strongest key alone, {figure(usual.mean())} with all"
    return judge(usual - hard, -0.05), measured


def heads_differ(evidence: Evidence) -> tuple[str, str]:
    """Jensen-Shannon divergence between heads, against the same model before training: 0 for the same, 1 at most."""
    after = torch.stack([_apart(seen.weights) for seen in evidence.seen])
    before = torch.stack([_apart(seen.weights) for seen in evidence.untrained])
    return judge(after - before), f"mean divergence {figure(after.mean())}, before training {figure(before.mean())}"


def _apart(weights: Tensor) -> Tensor:
    apart = divergence(weights)
    mean: Tensor = apart.sum() / max(1, len(apart) * (len(apart) - 1))
    return mean


def looks_at(pattern: str, share: float) -> Callable[[Evidence], tuple[str, str]]:
    """Return the check whether some head gives a pattern at least this share of its attention."""

    def check(evidence: Evidence) -> tuple[str, str]:
        values, uniform = evidence.scores(pattern)  # (N, L, H)
        half = len(values) // 2
        if half == 0:
            return INCONCLUSIVE, "the validation split has one window only"
        chosen = int(values[:half].mean(0).argmax())
        layer, head = divmod(chosen, values.size(2))
        found = values[half:, layer, head]
        measured = f"head {layer}.{head}: {figure(found.mean())} of its attention, uniform {figure(uniform.mean())}"
        return judge(found, share), measured

    return check


def deeper_is_further(evidence: Evidence) -> tuple[str, str]:
    """Mean distance by layer without the first character, on which heads rest that look at nothing."""
    distance, uniform = evidence.scores("distance without first")
    layers = distance.nanmean(2)  # (N, L)
    measured = f"by layer {', '.join(map(figure, layers.mean(0)))} characters, uniform {figure(uniform.mean())}"
    return judge(layers[:, -1] - layers[:, 0]), measured


def every_head_helps(evidence: Evidence) -> tuple[str, str]:
    """Silence one head at a time. That every one is missed takes all of them to cost something."""
    costs = evidence.costs.flatten(1)  # (N, L H)
    verdicts = [judge(cost, FREE) for cost in costs.T]
    free = sum(cost <= FREE for cost in costs.mean(0).tolist())
    verdict = next((v for v in (NOT_SUPPORTED, INCONCLUSIVE) if v in verdicts), SUPPORTED)
    means = costs.mean(0)
    measured = (
        f"{free} of {len(means)} heads cost {FREE} nats or less; from {figure(means.min())} to {figure(means.max())}"
    )
    return verdict, measured


def written_length_tells(evidence: Evidence) -> tuple[str, str]:
    """Whether a head that writes more into the stream is missed more: rank correlation, against shuffled heads."""
    written = torch.stack([(s.weights * s.written[:, :, None]).sum(-1).mean(-1) for s in evidence.seen]).mean(0)
    written, costs = written.flatten(), evidence.costs.mean(0).flatten()
    found, by_chance = _rank_correlation(written, costs)
    measured = f"rank correlation {figure(found)} over {len(costs)} heads, 95 % by chance below {figure(by_chance)}"
    if len(costs) < 6:
        return INCONCLUSIVE, measured
    return (SUPPORTED if found > by_chance else NOT_SUPPORTED if found < -by_chance else INCONCLUSIVE), measured


def _rank_correlation(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return Spearman's correlation, and the value that 95 % of shuffled pairs stay below."""
    ranks = [F.normalize(z.argsort().argsort().double() - (len(z) - 1) / 2, dim=0) for z in (x, y)]
    generator = torch.Generator().manual_seed(mix_seed("claim", "shuffles"))
    chance = [(ranks[0] @ ranks[1][torch.randperm(len(x), generator=generator)]).item() for _ in range(SHUFFLES)]
    return (ranks[0] @ ranks[1]).item(), float(np.quantile(chance, 0.95))


def kinds_of_characters(evidence: Evidence) -> tuple[str, str]:
    """Cosines between embeddings of vowels, of other small letters, of capitals, against shuffled characters."""
    signs = characters(evidence.loaded.tokenizer, np.arange(evidence.loaded.tokenizer.vocab_size, dtype=np.uint32))
    kind = torch.tensor([_kind(sign) for sign in signs])
    known = kind >= 0
    units = F.normalize(evidence.model.token_embedding.weight.detach().cpu()[known], dim=-1)
    kind, cosine = kind[known], units @ units.T
    if len(kind) < 10 or kind.unique().numel() < 2:
        return INCONCLUSIVE, "the vocabulary has too few letters of two kinds"

    def gap(kind: Tensor) -> float:
        same = (kind[:, None] == kind).fill_diagonal_(False)
        other = kind[:, None] != kind
        return (cosine[same].mean() - cosine[other].mean()).item()

    generator = torch.Generator().manual_seed(mix_seed("claim", "kinds"))
    chance = [gap(kind[torch.randperm(len(kind), generator=generator)]) for _ in range(SHUFFLES)]
    found, limit = gap(kind), float(np.quantile(chance, 0.99))
    measured = f"cosines within a kind are {figure(found)} higher, 99 % by chance below {figure(limit)}"
    return (SUPPORTED if found > limit else NOT_SUPPORTED if found < 0 else INCONCLUSIVE), measured


def _kind(sign: str) -> int:
    if len(sign) != 1 or not sign.isalpha():
        return -1
    return 2 if sign.isupper() else int(sign in "aeiouyäöüáéíóúàèìòùâêîôûåæø")


def layers_refine(evidence: Evidence) -> tuple[str, str]:
    """Read the stream after each block as if it were the last: the loss it would have."""
    losses = torch.stack([_lens_losses(evidence.model, seen) for seen in evidence.seen])  # (N, L + 1)
    measured = f"loss by layer {', '.join(map(figure, losses.mean(0)))}"
    return judge(losses[:, 0] - losses[:, -1]), measured


def _lens_losses(model: GPT, seen: Extraction) -> Tensor:
    logits = logit_lens(model, seen.stream)[:, :-1]  # (L + 1, T - 1, V)
    return torch.stack([F.cross_entropy(layer, seen.ids[1:]) for layer in logits])


def context_helps(evidence: Evidence) -> tuple[str, str]:
    """The loss in the first and in the last quarter of a window, where there is more to look back on."""
    losses = torch.stack([_losses(evidence.model, window) for window in evidence.windows])  # (N, T - 1)
    quarter = max(1, losses.size(1) // 4)
    first, last = losses[:, :quarter].mean(1), losses[:, -quarter:].mean(1)
    return judge(first - last), f"loss {figure(first.mean())} in the first quarter, {figure(last.mean())} in the last"


QUESTIONS = (
    Question(1, "Attention picks out some positions and ignores the others.", ("000", "001", "004"), attention_selects),
    Question(16, "What stands at a place becomes the contextual version of its token.", ("000", "003"), places_differ),
    Question(17, "It is enough to take the key with the largest weight.", ("004",), hard_attention_suffices),
    Question(23, "Embeddings come to know features: characters of a kind lie together.", ("002",), kinds_of_characters),
    Question(33, "Different heads look at different things.", ("000", "001", "003"), heads_differ),
    Question(34, "There is a head that mostly looks at the previous token.", ("000",), looks_at("previous", 0.5)),
    Question(36, "Some head finds what is related further back: what followed the same character earlier.", ("000",),
             looks_at("induction", 0.2)),
    Question(38, "Deeper layers attend further.", ("000",), deeper_is_further),
    Question(44, "The linear map after the heads turns good heads up, bad ones down.", ("002",), written_length_tells),
    Question(47, "More heads always help.", ("004",), every_head_helps),
    Question(87, "Learning makes attention choose: it is sharper than before.", ("000", "002"), training_sharpens),
    Question(104, "Layer by layer the stream gets closer to the answer.", ("004",), layers_refine),
    Question(105, "More context makes better predictions.", ("000",), context_helps),
)  # fmt: skip


def ask(loaded: Checkpoint, tokens: Ids) -> list[Result]:
    """Return what a trained model says to each question, measured on the beginning of `tokens`.

    Raises UserError where they are fewer than a window.
    """
    context = loaded.config.model.context
    if len(tokens) < context or context < 2:
        raise UserError(f"the validation split has {len(tokens)} tokens, the questions need {max(2, context)}")
    count = min(WINDOWS, len(tokens) // context)
    windows = [np.asarray(tokens[at * context : (at + 1) * context]) for at in range(count)]
    evidence, results = Evidence(loaded, windows), []
    for question in QUESTIONS:
        verdict, measured = question.ask(evidence)
        where = f"{question.ask.__module__.replace('.', '/')}.py:{question.ask.__code__.co_firstlineno}"
        results.append(Result(question.id, question.says, ", ".join(question.notes), measured, verdict, None, where))
    return results
