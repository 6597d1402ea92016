"""Multiple heads: attention in parallel, each head in its own subspace.

The heads divide the model width among them. Each head compares d_k components of every query and key. One head can
attend to the previous token while another attends to the last line break. The outputs of the heads are concatenated and
multiplied by one more matrix:

    concat(head_1, ..., head_H) W_O        (Vaswani et al. 2017, section 3.2.2)

The last two claims compare minigpt with other implementations: BERT's layer, and one head from a lecture.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.course.claims.claim import Claim, Finding, fmt, fmt_named, max_abs
from minigpt.course.claims.experiment import Experiment
from minigpt.course.claims.small_models import EXACT, normal, randomize, record_inputs, small_attention, small_config
from minigpt.model.gpt import attention_weights
from minigpt.model.size import count_parameters


def heads_in_parallel() -> Finding:
    """Compute four heads one after the other. The model's layer gives the same result in one step."""
    layer, x = small_attention(41, n_head=4), normal(10, 32, claim=41)
    w_q, w_k, w_v = layer.qkv.weight.chunk(3)  # (C, C) each
    outputs = []
    for head in range(4):
        rows = slice(8 * head, 8 * head + 8)
        outputs.append(attention_weights(x @ w_q[rows].T, x @ w_k[rows].T) @ (x @ w_v[rows].T))  # (T, D)
    error = max_abs(layer.proj(torch.cat(outputs, dim=-1)) - layer(x[None])[0])
    return Finding(error < EXACT, f"a loop over 4 heads differs from the model's layer by {fmt(error)}")


def distributions_in_parallel() -> Finding:
    """Compare the weights of the heads. Each head has its own distribution over the past.

    The outputs of the heads are concatenated; their weights are not.
    """
    layer, x = small_attention(102, n_head=4), normal(1, 10, 32, claim=102)
    q, k, v = layer.queries_keys_values(x)
    weights = attention_weights(q, k)[0]  # (H, T, T)
    concatenated = torch.cat([weights[head] @ v[0, head] for head in range(4)], dim=-1)  # (T, C)
    error = max_abs(concatenated - record_inputs(layer.proj, lambda: layer(x))[0][0])
    apart = min(max_abs(weights[a] - weights[b]) for a in range(4) for b in range(a))
    measured = (
        f"4 weight matrices of 10×10; any two differ by at least {fmt(apart)}; "
        f"the input of W_O matches the concatenated outputs to within {fmt(error)}"
    )
    return Finding(error < EXACT and apart > 0.01, measured)


def heads_side_by_side() -> Finding:
    """Count the dimensions. The number of heads times the head size is the model width, so W_O is square.

    The output of the layer then has the shape of its input and can be added to it.
    """
    layer, x = small_attention(42, n_embd=6, n_head=3), normal(1, 5, 6, claim=42)
    _, heads, _, head_size = layer.queries_keys_values(x)[2].shape
    width = record_inputs(layer.proj, lambda: layer(x))[0].size(-1)
    w_o = tuple(layer.proj.weight.shape)
    measured = f"{heads} heads of size {head_size} give a width of {width}; W_O is {w_o[0]}×{w_o[1]}"
    return Finding((heads, head_size, width, w_o) == (3, 2, 6, (6, 6)), measured)


def heads_add_up() -> Finding:
    """Split W_O into one block of rows per head. Multiply each head's output by its block, and add up.

    The sum is the layer's output. So "concatenate, then multiply by W_O" and "add the outputs" mean the same.
    """
    layer, x = small_attention(43, n_head=4), normal(1, 10, 32, claim=43)
    q, k, v = layer.queries_keys_values(x)
    heads = (attention_weights(q, k) @ v)[0]  # (H, T, D)
    w_o = layer.proj.weight.T.unflatten(0, (4, 8))  # (H, D, C)
    outputs = heads @ w_o  # (H, T, C)
    error = max_abs(outputs.sum(0) - layer(x)[0])
    norms = fmt(outputs.norm(dim=(1, 2)))
    measured = f"the sum over heads differs from the layer by {fmt(error)}; norms: {norms}"
    return Finding(error < EXACT, measured)


