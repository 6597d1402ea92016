"""What a trained model says to the claims that no formula decides: what its heads came to do, and what for.

Each check measures on windows of the run's validation split, side by side. A difference is SUPPORTED or NOT SUPPORTED
where its mean over the windows lies on its side of a margin with 99 % confidence (Student's t), else INCONCLUSIVE;
where no mean is asked for, the check says how it decides.
Attention is compared with what looking everywhere alike would give, and what training did with the same model before
it; heads are chosen on one half of the windows and measured on the other, for the best of many is good by luck.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.claims.claim import Result, figure, figures, where_is
from minigpt.errors import UserError
from minigpt.interpret.excerpt import characters
from minigpt.interpret.extract import Activations, ablate_heads, capture_residual, extract, logit_lens, patch_attention
from minigpt.interpret.scores import MIN_MARGIN, Score, divergence, head_scores
from minigpt.model.gpt import GPT
from minigpt.model.kernels import SDPA
from minigpt.seeds import mix_seed
from minigpt.storage.checkpoint import Checkpoint
from minigpt.text.tokenizer import Ids
from minigpt.training.evaluate import evaluate

WINDOWS, LONGEST = 8, 256
"""Windows that are asked, and their tokens at most."""
SHORT = 16
"""Tokens of a context that is called short."""
SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE = "SUPPORTED", "NOT SUPPORTED", "INCONCLUSIVE"
FREE = 0.001
"""Nats that a head may cost at most to be called free to remove."""
VISIBLE = 0.02
"""Nats, cosine or divergence below which a difference is called none."""
SHUFFLES = 2000
STUDENT = {0.995: (9.925, 5.841, 4.604, 4.032, 3.707, 3.499), 0.9995: (31.6, 12.92, 8.610, 6.869, 5.959, 5.408)}
"""Quantiles of Student's t for 2 to 7 degrees of freedom: two-sided, 99 % and 99.9 % confidence."""


@dataclass(frozen=True)
class Evidence:
    """A trained model and the windows of text that it is asked about."""

    loaded: Checkpoint
    windows: Sequence[Ids]

    @property
    def model(self) -> GPT:
        return self.loaded.model

    @cached_property
    def before(self) -> GPT:
        """The same model before it was trained."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix_seed(self.loaded.config.train.seed, "weights"))
            return GPT(self.loaded.config.model, self.loaded.tokenizer.vocab_size).eval()

    @cached_property
    def seen(self) -> list[Activations]:
        """What the model computes for each window."""
        return [extract(self.model, window) for window in self.windows]

    @cached_property
    def untrained(self) -> list[Activations]:
        """What it computed before it was trained."""
        return [extract(self.before, window) for window in self.windows]

    @cached_property
    def _scores(self) -> list[dict[str, Score]]:
        known = self.loaded.tokenizer
        pairs = zip(self.seen, self.windows, strict=True)
        return [head_scores(seen.weights, characters(known, window)) for seen, window in pairs]

    def scores(self, name: str) -> tuple[Tensor, Tensor]:
        """Return one score of all heads in each window, (N, L, H), and what uniform attention gets, (N)."""
        found = [scores[name] for scores in self._scores]
        return torch.stack([score.values for score in found]), torch.tensor([score.uniform for score in found])

    def losses(self) -> Tensor:
        """Return the loss of the model in each window as it is now, (N), in nats."""
        known = self.loaded.tokenizer
        return torch.tensor([evaluate(self.model, window, known).loss for window in self.windows])

    @cached_property
    def costs(self) -> Tensor:
        """How much the loss of each window rises without each head, (N, L, H), in nats."""
        shape = self.loaded.config.model
        usual, found = self.losses(), []
        for layer in range(shape.n_layer):
            for head in range(shape.n_head):
                with ablate_heads(self.model, {(layer, head)}):
                    found.append(self.losses() - usual)
        return torch.stack(found, 1).view(len(self.windows), shape.n_layer, shape.n_head)


@dataclass(frozen=True)
class Question:
    """A claim of the notes, and what a trained model is measured for."""

    id: int
    says: str
    notes: tuple[str, ...]
    ask: Callable[[Evidence], tuple[str, str]]
    """Returns the verdict, and the figures that say so with their baseline."""


def judge(values: Tensor, margin: float = 0.0, confidence: float = 0.995) -> str:
    """Return the verdict on whether values, one for each of up to 8 windows, lie above a margin in the mean."""
    values = values.double()
    if len(values) < 3 or not values.isfinite().all():
        return INCONCLUSIVE
    quantile = STUDENT[confidence][min(len(values), 8) - 3]
    mean, error = values.mean().item(), values.std().item() / math.sqrt(len(values))
    if mean - quantile * error > margin:
        return SUPPORTED
    return NOT_SUPPORTED if mean + quantile * error < margin else INCONCLUSIVE


def in_order(values: Tensor) -> Tensor:
    """Return how far values (N, L) rise with L, as Kendall's tau: 1 where every pair does, -1 where none does."""
    later, earlier = torch.tril_indices(values.size(1), values.size(1), -1)
    return (values[:, later] - values[:, earlier]).sign().mean(1)


