"""Several heads: the same attention, some times over, each in a space of its own.

The width of the model is split among the heads. Each looks with its own d_k numbers of every query and key, so
one can follow the character before while another looks for the last line break. Their outputs are laid side by
side and mixed by one more matrix:

    concat(head_1, ..., head_H) W_O        (Vaswani et al. 2017, section 3.2.2)

The last two claims are the layer as others write it: BERT's, and a single head of a well-known lecture.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.claims.claim import Claim, Finding, figure, figures, largest
from minigpt.claims.material import EXACT, attention, awake, normal, plain, reaching
from minigpt.model.gpt import attention_weights, count_parameters


def heads_in_parallel() -> Finding:
    """Four heads are four small layers. That the model computes them in one go is a matter of speed."""
    layer, x = attention(41, n_head=4), normal(10, 32, claim=41)
    w_q, w_k, w_v = layer.qkv.weight.chunk(3)  # (C, C) each
    outputs = []
    for head in range(4):
        own = slice(8 * head, 8 * head + 8)
        outputs.append(attention_weights(x @ w_q[own].T, x @ w_k[own].T) @ (x @ w_v[own].T))  # (T, D)
    error = largest(layer.proj(torch.cat(outputs, dim=-1)) - layer(x[None])[0])
    return Finding(error < EXACT, f"a loop over 4 heads and the model's layer differ by {figure(error)}")


def distributions_in_parallel() -> Finding:
    """Each head has a distribution of its own over the past. What is laid side by side is what each brought back."""
    layer, x = attention(102, n_head=4), normal(1, 10, 32, claim=102)
    q, k, v = layer.queries_keys_values(x)
    weights = attention_weights(q, k)[0]  # (H, T, T)
    side_by_side = torch.cat([weights[head] @ v[0, head] for head in range(4)], dim=-1)  # (T, C)
    error = largest(side_by_side - reaching(layer.proj, lambda: layer(x))[0][0])
    apart = min(largest(weights[a] - weights[b]) for a in range(4) for b in range(a))
    measured = (
        f"4 tables of 10×10, any two apart by {figure(apart)} or more; W_O is given their outputs to {figure(error)}"
    )
    return Finding(error < EXACT and apart > 0.01, measured)


def heads_side_by_side() -> Finding:
    """Heads times head size is the width again, so W_O is square and the layer can be added to its own input."""
    layer, x = attention(42, n_embd=6, n_head=3), normal(1, 5, 6, claim=42)
    _, heads, _, head_size = layer.queries_keys_values(x)[2].shape
    beside = reaching(layer.proj, lambda: layer(x))[0]
    w_o = tuple(layer.proj.weight.shape)
    measured = f"{heads} heads of {head_size} are {beside.size(-1)} side by side; W_O is {w_o[0]}×{w_o[1]}"
    return Finding((heads, head_size, beside.size(-1), w_o) == (3, 2, 6, (6, 6)), measured)


def heads_add_up() -> Finding:
    """Rows 8 h to 8 h + 7 of W_O meet only head h. So W_O is one matrix for each head, and what they give is added."""
    layer, x = attention(43, n_head=4), normal(1, 10, 32, claim=43)
    q, k, v = layer.queries_keys_values(x)
    heads = (attention_weights(q, k) @ v)[0]  # (H, T, D)
    w_o = layer.proj.weight.T.unflatten(0, (4, 8))  # (H, D, C)
    each = heads @ w_o  # (H, T, C)
    error = largest(each.sum(0) - layer(x)[0])
    sizes = figures(each.norm(dim=(1, 2)).tolist())
    return Finding(error < EXACT, f"the sum over heads is the layer's output to {figure(error)}; their norms: {sizes}")


def heads_at_the_same_cost() -> Finding:
    """More heads are narrower heads. A head compares q with k by x W_Q W_K^T x', whose rank is the head's size."""
    parameters, ranks = [], []
    for heads in (1, 2, 4, 8):
        parameters.append(count_parameters(plain(n_head=heads), vocab_size=65))
        w_q, w_k, _ = attention(46, n_head=heads).qkv.weight.unflatten(0, (3, heads, -1))  # (H, D, C) each
        ranks.append(torch.linalg.matrix_rank(w_q.mT @ w_k).tolist())
    together = torch.linalg.matrix_rank(w_q.flatten(0, 1)).item()
    counts = " or ".join(f"{count:,}" for count in sorted(set(parameters)))
    each = ", ".join(str(rank[0]) for rank in ranks)
    measured = (
        f"{counts} parameters with 1, 2, 4, 8 heads; each compares along {each} directions, 8 together along {together}"
    )
    right = ranks == [[32 // heads] * heads for heads in (1, 2, 4, 8)] and together == 32
    return Finding(len(set(parameters)) == 1 and right, measured)


def random_starts_tell_heads_apart() -> Finding:
    """Heads that start alike get the same gradient, and no step can tell them apart. A random W_O alone can."""
    x, target = normal(2, 1, 10, 32, claim=45)
    apart = {}
    for alike in ("nothing", "W_Q, W_K, W_V", "all four"):
        layer = attention(45, n_head=2)
        qkv, w_o = layer.qkv.weight.unflatten(0, (3, 2, 16)), layer.proj.weight.unflatten(1, (2, 16))
        with torch.no_grad():
            if alike != "nothing":
                qkv[:, 1] = qkv[:, 0]
            if alike == "all four":
                w_o[:, 1] = w_o[:, 0]
        F.mse_loss(layer(x), target).backward()
        assert layer.qkv.weight.grad is not None
        first, second = layer.qkv.weight.grad.unflatten(0, (3, 2, 16)).unbind(1)
        apart[alike] = largest(first - second) / largest(first)
    measured = "two heads' gradients are apart, relative to one of them, by " + ", ".join(
        f"{figure(gap)} with {alike} alike" for alike, gap in apart.items()
    )
    different = apart["nothing"] > 0.1 and apart["W_Q, W_K, W_V"] > 0.1
    return Finding(apart["all four"] < EXACT and different, measured)


class BertStyle(nn.Module):
    """Self-attention as BERT has it (Devlin et al. 2019): three maps, a split by reshaping, a mask that is added."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def split(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (self.heads, -1))  # (B, T, H, D)
        return heads.transpose(1, 2)

    def forward(self, x: Tensor, added_mask: Tensor) -> Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)) + added_mask  # (B, H, T, T)
        out: Tensor = (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)  # (B, T, C), before W_O
        return out


