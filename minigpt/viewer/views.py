"""What each view of the page shows, as plain numbers ready for JSON; the page itself only draws.

Letters in shapes: T time (queries), S keys, L layers, H heads, D head size, C width, V vocabulary, N characters shown.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.errors import UserError
from minigpt.interpret.extract import Extraction, extract, head_outputs, logit_lens, without_heads
from minigpt.interpret.passage import Excerpt, characters, glyph
from minigpt.interpret.scores import MEASURES, PATTERNS, Score, divergence, head_scores, in_word, kinds
from minigpt.model.gpt import GPT, Block, rope_cos_sin
from minigpt.model.kernels import rope_by_torch
from minigpt.storage.checkpoint import Checkpoint
from minigpt.storage.runs import CHECKPOINTS
from minigpt.text.tokenizer import Ids
from minigpt.training.evaluate import evaluate
from minigpt.viewer.packing import pack_attention, pack_exact, pack_scaled, pack_whole

STAGED = 64
"""Characters whose scores before the softmax are in the page, and that the worked example and the lines take."""
TOP = 5
"""Next characters named for each position and layer."""
SMALL = 32
"""Pixels along a thumbnail of the film."""
COARSE = 15
"""Steps from the least to the greatest number, in tables of which there are many: 31 would cost a tenth of a page."""
MOST_STEPS = 20
MOST_CELLS = 1 << 18
"""Cells of all tables of characters by characters together, at most."""
SPOKEN = {" ": "space", "\n": "newline", "\t": "tab", "\r": "carriage return"}
Data = dict[str, Any]


# --- the text ------------------------------------------------------------------------------------------


class Signs:
    """The characters that the page shows, numbered as they are asked for: what is drawn and what is read aloud."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, character: str) -> int:
        """Return the number of a character."""
        return self.numbers.setdefault(character, len(self.numbers))

    def rows(self) -> list[list[Any]]:
        """Return for each number its sign, its name, and whether the sign stands for something unseen."""
        return [[glyph(c), spoken(c), int(glyph(c) != c)] for c in self.numbers]


def spoken(character: str) -> str:
    """Return how a character is called where it is read aloud or stands in a sentence."""
    if character in SPOKEN:
        return SPOKEN[character]
    if len(character) > 1:
        return f"byte {character.removeprefix(chr(92) + 'x')}"
    if glyph(character) != character:
        return unicodedata.name(character, f"U+{ord(character):04X}").lower()
    if unicodedata.bidirectional(character) in ("R", "AL"):  # isolated, or it would turn the numbers after it
        return f"\u2068{character}\u2069"
    return character


def text_view(passage: Excerpt, signs: Signs) -> Data:
    """Return the text as numbers of signs, and where its words and lines begin."""
    words, lines = [0], [0]
    for place in range(1, len(passage.characters)):
        before, character = passage.characters[place - 1 : place + 1]
        if not (in_word(before) and in_word(character)):
            words.append(place)
        if before == "\n":
            lines.append(place)
    return {"signs": [signs.number(c) for c in passage.characters], "words": words, "lines": lines}


# --- attention -----------------------------------------------------------------------------------------


def attention_view(seen: Extraction) -> Data:
    """Return all weights, the strongest key of each query, and how much each head would write for each key."""
    return {
        "weights": pack_attention(seen.weights),
        "strongest": pack_whole(seen.weights.argmax(-1)),
        "written": pack_scaled(seen.written.flatten(0, 1), 1023),
        "row_error": f"{(seen.weights.double().sum(-1) - 1).abs().max().item():.1g}",
        "disagreement": f"{seen.disagreement:.1g}",
    }


def stages_view(seen: Extraction) -> Data:
    """Return the scores q k^T before scaling and mask of the first characters, (L, H, n, n)."""
    n = min(STAGED, seen.weights.size(-1))
    raw = seen.q[:, :, :n] @ seen.k[:, :, :n].transpose(-2, -1)
    steps = 65535 if len(seen.ids) <= STAGED else COARSE
    return {"n": n, "raw": pack_scaled(raw.flatten(0, 1), steps), "coarse": steps < 256}