def heads_at_the_same_cost() -> Finding:
    """Count parameters for 1, 2, 4 and 8 heads. With more heads, each head is smaller, so the count does not change.

    A head scores a pair of tokens as x W_Q W_K^T x', and W_Q W_K^T has rank d_k.
    """
    parameters, ranks = [], []
    for heads in (1, 2, 4, 8):
        parameters.append(count_parameters(small_config(n_head=heads), vocab_size=65))
        w_q, w_k, _ = small_attention(46, n_head=heads).qkv.weight.unflatten(0, (3, heads, -1))  # (H, D, C) each
        ranks.append(torch.linalg.matrix_rank(w_q.mT @ w_k).tolist())
    together = torch.linalg.matrix_rank(w_q.flatten(0, 1)).item()
    counts = " or ".join(f"{count:,}" for count in sorted(set(parameters)))
    per_head = ", ".join(str(rank[0]) for rank in ranks)
    measured = f"{counts} parameters with 1, 2, 4, 8 heads of rank {per_head}; 8 heads together have rank {together}"
    correct = ranks == [[32 // heads] * heads for heads in (1, 2, 4, 8)] and together == 32
    return Finding(len(set(parameters)) == 1 and correct, measured)


def random_starts_tell_heads_apart() -> Finding:
    """Start two heads with equal weights. They get equal gradients, so training cannot make them differ.

    A random W_O is enough to make the gradients differ.
    """
    x, target = normal(2, 1, 10, 32, claim=45)
    gaps = {}
    for equal in ("none", "W_Q, W_K, W_V", "all"):
        layer = small_attention(45, n_head=2)
        qkv, w_o = layer.qkv.weight.unflatten(0, (3, 2, 16)), layer.proj.weight.unflatten(1, (2, 16))
        with torch.no_grad():
            if equal != "none":
                qkv[:, 1] = qkv[:, 0]
            if equal == "all":
                w_o[:, 1] = w_o[:, 0]
        F.mse_loss(layer(x), target).backward()
        assert layer.qkv.weight.grad is not None
        first, second = layer.qkv.weight.grad.unflatten(0, (3, 2, 16)).unbind(1)
        gaps[equal] = max_abs(first - second) / max_abs(first)
    measured = f"relative difference between the heads' gradients when these weights are equal: {fmt_named(gaps)}"
    different = gaps["none"] > 0.1 and gaps["W_Q, W_K, W_V"] > 0.1
    return Finding(gaps["all"] < EXACT and different, measured)


class BertStyle(nn.Module):
    """Self-attention as in BERT (Devlin et al. 2019): three linear layers and an additive mask."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def split(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (self.heads, -1))  # (B, T, H, D)
        return heads.transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)) + mask  # (B, H, T, T)
        out: Tensor = (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)  # (B, T, C), before W_O
        return out


def bert_reference() -> Finding:
    """Copy minigpt's weights into a BERT layer. With a causal mask, the two layers give the same output.

    BERT itself has no causal mask. A GPT adds -inf to the scores of future tokens.
    """
    layer, bert = small_attention(96, bias=True), randomize(lambda: BertStyle(32, heads=4), claim=96)
    for linear, weight, bias in zip(bert.children(), layer.qkv.weight.chunk(3), layer.qkv.bias.chunk(3), strict=True):
        linear.weight, linear.bias = nn.Parameter(weight), nn.Parameter(bias)
    x = normal(2, 10, 32, claim=96)
    mask = torch.full((10, 10), -math.inf, dtype=torch.float64).triu(1)
    error = max_abs(layer.proj(bert(x, mask)) - layer(x))
    unmasked = max_abs(layer.proj(bert(x, torch.zeros_like(mask))) - layer(x))
    measured = f"BERT's layer differs from minigpt's by {fmt(error)} with the mask, by {fmt(unmasked)} without it"
    return Finding(error < EXACT and unmasked > 0.01, measured)


class OneHead(nn.Module):
    """One head as in note 004: three linear layers without bias, a tril mask, a softmax, and no scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))

    def weights(self, x: Tensor, scale: float) -> Tensor:
        T = x.size(1)
        scores: Tensor = self.query(x) @ self.key(x).transpose(-2, -1) * scale  # (B, T, T)
        return scores.masked_fill(torch.ones(T, T).tril() == 0, -math.inf).softmax(dim=-1)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        out: Tensor = self.weights(x, scale) @ self.value(x)  # (B, T, C)
        return out


