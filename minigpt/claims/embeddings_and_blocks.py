"""Around attention: characters become vectors, and blocks of attention and MLP refine them.

A text is cut into characters, each character has a number, and each number a row in a table of vectors, its
embedding. N blocks of the same shape follow. Each adds to the vectors what its attention gathered from other
places and then what its MLP made of that, and normalises what either is given, so that the numbers stay in range.
"""

import torch
import torch.nn.functional as F
from torch import nn

from minigpt.claims.claim import Claim, Finding, figure, largest
from minigpt.claims.material import EXACT, awake, gpt, normal, plain, reaching
from minigpt.config.presets import presets, shipped_layer
from minigpt.config.resolve import contradictions, resolve
from minigpt.config.schema import RunConfig, SampleConfig
from minigpt.model.gpt import Block, count_parameters, make_norm
from minigpt.sampling.generate import generate
from minigpt.text.tokenizer import ByteTokenizer, CharTokenizer


def any_alphabet() -> Finding:
    """A model knows numbers only; that they stand for Chinese is the tokenizer's business."""
    text = "我想吃酸菜鱼"
    tokenizer, as_bytes = CharTokenizer(text), ByteTokenizer()
    ids, model = tokenizer.encode(text), gpt(85, vocab_size=6)
    written = "".join(piece.text for piece in generate(model, tokenizer, text[:2], SampleConfig(length=6)))
    measured = (
        f"{text} is the ids {', '.join(map(str, ids))}, or {len(as_bytes.encode(text))} bytes, and reads back as "
        f"{tokenizer.decode(ids)}; after {text[:2]} an untrained model writes {written}"
    )
    read_back = tokenizer.decode(ids) == text == as_bytes.decode(as_bytes.encode(text))
    return Finding(read_back and len(set(ids.tolist())) == len(written) == 6 and set(written) <= set(text), measured)


def same_word_same_embedding() -> Finding:
    """The table knows the character and nothing else. Only the blocks make the two a's of a text different."""
    tokenizer = CharTokenizer("a cat")
    ids = torch.tensor(tokenizer.encode("a cat").tolist())
    model = gpt(88, tokenizer.vocab_size)
    first, _, _, second, _ = model.token_embedding(ids)
    apart = largest(first - second)
    first, _, _, second, _ = reaching(model.norm, lambda: model(ids[None]))[0][0]
    cosine = F.cosine_similarity(first, second, dim=0).item()
    measured = f"the two a's of 'a cat' are {figure(apart)} apart; after two blocks their cosine is {figure(cosine)}"
    return Finding(apart == 0 and cosine < 0.99, measured)


def width_is_a_choice() -> Finding:
    """Nothing in the formulas asks for 512: any multiple of the number of heads will do, and small models take less."""
    tried, ids = (64, 384, 510, 512), torch.arange(12)[None]
    works = [width for width in tried if not contradictions(RunConfig(model=plain(n_embd=width)))]
    shapes = {tuple(gpt(89, n_layer=1, n_embd=width)(ids).shape) for width in works}
    parameters = [f"{count_parameters(plain(n_layer=6, n_embd=width), 65):,}" for width in works]
    presets_take = sorted({resolve(shipped_layer(name)).config.model.n_embd for name in presets()})
    measured = (
        f"of {', '.join(map(str, tried))} with 4 heads {', '.join(map(str, works))} work, with {', '.join(parameters)} "
        f"parameters in 6 blocks; minigpt's presets take {', '.join(map(str, presets_take))}"
    )
    return Finding(works == [64, 384, 512] and shapes == {(1, 12, 12)} and len(presets_take) > 1, measured)


def blocks_of_one_shape() -> Finding:
    """Put a block together from its parts, once with the norms before the parts and once with them after the sums.

    minigpt's block is the first; torch's own encoder layer, by default that of the 2017 paper, is the second.
    """
    ours, x = awake(lambda: Block(plain()), claim=90), normal(1, 10, 32, claim=90)
    middle = x + ours.attention(ours.norm1(x))
    before = largest(middle + ours.mlp(ours.norm2(middle)) - ours(x))
    paper = awake(lambda: nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=128, batch_first=True), claim=90)
    middle = paper.norm1(x + paper.self_attn(x, x, x)[0])
    after = largest(paper.norm2(middle + paper.linear2(paper.linear1(middle).relu())) - paper(x))
    shapes = [[tuple(p.shape) for p in block.parameters()] for block in gpt(90, n_layer=3).blocks]
    dropped = len(reaching(ours.dropout, lambda: ours(x)))
    measured = (
        f"{len(shapes)} blocks of one shape, dropout after {dropped} parts each; norm before the parts is minigpt to "
        f"{figure(before)}, after the sums is the paper's layer to {figure(after)}"
    )
    return Finding(max(before, after) < EXACT and shapes.count(shapes[0]) == 3 and dropped == 2, measured)


def layer_norm() -> Finding:
    """Each vector is shifted and scaled to mean 0, variance 1; learned gains and biases then move it as they like."""
    config, wild = plain(n_embd=64, bias=True), 100 + 50 * normal(200, 64, claim=91)
    fresh, learned = make_norm(config).double(), awake(lambda: make_norm(config), claim=91)
    y = fresh(wild)  # (vectors, C), with gains of 1 and biases of 0
    mean, variance = largest(y.mean(-1)), largest(y.var(-1, correction=0) - 1)
    outside = ((y < 0) | (y > 1)).double().mean().item()
    gains, biases = learned.parameters()
    moved = largest(learned(wild) - (gains * y + biases))
    measured = (
        f"means within {figure(mean)} of 0, variances within {figure(variance)} of 1; {outside:.0%} of the numbers lie "
        f"outside 0 to 1, from {figure(y.min())} to {figure(y.max())}; gains and biases follow to {figure(moved)}"
    )
    return Finding(mean < EXACT and variance < 1e-6 and moved < EXACT and outside > 0.5, measured)


CLAIMS = (
    Claim(85, "It works on Chinese: 我想吃酸菜鱼.", ("003",), any_alphabet),
    Claim(88, "The same word always has the same embedding.", ("002",), same_word_same_embedding),
    Claim(
        89,
        "The width of the model is usually 512.",
        ("001", "002"),
        width_is_a_choice,
        correction="It was 512 in 2017. It is a choice: any multiple of the number of heads works.",
    ),
    Claim(
        90,
        "A model is N blocks of one shape: attention and MLP, a norm before each, dropout and a residual sum after.",
        ("003",),
        blocks_of_one_shape,
        correction="So it is in GPT-2 and in minigpt. In the paper of 2017 the norms come after the sums.",
    ),
    Claim(
        91,
        "Layer norm brings values into the range 0 to 1, and then has learned gains and biases.",
        ("002",),
        layer_norm,
        correction="To mean 0 and variance 1, which leaves most of them outside; gains and biases are indeed learned.",
    ),
)
