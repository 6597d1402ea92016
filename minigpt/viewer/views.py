"""Compute the data of each view, ready for JSON. The scripts only display it.

Letters in shapes: T queries, S keys, L layers, H heads, D head size, C width, V vocabulary, N characters shown.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.errors import UserError, ViewError
from minigpt.interpret.excerpt import Excerpt, characters, escaped_bytes, glyph
from minigpt.interpret.extract import Activations, ablate_heads, extract, logit_lens, output_weights
from minigpt.interpret.scores import (
    MEASURES,
    PATTERNS,
    Score,
    divergence,
    head_kinds,
    head_scores,
    is_in_word,
)
from minigpt.model.gpt import GPT, Block, rope_cos_sin
from minigpt.model.kernels import apply_rope
from minigpt.model.load import load_transformer
from minigpt.storage.checkpoint import Checkpoint
from minigpt.text.tokenizer import Ids, Tokenizer
from minigpt.training.evaluate import evaluate
from minigpt.viewer.packing import pack_attention, pack_exact, pack_integers, pack_scaled

MAX_STAGES = 64
"""Maximum number of tokens whose pre-softmax scores the page stores. The worked example needs every score."""
TOP = 5
"""Number of next characters to list for each position and layer."""
THUMBNAIL = 32
"""Side length of a thumbnail, in pixels."""
COARSE = 15
"""Quantization steps of per-head matrices. With 31 steps, pages would be a tenth larger."""
MAX_STEPS = 20
MAX_CELLS = 1 << 18
"""Maximum number of cells in all QK matrices together, and in all OV matrices."""
NAMES = {" ": "space", "\n": "newline", "\t": "tab", "\r": "carriage return"}
Data = dict[str, Any]


# --- the text ------------------------------------------------------------------------------------------


class Symbols:
    """The characters on the page, numbered in order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, character: str) -> int:
        """Return the number assigned to a character."""
        return self._numbers.setdefault(character, len(self._numbers))

    def rows(self) -> list[list[Any]]:
        """Return each character's glyph, its name, and whether the glyph replaces an invisible character."""
        return [[glyph(c), character_name(c), int(glyph(c) != c)] for c in self._numbers]


def character_name(character: str) -> str:
    """Return the name of a character for sentences and screen readers."""
    if character in NAMES:
        return NAMES[character]
    if len(character) > 1:
        return " ".join(f"byte {byte}" for byte in escaped_bytes(character)) or glyph(character)
    if glyph(character) != character:
        return unicodedata.name(character, f"U+{ord(character):04X}").lower()
    if unicodedata.bidirectional(character) in ("R", "AL"):  # isolate it, or it would reorder the numbers that follow
        return f"\u2068{character}\u2069"
    return character


def text_view(excerpt: Excerpt, symbols: Symbols) -> Data:
    """Return the symbol at each position, and the positions where words and lines start."""
    words, lines = [0], [0]
    for position in range(1, len(excerpt.characters)):
        before, character = excerpt.characters[position - 1 : position + 1]
        if not (is_in_word(before) and is_in_word(character)):
            words.append(position)
        if "\n" in before:
            lines.append(position)
    return {"symbols": [symbols.number(c) for c in excerpt.characters], "words": words, "lines": lines}


# --- attention -----------------------------------------------------------------------------------------


def attention_view(activations: Activations) -> Data:
    """Return all weights, the strongest key of each query, and the output norm of each key."""
    return {
        "weights": pack_attention(activations.weights),
        "strongest": pack_integers(activations.weights.argmax(-1)),
        "output_norms": pack_scaled(activations.output_norms.flatten(0, 1), 1023),
        "row_error": f"{(activations.weights.double().sum(-1) - 1).abs().max().item():.1g}",
        "max_error": f"{activations.max_error:.1g}",
    }


def stages_view(activations: Activations) -> Data:
    """Return the scores q k^T of the first n tokens, before scaling and masking, (L, H, n, n)."""
    n = min(MAX_STAGES, activations.weights.size(-1))
    raw = activations.q[:, :, :n] @ activations.k[:, :, :n].transpose(-2, -1)
    steps = 65535 if len(activations.ids) <= MAX_STAGES else COARSE
    return {"n": n, "raw": pack_scaled(raw.flatten(0, 1), steps), "coarse": steps == COARSE}