def attention_selects(evidence: Evidence) -> tuple[str, str]:
    """The entropy of attention, a tenth below the largest possible, and below that of the same heads untrained."""
    entropy, uniform = evidence.scores("entropy")
    share = (entropy / uniform[:, None, None]).mean((1, 2))  # (N,)
    before = torch.stack([_entropy(seen.weights) for seen in evidence.untrained]) / uniform
    measured = (
        f"mean entropy {figure(entropy.mean())} nats, uniform {figure(uniform.mean())}, "
        f"before training {figure((before * uniform).mean())}"
    )
    return judge(torch.minimum(0.9 - share, before - share)), measured


def _entropy(weights: Tensor) -> Tensor:
    mean: Tensor = torch.special.entr(weights[:, :, 1:].double()).sum(-1).mean()
    return mean


def embeddings_learn(evidence: Evidence) -> tuple[str, str]:
    """How far training moved the embedding of each character of the windows, as a share of its length at first."""
    known = torch.cat([seen.ids for seen in evidence.seen]).unique()
    now, then = (model.token_embedding.weight.detach().cpu()[known] for model in (evidence.model, evidence.before))
    moved = (now - then).norm(dim=-1) / then.norm(dim=-1)  # (characters,)
    cosine = F.cosine_similarity(now, then, dim=-1)
    measured = (
        f"moved by {figure(moved.mean())} times their length at first; cosine to the start {figure(cosine.mean())}"
    )
    along = F.normalize(then, dim=-1)  # decay alone moves them, but only along themselves
    aside = (now - (now * along).sum(-1, keepdim=True) * along).norm(dim=-1) / then.norm(dim=-1)
    return (SUPPORTED if aside.quantile(0.05) > 0.1 else NOT_SUPPORTED if aside.max() < 0.1 else INCONCLUSIVE), measured


def places_differ(evidence: Evidence) -> tuple[str, str]:
    """The cosine between two places of one character, where the blocks begin and where they end."""
    alike = torch.tensor([_alikeness(seen) for seen in evidence.seen])  # (N, L + 1)
    measured = f"cosine of equal characters by layer: {figures(alike.mean(0).tolist())}"
    return judge(alike[:, 0] - alike[:, -1], VISIBLE), measured


def _alikeness(seen: Activations) -> list[float]:
    pairs = (seen.ids[:, None] == seen.ids).triu(1)  # (T, T)
    units = F.normalize(seen.residual, dim=-1)  # (L + 1, T, C)
    return [(stream @ stream.T)[pairs].mean().item() for stream in units]