def scores_view(seen: Extraction, passage: Excerpt) -> Data:
    """Return all scores of all heads with their baselines, the kind of each head, and how heads differ."""
    scores = head_scores(seen.weights, passage.characters)
    return {
        "about": PATTERNS | MEASURES,
        "patterns": list(PATTERNS),
        "values": {name: numbers(score.values) for name, score in scores.items()},
        "uniform": {name: number(score.uniform) for name, score in scores.items()},
        "kinds": kinds(scores),
        "divergence": pack_scaled(divergence(seen.weights)[None], 255) if len(seen.ids) > 1 else None,
        "start": start(seen, scores),
    }


def start(seen: Extraction, scores: dict[str, Score]) -> list[int]:
    """Return the layer, head and query that the page opens with: a head with a pattern, where it looks at one key."""
    T, H = len(seen.ids), seen.weights.size(1)
    told = [scores[name] for name in ("previous", "same", "induction", "word", "line")]
    told = [score for score in told if not math.isnan(score.uniform)]
    above = torch.stack([(score.values - score.uniform).nan_to_num(-1) for score in told]).amax(0) if told else None
    layer, head = divmod(int(above.argmax()), H) if above is not None else (0, 0)
    late = torch.arange(T) >= T // 2
    return [layer, head, int((seen.weights[layer, head].amax(-1) * late).argmax())]


def number(value: float) -> float | None:
    """Return a number short enough for the page, or None where there is none."""
    return None if math.isnan(value) else float(f"{value:.4g}")


def numbers(values: Tensor) -> list[list[float | None]]:
    """Return a table (L, H) of numbers short enough for the page."""
    return [[number(value) for value in row] for row in values.tolist()]


def predictions_view(loaded: Checkpoint, seen: Extraction, signs: Signs) -> Data:
    """Return what would come next by the stream before the first layer and after each: the top, and what did come.

    The last row is the model's own prediction.
    """
    lens = logit_lens(loaded.model, seen.stream).double().log_softmax(-1)  # (L + 1, T, V)
    top = lens.topk(min(TOP, lens.size(-1)), dim=-1)
    named = characters(loaded.tokenizer, top.indices.flatten().numpy())
    came = lens[:, :-1].gather(-1, seen.ids[None, 1:, None].expand(len(lens), -1, -1))[..., 0]  # (L + 1, T - 1)
    surprise = F.cross_entropy(seen.logits[:-1].double(), seen.ids[1:], reduction="none") / math.log(2)
    return {
        "signs": pack_whole(torch.tensor([signs.number(c) for c in named]).view(top.indices.shape)),
        "permille": pack_whole((top.values.exp() * 1000).round().long()),
        "actual": pack_whole((came.exp() * 1000).round().long()),
        "surprise": [number(bits) for bits in surprise.tolist()],
    }


# --- what characters do to each other ------------------------------------------------------------------


def characters_view(
    loaded: Checkpoint, seen: Extraction, passage: Excerpt, layers: Sequence[int], signs: Signs
) -> Data:
    """Return the cosines of embeddings, and of each head who looks for whom (QK) and what that raises (OV)."""
    model, V = loaded.model, loaded.tokenizer.vocab_size
    chosen = _most_frequent(seen, V, len(layers) * model.config.n_head)
    ids = torch.tensor(chosen)
    with torch.no_grad():
        embeddings = model.token_embedding.weight[ids.to(model.token_embedding.weight.device)].float()  # (N, C)
        cosine = F.normalize(embeddings, dim=-1) @ F.normalize(embeddings, dim=-1).T
        tables = [_circuits(model, layer, embeddings) for layer in layers]
        last = seen.stream[-1] - (seen.stream[-1].mean(-1, keepdim=True) if model.config.norm == "layernorm" else 0)
        size = last.square().mean(-1).sqrt().mean()  # what the last norm divides by, in the mean over the text
        qk, ov = (torch.cat(parts).cpu() for parts in zip(*tables, strict=True))  # (L H, N, N)
    others = cosine.clone().fill_diagonal_(-math.inf)[None]
    count = min(TOP, len(chosen) - 1)
    return {
        "signs": [signs.number(c) for c in characters(loaded.tokenizer, ids.numpy())],
        "of": V,
        "cosine": pack_scaled(cosine[None].cpu(), 255),
        "qk": pack_scaled(qk, COARSE),
        "ov": pack_scaled(ov / size.clamp_min(1e-6), COARSE),
        "greatest": {
            name: pack_whole(values.topk(count).indices)  # (1 or L H, N, count)
            for name, values in (("cosine", others.cpu()), ("qk", qk), ("ov", ov))
        },
    }