@dataclass(frozen=True)
class Start:
    """What the page shows first. None: what shows the clearest pattern."""

    layer: int | None = None
    head: int | None = None
    query: int | None = None


def scores_view(activations: Activations, excerpt: Excerpt, layers: Sequence[int], start: Start) -> Data:
    """Return the scores and kinds of all heads, their baselines, and the divergence between heads."""
    scores = head_scores(activations.weights, excerpt.characters)
    return {
        "descriptions": PATTERNS | MEASURES,
        "patterns": list(PATTERNS),
        "values": {name: _table(score.values) for name, score in scores.items()},
        "uniform": {name: _number(score.uniform) for name, score in scores.items()},
        "kinds": head_kinds(scores),
        "divergence": pack_scaled(divergence(activations.weights)[None], 255) if len(activations.ids) > 1 else None,
        "initial": _initial_selection(activations, scores, layers, start),
    }


def _initial_selection(
    activations: Activations, scores: dict[str, Score], layers: Sequence[int], start: Start
) -> list[int]:
    """Return the initial layer, head and query. By default, choose the clearest pattern and a focused late query."""
    L, H, T, _ = activations.weights.shape
    shown = [scores[name] for name in ("previous", "same", "induction", "word", "line")]
    margins = [(s.values - s.uniform).nan_to_num(-1) for s in shown if not math.isnan(s.uniform)]
    margin = torch.stack(margins).amax(0) if margins else torch.zeros(L, H)
    rows = range(L) if start.layer is None else [layers.index(start.layer)]
    columns = range(H) if start.head is None else [start.head]
    layer, head = max(((row, column) for row in rows for column in columns), key=lambda at: margin[at].item())
    is_late = torch.arange(T) >= T // 2
    focused = int((activations.weights[layer, head].amax(-1) * is_late).argmax())
    return [layer, head, focused if start.query is None else start.query]


def _number(value: float) -> float | None:
    """Round to four significant digits. NaN becomes None."""
    return None if math.isnan(value) else float(f"{value:.4g}")


def _table(values: Tensor) -> list[list[float | None]]:
    """Round the values (L, H)."""
    return [[_number(value) for value in row] for row in values.tolist()]


def predictions_view(model: GPT, tokenizer: Tokenizer, activations: Activations, symbols: Symbols) -> Data:
    """Return the most likely next characters by the logit lens, and the probability of the actual next one.

    Row 0 reads the embedding, and row l + 1 the residual stream after layer l. The last row is the model's prediction.
    """
    log_probs = logit_lens(model, activations.residual).double().log_softmax(-1)  # (L + 1, T, V)
    top = log_probs.topk(min(TOP, log_probs.size(-1)), dim=-1)
    names = characters(tokenizer, top.indices.flatten().numpy())
    following = activations.ids[None, 1:, None].expand(len(log_probs), -1, -1)
    actual = log_probs[:, :-1].gather(-1, following)[..., 0]  # (L + 1, T - 1)
    losses = F.cross_entropy(activations.logits[:-1].double(), activations.ids[1:], reduction="none")
    return {
        "symbols": pack_integers(torch.tensor([symbols.number(c) for c in names]).view(top.indices.shape)),
        "permille": pack_integers((top.values.exp() * 1000).round().long()),
        "actual": pack_integers((actual.exp() * 1000).round().long()),
        "surprisal": [_number(nats / math.log(2)) for nats in losses.tolist()],  # in bits
    }


# --- embeddings and circuits ---------------------------------------------------------------------------