def bert_reference() -> Finding:
    """The same weights in both must give the same numbers. BERT itself has no mask; a GPT adds -inf to the future."""
    layer, theirs = attention(96, bias=True), awake(lambda: BertStyle(32, heads=4), claim=96)
    for linear, weight, bias in zip(theirs.children(), layer.qkv.weight.chunk(3), layer.qkv.bias.chunk(3), strict=True):
        linear.weight, linear.bias = nn.Parameter(weight), nn.Parameter(bias)
    x = normal(2, 10, 32, claim=96)
    mask = torch.full((10, 10), -math.inf, dtype=torch.float64).triu(1)
    error = largest(layer.proj(theirs(x, mask)) - layer(x))
    unmasked = largest(layer.proj(theirs(x, torch.zeros_like(mask))) - layer(x))
    measured = f"BERT's layer differs from minigpt's by {figure(error)} under the mask, by {figure(unmasked)} without"
    return Finding(error < EXACT and unmasked > 0.01, measured)


class OneHead(nn.Module):
    """A single head as note 004 writes it: three maps without bias, a mask by tril, a softmax. And no scale."""

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
    """The formula beside that code has a √d_k, the code has none: with it added, the code is minigpt's layer."""
    layer, theirs = attention(97, n_head=1), awake(lambda: OneHead(32), claim=97)
    w_q, w_k, w_v = layer.qkv.weight.chunk(3)
    theirs.query.weight, theirs.key.weight, theirs.value.weight = map(nn.Parameter, (w_q, w_k, w_v))
    x = normal(1, 10, 32, claim=97)
    ours = layer(x)
    without, within = (largest(layer.proj(theirs(x, scale)) - ours) for scale in (1.0, 1 / math.sqrt(32)))
    rows, columns = (largest(theirs.weights(x, 1.0).sum(dim) - 1) for dim in (-1, -2))
    measured = (
        f"the code differs from the model by {figure(without)} as written, by {figure(within)} with 1/√d_k; "
        f"rows sum to 1 within {figure(rows)}, columns within {figure(columns)}"
    )
    return Finding(without > 0.01 and within < EXACT and rows < EXACT and columns > 0.1, measured)


CLAIMS = (
    Claim(
        41,
        "Several heads are several sets of matrices that work in parallel.",
        ("001", "003", "004"),
        heads_in_parallel,
    ),
    Claim(
        102,
        "Attention distributions are computed in parallel, and what they give is concatenated.",
        ("003",),
        distributions_in_parallel,
    ),
    Claim(
        42,
        "The heads side by side are as wide as the model, and W_O has that shape: 3 heads of 2 are 6.",
        ("001", "002", "003"),
        heads_side_by_side,
    ),
    Claim(43, "The outputs of the heads are added up.", ("000",), heads_add_up),
    Claim(46, "Several heads look at different subspaces at the cost of one.", ("003",), heads_at_the_same_cost),
    Claim(45, "Heads become different because they start at random.", ("001",), random_starts_tell_heads_apart),
    Claim(96, "Self-attention is what the code of BERT's layer does.", ("003",), bert_reference),
    Claim(
        97,
        "A head is what the lecture's code does, with a softmax along the columns.",
        ("004",),
        one_head_reference,
        correction="The code leaves out the 1/√d_k, and its softmax runs along the rows, over the keys of one query.",
    ),
)