def _most_frequent(seen: Extraction, V: int, heads: int) -> list[int]:
    """Return the ids whose tables fit into a page: all, or the most frequent of the text, in the order of their ids."""
    fit = min(256 if V <= 256 else 128, int(math.sqrt(MOST_CELLS / heads)))
    if fit >= V:
        return list(range(V))
    counts = Counter(seen.ids.tolist())
    return sorted(sorted(range(V), key=lambda i: (-counts[i], i))[:fit])


def _circuits(model: GPT, layer: int, embeddings: Tensor) -> tuple[Tensor, Tensor]:
    """Return QK and OV of one layer, (H, N, N) each, as if the stream held nothing but a character's embedding.

    QK is the score that the query of the row's character gives to the key of the column's, with positions as they are
    left out, or with rotary ones the key one place before. OV is what attending fully to the row's character adds to
    the logit of the column's, the mean over columns taken off, before the division by the last norm.
    """
    block, config = cast(Block, model.blocks[layer]), model.config
    D = config.head_size
    stream = embeddings * (math.sqrt(config.n_embd) if config.position == "sinusoidal" else 1)
    ((q,), (k,), (v,)) = block.attention.queries_keys_values(block.norm1(stream)[None])  # (H, N, D) each
    if config.position == "rotary":
        q = rope_by_torch(q, rope_cos_sin(2, D)[:, 1].to(q.device))
    written = v.cpu() @ head_outputs(model, layer)  # (H, N, C)
    if config.norm == "layernorm":
        written = written - written.mean(-1, keepdim=True)
    gains: Tensor = model.norm.weight.cpu()
    raised = (written * gains) @ embeddings.cpu().T  # (H, N, N)
    return q @ k.transpose(-2, -1) / math.sqrt(D), raised - raised.mean(-1, keepdim=True)


def positions_view(model: GPT, T: int) -> Data:
    """Return the table of positions, where there is one, (T, C), and what the page needs to say of the others."""
    config = model.config
    table = model.position_embedding.weight[:T] if config.position == "learned" else model.positions
    found: Data = {"kind": config.position, "head_size": config.head_size, "width": config.n_embd}
    if table is not None:
        found["table"] = pack_scaled(table[:T].detach().float().cpu()[None], 63)
    return found


# --- what is only computed when asked for --------------------------------------------------------------


def detail_view(model: GPT, seen: Extraction, layers: Sequence[int]) -> Data:
    """Return queries, keys, values and W_O of all heads, for the worked example."""
    outputs = torch.stack([head_outputs(model, layer) for layer in layers])  # (L, H, D, C)
    return {
        "q": pack_exact(seen.q), "k": pack_exact(seen.k), "v": pack_exact(seen.v),
        "outputs": pack_scaled(outputs.flatten(0, 1), 65535),
    }  # fmt: skip


def ablation_view(
    loaded: Checkpoint, tokens: Ids, layers: Sequence[int], progress: Callable[[int, int], object] | None
) -> Data:
    """Return the loss over `tokens`, and how much it rises when one head writes nothing, (L, H)."""
    model, heads = loaded.model, loaded.model.config.n_head

    def loss(silent: Sequence[tuple[int, int]]) -> float:
        with without_heads(model, silent):
            return evaluate(model, tokens, loaded.tokenizer).loss

    base = loss([])
    rises: list[list[float]] = []
    for layer in layers:
        rises.append([])
        for head in range(heads):
            rises[-1].append(round(loss([(layer, head)]) - base, 5))
            if progress:
                progress(sum(map(len, rises)), len(layers) * heads)
    return {"loss": round(base, 4), "tokens": len(tokens), "rises": rises}