def characters_view(
    model: GPT, tokenizer: Tokenizer, activations: Activations, layers: Sequence[int], symbols: Symbols
) -> Data:
    """Return the cosine similarity of embeddings, and the QK and OV circuits of each head (Elhage et al. 2021)."""
    V, config = tokenizer.vocab_size, model.config
    selected = _most_frequent(activations, V, len(layers) * config.n_head)
    ids = torch.tensor(selected)
    with torch.no_grad():
        embeddings = model.token_embedding.weight[ids.to(model.token_embedding.weight.device)].float()  # (N, C)
        cosine = F.normalize(embeddings, dim=-1) @ F.normalize(embeddings, dim=-1).T
        circuits = [_circuits(model, layer, embeddings) for layer in layers]
        qk, ov = (torch.cat(parts).cpu() for parts in zip(*circuits, strict=True))  # (L H, N, N)
        last = activations.residual[-1]
        last = last - last.mean(-1, keepdim=True) if config.norm == "layernorm" else last
        scale = last.square().mean(-1).sqrt().mean()  # the divisor of the final norm, averaged over the text
    others = cosine.clone().fill_diagonal_(-math.inf)[None]
    count = min(TOP, len(selected) - 1)
    return {
        "symbols": [symbols.number(c) for c in characters(tokenizer, ids.numpy())],
        "vocab_size": V,
        "cosine": pack_scaled(cosine[None].cpu(), 255),
        "qk": pack_scaled(qk, COARSE),
        "ov": pack_scaled(ov / scale.clamp_min(1e-6), COARSE),
        "top": {
            name: pack_integers(values.topk(count).indices)  # (1 or L H, N, count)
            for name, values in (("cosine", others.cpu()), ("qk", qk), ("ov", ov))
        },
    }


def _most_frequent(activations: Activations, V: int, heads: int) -> list[int]:
    """Return the ids to show, sorted: all, or the most frequent in the text if the matrices would be too large."""
    limit = min(256 if V <= 256 else 128, int(math.sqrt(MAX_CELLS / heads)))
    if limit >= V:
        return list(range(V))
    counts = Counter(activations.ids.tolist())
    return sorted(sorted(range(V), key=lambda i: (-counts[i], i))[:limit])


def _circuits(model: GPT, layer: int, embeddings: Tensor) -> tuple[Tensor, Tensor]:
    """Return the QK and OV circuits of one layer, (H, N, N) each, as if its input were a bare embedding.

    QK is the score with the row's character as the query and the column's as the key. It ignores positions, except
    that RoPE puts the key one position before the query. OV is the change in the column's logit if the head attends
    only to the row's character. It is relative to the row's mean, and leaves out the divisor of the final norm.
    """
    block, config = cast(Block, model.blocks[layer]), model.config
    D = config.head_size
    inputs = embeddings * (math.sqrt(config.n_embd) if config.position == "sinusoidal" else 1)
    ((q,), (k,), (v,)) = block.attention.queries_keys_values(block.norm1(inputs)[None])  # (H, N, D) each
    if config.position == "rotary":
        q = apply_rope(q, rope_cos_sin(2, D)[:, 1].to(q.device))
    outputs = v.cpu() @ output_weights(model, layer)  # (H, N, C)
    if config.norm == "layernorm":
        outputs = outputs - outputs.mean(-1, keepdim=True)
    gains: Tensor = model.norm.weight.cpu()
    logits = (outputs * gains) @ embeddings.cpu().T  # (H, N, N)
    return q @ k.transpose(-2, -1) / math.sqrt(D), logits - logits.mean(-1, keepdim=True)


def positions_view(model: GPT, T: int) -> Data:
    """Return the type of position encoding, the head size, the width, and the position vectors (T, C) if any."""
    config = model.config
    table = model.position_embedding.weight[:T] if config.position == "learned" else model.positions
    view: Data = {"kind": config.position, "head_size": config.head_size, "width": config.n_embd}
    if table is not None:
        view["table"] = pack_scaled(table[:T].detach().float().cpu()[None], 63)
    return view


# --- optional views ------------------------------------------------------------------------------------


def detail_view(model: GPT, activations: Activations, layers: Sequence[int]) -> Data:
    """Return queries, keys, values and W_O of all heads, for the worked example."""
    weights = torch.stack([output_weights(model, layer) for layer in layers])  # (L, H, D, C)
    return {
        "q": pack_exact(activations.q), "k": pack_exact(activations.k), "v": pack_exact(activations.v),
        "output_weights": pack_scaled(weights.flatten(0, 1), 65535),
    }  # fmt: skip