def one_head_reference() -> Finding:
    """Run the lecture's head with minigpt's weights. It matches minigpt's layer only once the scale is added."""
    layer, lecture = small_attention(97, n_head=1), randomize(lambda: OneHead(32), claim=97)
    w_q, w_k, w_v = layer.qkv.weight.chunk(3)
    lecture.query.weight, lecture.key.weight, lecture.value.weight = map(nn.Parameter, (w_q, w_k, w_v))
    x = normal(1, 10, 32, claim=97)
    unscaled, scaled = (max_abs(layer.proj(lecture(x, scale)) - layer(x)) for scale in (1.0, 1 / math.sqrt(32)))
    rows, columns = (max_abs(lecture.weights(x, 1.0).sum(dim) - 1) for dim in (-1, -2))
    measured = (
        f"the code differs from the model by {fmt(unscaled)}, or with 1/√d_k by {fmt(scaled)}; "
        f"row sums differ from 1 by at most {fmt(rows)}, column sums by up to {fmt(columns)}"
    )
    return Finding(unscaled > 0.01 and scaled < EXACT and rows < EXACT and columns > 0.1, measured)


NUMBER_OF_HEADS = Experiment(
    "heads",
    "attention#do-more-heads-help",
    "A model 128 wide trains for a minute, at equal size and time. With one head, its loss is {1 head}. With two and "
    "four heads, it is {2 heads} and {baseline}. With eight, it is {8 heads}.",
    lambda one, two, four, eight: max(two, four) < one and max(two, four) < eight,
)

CLAIMS = (
    Claim(
        41,
        "Multiple heads are multiple sets of matrices that work in parallel",
        ("001", "003", "004"),
        heads_in_parallel,
    ),
    Claim(
        102,
        "Each head has its own attention distribution; the outputs of the heads are concatenated",
        ("003",),
        distributions_in_parallel,
        notes_say="Attention distributions are computed in parallel, and the results are concatenated.",
    ),
    Claim(
        42,
        "The concatenated heads are as wide as the model, and W_O is square: 3 heads of size 2 give 6",
        ("001", "002", "003"),
        heads_side_by_side,
    ),
    Claim(
        43,
        "Concatenating the heads and multiplying by W_O adds up their outputs",
        ("000",),
        heads_add_up,
        notes_say="The outputs of the heads are added.",
    ),
    Claim(
        46,
        "Multiple heads attend in different subspaces with as many parameters as one",
        ("003",),
        heads_at_the_same_cost,
        notes_say="Multiple heads attend in different subspaces at the cost of one.",
    ),
    Claim(
        108,
        "In a model 128 wide, two or four heads give a lower loss than one or eight",
        ("001",),
        notes_say="More heads give a better score.",
        mistake="Heads share the width of the model. "
        "The loss of eight heads of 16 channels is higher than that of two of 64.",
        trained=(NUMBER_OF_HEADS,),
    ),
    Claim(
        45,
        "Without dropout, heads with equal initial weights stay equal",
        ("001",),
        random_starts_tell_heads_apart,
        notes_say="Heads differ because their initial weights are random.",
    ),
    Claim(
        96,
        "BERT's self-attention is the same function as minigpt's once it gets a causal mask",
        ("003",),
        bert_reference,
        notes_say="The code of BERT's layer implements self-attention.",
    ),
    Claim(
        97,
        "The lecture's code is one attention head without the scale, with a softmax along each row",
        ("004",),
        one_head_reference,
        notes_say="The lecture's code is one attention head, with a softmax along the columns.",
        mistake="The code lacks the factor 1/√d_k. Its softmax runs along each row: over the keys of one query.",
    ),
)