def hard_attention_suffices(evidence: Evidence) -> tuple[str, str]:
    """Let each query take its strongest key alone. It suffices where that keeps 95 % of what attention is good for."""

    def strongest(layer: int, sdpa: SDPA) -> SDPA:
        def attend_to_one(q: Tensor, k: Tensor, v: Tensor, dropout: float, mask: Tensor | None = None) -> Tensor:
            hidden = torch.full((q.size(2), k.size(2)), -math.inf, device=q.device).triu(1)
            key = (q @ k.mT + hidden).argmax(-1, keepdim=True)  # (B, H, T, 1)
            return v.gather(2, key.expand(-1, -1, -1, v.size(-1)))

        return attend_to_one

    shape, usual = evidence.loaded.config.model, evidence.losses()
    with patch_attention(evidence.model, strongest):
        hard = evidence.losses()
    with ablate_heads(
        evidence.model, [(layer, head) for layer in range(shape.n_layer) for head in range(shape.n_head)]
    ):
        none = evidence.losses()
    measured = (
        f"loss {figure(hard.mean())} with the strongest key alone, {figure(usual.mean())} with all, "
        f"{figure(none.mean())} with none"
    )
    if judge(none - usual, VISIBLE) != SUPPORTED:
        return INCONCLUSIVE, f"{measured}: attention does nothing here"
    return judge((none - hard) - 0.95 * (none - usual)), measured


def heads_differ(evidence: Evidence) -> tuple[str, str]:
    """Jensen-Shannon divergence between heads, against the same model before training: 0 for the same, 1 at most."""
    shape = evidence.loaded.config.model
    if shape.n_layer * shape.n_head < 2:
        return INCONCLUSIVE, "the model has one head only"
    after = torch.stack([_apart(seen.weights) for seen in evidence.seen])
    before = torch.stack([_apart(seen.weights) for seen in evidence.untrained])
    measured = f"mean divergence {figure(after.mean())}, before training {figure(before.mean())}"
    return judge(after - before, VISIBLE), measured


def _apart(weights: Tensor) -> Tensor:
    apart = divergence(weights)
    mean: Tensor = apart.sum() / (len(apart) * (len(apart) - 1))
    return mean


def looks_at(pattern: str, share: float) -> Callable[[Evidence], tuple[str, str]]:
    """Return the check whether some head gives a pattern this share of its attention, and well more than uniform."""

    def check(evidence: Evidence) -> tuple[str, str]:
        values, uniform = evidence.scores(pattern)  # (N, L, H)
        half = len(values) // 2
        if half == 0:
            return INCONCLUSIVE, "the validation split has one window only"
        lift = (values[:half] - uniform[:half, None, None]).nanmean(0)  # a window may have no such place
        if lift.isnan().all():
            return INCONCLUSIVE, "the windows have no such place"
        chosen = int(lift.nan_to_num(-math.inf).argmax())
        layer, head = divmod(chosen, values.size(2))
        has_place = uniform[half:].isfinite()
        found, baseline = values[half:, layer, head][has_place], uniform[half:][has_place]
        measured = f"head {layer}.{head}: {figure(found.mean())} of its attention, uniform {figure(baseline.mean())}"
        return judge(torch.minimum(found - share, found - baseline - MIN_MARGIN)), measured

    return check


def deeper_is_further(evidence: Evidence) -> tuple[str, str]:
    """Mean distance by layer without the first character, on which heads rest that look at nothing.

    Of each two layers, the deeper one has to be further in three quarters of all pairs.
    """
    distance, uniform = evidence.scores("distance without first")
    layers = distance.nanmean(2)  # (N, L)
    measured = f"by layer: {figures(layers.mean(0).tolist())} characters, uniform {figure(uniform.mean())}"
    return (judge(in_order(layers), 0.5) if layers.size(1) > 1 else INCONCLUSIVE), measured


def every_head_helps(evidence: Evidence) -> tuple[str, str]:
    """Silence one head at a time. As many heads are judged, each takes 99.9 % confidence."""
    costs = evidence.costs.flatten(1)  # (N, L H)
    verdicts = [judge(cost, FREE, 0.9995) for cost in costs.T]
    verdict = next((v for v in (NOT_SUPPORTED, INCONCLUSIVE) if v in verdicts), SUPPORTED)
    means = costs.mean(0)  # (L H,)
    more, less, undecided = (verdicts.count(verdict) for verdict in (SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE))
    measured = (
        f"of {len(means)} heads {more} cost more than {FREE} nats, {less} less, {undecided} are undecided; "
        f"from {figure(means.min())} to {figure(means.max())}"
    )
    return verdict, measured