def film_view(
    steps: Iterable[Checkpoint], passage: Excerpt, layers: Sequence[int], shape: tuple[int, int]
) -> Data | None:
    """Return small pictures and scores of all heads at each checkpoint, or None. UserError for another model's."""
    frames: list[Data] = []
    for loaded in steps:
        if len(frames) == MOST_STEPS:
            raise UserError(f"--steps: a film has {MOST_STEPS} checkpoints at most; name fewer")
        if (loaded.config.model.n_layer, loaded.config.model.n_head) != shape:
            raise UserError(f"--steps: {run_name(loaded)} at step {loaded.meta.step} is a model of another shape")
        seen = chosen_layers(extract(loaded.model, passage.ids), layers)
        scores = head_scores(seen.weights, passage.characters)
        loss = loaded.meta.validation_loss
        frames.append({
            "step": loaded.meta.step,
            "loss": None if loss is None else round(loss, 4),
            "small": pack_attention(shrunk(seen.weights, SMALL)),
            "kinds": kinds(scores),
            "values": {name: numbers(score.values) for name, score in scores.items()},
        })  # fmt: skip
    return {"n": min(SMALL, len(passage.ids)), "frames": frames} if frames else None


def compare_view(loaded: Checkpoint, other: Checkpoint, passage: Excerpt, layers: Sequence[int] | None) -> Data:
    """Return the attention of another run over the same text. Raises UserError where it cannot read that text."""
    same = loaded.tokenizer.to_json() == other.tokenizer.to_json()
    try:
        ids = passage.ids if same else other.tokenizer.encode(loaded.tokenizer.decode(passage.ids))
    except UserError as error:
        raise UserError(f"--compare: {run_name(other)} cannot read this text: {error}") from error
    if characters(other.tokenizer, ids) != passage.characters:
        raise UserError(f"--compare: {run_name(other)} cuts the text into other tokens, so places do not correspond")
    if len(ids) > other.config.model.context:
        context = other.config.model.context
        raise UserError(f"--compare: {run_name(other)} reads {context} characters at most; give --max-chars {context}")
    shown = [layer for layer in layers or range(other.config.model.n_layer) if layer < other.config.model.n_layer]
    if not shown:
        raise UserError(f"--compare: {run_name(other)} has {other.config.model.n_layer} layers, none of --layers")
    seen = chosen_layers(extract(other.model, ids), shown)
    scores = head_scores(seen.weights, passage.characters)
    return {
        "name": run_name(other), "step": other.meta.step, "layers": shown, "heads": seen.weights.size(1),
        "loss": other.meta.validation_loss and round(other.meta.validation_loss, 4),
        "weights": pack_attention(seen.weights), "kinds": kinds(scores),
    }  # fmt: skip


# --- shared --------------------------------------------------------------------------------------------


def run_name(loaded: Checkpoint) -> str:
    """Return the name of the run that a checkpoint belongs to, without the folders above."""
    folder = loaded.path.parent.parent if loaded.path.parent.name == CHECKPOINTS else loaded.path
    return folder.name or folder.resolve().name


def chosen_layers(seen: Extraction, layers: Sequence[int]) -> Extraction:
    """Return an extraction with these layers only; the stream keeps all of its points."""
    at = list(layers)
    parts = {name: getattr(seen, name)[at] for name in ("q", "k", "v", "weights", "written")}
    return replace(seen, **parts)


def shrunk(weights: Tensor, side: int) -> Tensor:
    """Return weights (L, H, T, T) as pictures of at most `side` pixels: each the greatest weight under it."""
    side = min(side, weights.size(-1))
    return F.adaptive_max_pool2d(weights, side)