def ablation_view(
    model: GPT,
    tokenizer: Tokenizer,
    tokens: Ids,
    layers: Sequence[int],
    progress: Callable[[int, int], object] | None = None,
) -> Data:
    """Return the loss over `tokens`, and its increase without each head, (L, H)."""

    def loss_without(*heads: tuple[int, int]) -> float:
        with ablate_heads(model, heads):
            return evaluate(model, tokens, tokenizer).loss

    loss = loss_without()
    increases: list[list[float]] = []
    for layer in layers:
        increases.append([])
        for head in range(model.config.n_head):
            increases[-1].append(round(loss_without((layer, head)) - loss, 5))
            if progress:
                progress(sum(map(len, increases)), len(layers) * model.config.n_head)
    return {"loss": round(loss, 4), "tokens": len(tokens), "increases": increases}


def training_view(
    steps: Iterable[Checkpoint], excerpt: Excerpt, layers: Sequence[int], shape: tuple[int, int]
) -> Data | None:
    """Return thumbnails and scores of all heads at each checkpoint, or None without checkpoints.

    All checkpoints must have the same `shape`, (layers, heads).
    """
    frames: list[Data] = []
    for checkpoint in steps:
        if len(frames) == MAX_STEPS:
            raise ViewError(f"the page shows at most {MAX_STEPS} checkpoints of a run")
        if (checkpoint.config.model.n_layer, checkpoint.config.model.n_head) != shape:
            name, step = checkpoint.run_name, checkpoint.metadata.step
            raise ViewError(f"the model of {name} at step {step} has a different number of layers or heads")
        activations = select_layers(extract(load_transformer(checkpoint), excerpt.ids), layers)
        scores = head_scores(activations.weights, excerpt.characters)
        frames.append({
            "step": checkpoint.metadata.step,
            "loss": _loss(checkpoint),
            "thumbnails": pack_attention(downsample(activations.weights)),
            "kinds": head_kinds(scores),
            "values": {name: _table(score.values) for name, score in scores.items()},
        })  # fmt: skip
    return {"n": min(THUMBNAIL, len(excerpt.ids)), "frames": frames} if frames else None


def compare_view(
    checkpoint: Checkpoint, other: Checkpoint, excerpt: Excerpt, layers: Sequence[int] | None = None
) -> Data:
    """Return the attention of the model `other` on the same text."""
    name, config = other.run_name, other.config.model
    same = checkpoint.tokenizer.to_json() == other.tokenizer.to_json()
    try:
        ids = excerpt.ids if same else other.tokenizer.encode(checkpoint.tokenizer.decode(excerpt.ids))
    except UserError as error:
        raise ViewError(f"cannot compare with {name}: {error}") from error
    if characters(other.tokenizer, ids) != excerpt.characters:
        raise ViewError(f"cannot compare with {name}: it splits the text into different tokens")
    if len(ids) > config.context:
        raise ViewError(
            f"cannot compare with {name}: its context is {config.context} tokens", max_tokens=config.context
        )
    shown = [layer for layer in range(config.n_layer) if layers is None or layer in layers]
    if not shown:
        raise ViewError(f"cannot compare with {name}: none of its {config.n_layer} layers are selected")
    activations = select_layers(extract(load_transformer(other), ids), shown)
    return {
        "name": name, "step": other.metadata.step, "loss": _loss(other),
        "layers": shown, "heads": config.n_head,
        "weights": pack_attention(activations.weights),
        "kinds": head_kinds(head_scores(activations.weights, excerpt.characters)),
    }  # fmt: skip


# --- shared --------------------------------------------------------------------------------------------


def _loss(checkpoint: Checkpoint) -> float | None:
    loss = checkpoint.metadata.state.validation_loss
    return None if loss is None else round(loss, 4)


def select_layers(activations: Activations, layers: Sequence[int]) -> Activations:
    """Return the activations of these layers only. The residual stream keeps all layers."""
    parts = {name: getattr(activations, name)[list(layers)] for name in ("q", "k", "v", "weights", "output_norms")}
    return replace(activations, **parts)


def downsample(weights: Tensor) -> Tensor:
    """Reduce weights (L, H, T, T) to thumbnails. Each pixel is the largest weight that it covers."""
    return F.adaptive_max_pool2d(weights, min(THUMBNAIL, weights.size(-1)))