def written_length_tells(evidence: Evidence) -> tuple[str, str]:
    """Whether a head that writes more into the stream is missed more than others of its layer.

    Rank correlation within each layer, in the mean, against heads shuffled within their layers.
    """
    written = torch.stack([(s.weights * s.output_norms[:, :, None]).sum(-1).mean(-1) for s in evidence.seen]).mean(0)
    found, by_chance = rank_correlation(written, evidence.costs.mean(0))  # of (L, H) each
    measured = f"rank correlation {figure(found)} within layers, 95 % of shuffles below {figure(by_chance)}"
    if math.isnan(found) or written.numel() < 6:
        return INCONCLUSIVE, measured
    return (SUPPORTED if found > by_chance else NOT_SUPPORTED if found < -by_chance else INCONCLUSIVE), measured


def rank_correlation(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return Spearman's correlation of rows (L, H), their mean, and the value that 95 % of shuffled rows stay below.

    Rows in which all are alike have none; nan where no row has one.
    """
    rows = [(a, b) for a, b in zip(x.double(), y.double(), strict=True) if a.max() > a.min() and b.max() > b.min()]
    if not rows:
        return math.nan, math.nan
    ranked = [(_ranks(a), _ranks(b)) for a, b in rows]
    generator = torch.Generator().manual_seed(mix_seed("claim", "shuffles"))
    chance = [
        sum((a @ b[torch.randperm(len(b), generator=generator)]).item() for a, b in ranked) / len(ranked)
        for _ in range(SHUFFLES)
    ]
    return sum((a @ b).item() for a, b in ranked) / len(ranked), float(np.quantile(chance, 0.95))


def _ranks(values: Tensor) -> Tensor:
    """Return the ranks of values (H), ties sharing theirs, centred and of length 1."""
    below, same = (values[:, None] > values).sum(1), (values[:, None] == values).sum(1)
    return F.normalize(below + (same - 1) / 2 - (len(values) - 1) / 2, dim=0)


def kinds_of_characters(evidence: Evidence) -> tuple[str, str]:
    """Cosines between embeddings of vowels, consonants and capitals of ASCII, against shuffled letters.

    Capitals are also rarer, and what is rare may lie together for that.
    """
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
    measured = f"cosines within a kind are {figure(found)} higher, 99 % of shuffles below {figure(limit)}"
    return (SUPPORTED if found > limit else NOT_SUPPORTED if found < 0 else INCONCLUSIVE), measured


def _kind(sign: str) -> int:
    if len(sign) != 1 or not (sign.isascii() and sign.isalpha()):
        return -1
    return 2 if sign.isupper() else int(sign in "aeiou")


def stream_comes_to_know(evidence: Evidence) -> tuple[str, str]:
    """Read the stream after each block as if it were the last: the loss it would have falls along them."""
    losses = torch.stack([_lens_losses(evidence.model, seen) for seen in evidence.seen])  # (N, L + 1)
    measured = f"loss by layer: {figures(losses.mean(0).tolist())}"
    return judge(torch.minimum(in_order(-losses) - 0.5, losses[:, 0] - losses[:, -1] - VISIBLE)), measured


def _lens_losses(model: GPT, seen: Activations) -> Tensor:
    logits = logit_lens(model, seen.residual)[:, :-1]  # (L + 1, T - 1, V)
    return torch.stack([F.cross_entropy(layer, seen.ids[1:]) for layer in logits])


def layers_bring_context(evidence: Evidence) -> tuple[str, str]:
    """What a long context is worth after each layer: the loss of the same tokens with a short one, less that."""
    length = len(evidence.windows[0])
    if length < 2 * SHORT:
        return INCONCLUSIVE, f"a window has {length} tokens, {2 * SHORT} are needed"
    worth = torch.stack([_worth_of_context(evidence.model, window) for window in evidence.windows])[:, 1:]  # (N, L)
    measured = f"beyond {SHORT} tokens, by layer: {figures(worth.mean(0).tolist())} nats"
    if worth.size(1) < 2:
        return INCONCLUSIVE, measured
    return judge(torch.minimum(in_order(worth) - 0.5, worth[:, -1] - worth[:, 0] - VISIBLE)), measured


@torch.no_grad()
def _worth_of_context(model: GPT, window: Ids) -> Tensor:
    """Return, for the last half of a window, loss with SHORT tokens less loss with all before, by layer, (L + 1)."""
    ids = torch.from_numpy(window.astype(np.int64)).to(model.token_embedding.weight.device)
    half = len(ids) // 2
    short = ids.unfold(0, SHORT, 1)[half - SHORT : -1]  # (targets, SHORT), the last of each predicts
    found = []
    for rows in (short, ids[None, :-1]):
        with capture_residual(model) as stream:
            model(rows)
        points = torch.stack(stream)  # (L + 1, B, T, C)
        last = points[:, :, -1] if len(rows) > 1 else points[:, 0, half - 1 :]  # (L + 1, targets, C)
        logits = logit_lens(model, last)
        found.append(torch.stack([F.cross_entropy(layer, ids[half:].cpu()) for layer in logits]))
    return found[0] - found[1]


QUESTIONS = (
    Question(1, "Attention picks out some positions and ignores the others.", ("000", "001", "004"), attention_selects),
    Question(16, "What stands at a place becomes the contextual version of its token.", ("000", "003"), places_differ),
    Question(17, "It is enough to take the key with the largest weight.", ("004",), hard_attention_suffices),
    Question(23, "Embeddings come to know features: characters of a kind lie together.", ("002",), kinds_of_characters),
    Question(33, "Different heads look at different things.", ("000", "001", "003"), heads_differ),
    Question(34, "There is a head that mostly looks at the previous token.", ("000",), looks_at("previous", 0.5)),
    Question(36, "A head finds what is related further back: what followed the same character earlier.", ("000",),
             looks_at("induction", 0.0)),
    Question(38, "Deeper layers attend further.", ("000",), deeper_is_further),
    Question(44, "The linear map after the heads turns good heads up, bad ones down.", ("002",), written_length_tells),
    Question(47, "Ensembling always helps: no head can be spared.", ("004",), every_head_helps),
    Question(87, "Embeddings are learned by back-propagation.", ("000", "002"), embeddings_learn),
    Question(104, "x holds what is known of its token, layer by layer more.", ("004",), stream_comes_to_know),
    Question(105, "More layers bring more context.", ("000",), layers_bring_context),
)  # fmt: skip


def ask(loaded: Checkpoint, tokens: Ids, progress: Callable[[int], object] | None = None) -> list[Result]:
    """Return what a trained model says to each question, measured on the beginning of `tokens`.

    `progress` is called with 1 after each question, as a tqdm bar's `update` is. Raises UserError where the tokens are
    fewer than a window, or a window is too short to ask anything.
    """
    length = min(loaded.config.model.context, LONGEST)
    if length < 4:
        raise UserError(f"with a context of {length} there is nothing to ask: 4 is the least")
    if len(tokens) < length:
        raise UserError(f"the validation split has {len(tokens)} tokens, the questions need {length}")
    count = min(WINDOWS, len(tokens) // length)
    windows = [np.asarray(tokens[at * length : (at + 1) * length]) for at in range(count)]
    evidence, results = Evidence(loaded, windows), []
    for question in QUESTIONS:
        verdict, measured = question.ask(evidence)
        notes, where = ", ".join(question.notes), where_is(question.ask)
        results.append(Result(question.id, question.says, notes, measured, verdict, None, where))
        if progress:
            progress(1)
    return results
