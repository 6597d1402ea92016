"""Blocks and training.

Each block adds two things to the vector of each token: what its attention collected from other positions, and what its
MLP computed from that. Norms keep the values in range.
"""

import torch
from torch import nn

from minigpt.config.presets import presets, read_preset
from minigpt.config.resolve import contradictions, resolve
from minigpt.config.schema import RunConfig
from minigpt.course.claims.claim import Claim, Finding, fmt, max_abs
from minigpt.course.claims.experiment import Experiment
from minigpt.course.small_models import EXACT, normal, randomize, record_inputs, small_config, small_gpt
from minigpt.model.gpt import Block, make_norm
from minigpt.model.size import count_parameters


def width_is_a_choice() -> Finding:
    """Build models of four widths. Any multiple of the number of heads works, and small models are narrower."""
    tried, ids = (64, 384, 510, 512), torch.arange(12)[None]
    works = [width for width in tried if not contradictions(RunConfig(model=small_config(n_embd=width)))]
    shapes = {tuple(small_gpt(89, n_layer=1, n_embd=width)(ids).shape) for width in works}
    parameters = [f"{count_parameters(small_config(n_layer=6, n_embd=width), 65):,}" for width in works]
    preset_widths = sorted({resolve(*read_preset(name)).config.model.n_embd for name in presets()})
    measured = (
        f"with 4 heads, widths {', '.join(map(str, works))} work and {', '.join(map(str, set(tried) - set(works)))} "
        f"does not; with 6 blocks they have {', '.join(parameters)} parameters; "
        f"minigpt's presets use {', '.join(map(str, preset_widths))}"
    )
    return Finding(works == [64, 384, 512] and shapes == {(1, 12, 12)} and len(preset_widths) > 1, measured)


def blocks_of_one_shape() -> Finding:
    """Assemble a pre-norm block and a post-norm block from their parts.

    minigpt's block is pre-norm. By default, torch's encoder layer is post-norm, like the 2017 paper.
    """
    block, x = randomize(lambda: Block(small_config()), claim=90), normal(1, 10, 32, claim=90)
    middle = x + block.attention(block.norm1(x))
    before = max_abs(middle + block.mlp(block.norm2(middle)) - block(x))
    paper = randomize(lambda: nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=128, batch_first=True), claim=90)
    middle = paper.norm1(x + paper.self_attn(x, x, x)[0])
    after = max_abs(paper.norm2(middle + paper.linear2(paper.linear1(middle).relu())) - paper(x))
    shapes = [[tuple(p.shape) for p in block.parameters()] for block in small_gpt(90, n_layer=3).blocks]
    dropouts = len(record_inputs(block.dropout, lambda: block(x)))
    measured = (
        f"{len(shapes)} identical blocks with {dropouts} dropouts each; the pre-norm version "
        f"matches minigpt's block to within {fmt(before)}, the post-norm version the paper's to within {fmt(after)}"
    )
    return Finding(max(before, after) < EXACT and shapes.count(shapes[0]) == 3 and dropouts == 2, measured)


def layer_norm() -> Finding:
    """Normalize vectors to mean 0 and variance 1. Many values fall outside 0 to 1. Then apply gain and bias."""
    config, x = small_config(n_embd=64, bias=True), 100 + 50 * normal(200, 64, claim=91)
    fresh, learned = make_norm(config).double(), randomize(lambda: make_norm(config), claim=91)
    y = fresh(x)  # (vectors, C), with gain 1 and bias 0
    mean, variance = max_abs(y.mean(-1)), max_abs(y.var(-1, correction=0) - 1)
    outside = ((y < 0) | (y > 1)).double().mean().item()
    gain, bias = learned.parameters()
    error = max_abs(learned(x) - (gain * y + bias))
    measured = (
        f"means are within {fmt(mean)} of 0, variances within {fmt(variance)} of 1; {outside:.0%} "
        f"of the values are outside 0 to 1, from {fmt(y.min())} to {fmt(y.max())}; "
        f"with gain and bias, the output matches the formula to within {fmt(error)}"
    )
    return Finding(mean < EXACT and variance < 1e-6 and error < EXACT and outside > 0.5, measured)


OVERFITTING = Experiment(
    "epochs",
    "optimization-and-batches#what-prevents-overfitting-in-many-epochs",
    "On a fifth of Tiny Shakespeare, read dozens of times, the validation loss falls to {baseline/best} and then rises "
    "to {baseline}. With dropout of 0.1, in the same time, the last loss is {dropout 0.1}.",
    lambda lowest, final, with_dropout: final > lowest + 0.5 and with_dropout < lowest,
)
SMALL_TEXT = Experiment(
    "small-rivals",
    "small-and-large-texts#who-overfits-a-small-text",
    "On 50,000 characters, the loss of a GPT falls to {baseline/best} and rises to {baseline}. An LSTM of the same "
    "size rises from {lstm/best} to {lstm}. With dropout of 0.2, the last loss of the GPT is {dropout 0.2}.",
    lambda lowest, final, lstm_lowest, lstm, with_dropout: (
        final - lowest > lstm - lstm_lowest > 0.5 and with_dropout < lowest
    ),
)
DISTANCE = Experiment(
    "depth",
    "attention#do-deeper-layers-look-further-back",
    "After a minute of training, the first of 4 layers attends {baseline/distance_without_first[1:1]} characters back "
    "on average. The last attends {baseline/distance_without_first[4:4]} characters back. In a model of 8 layers, the "
    "first attends {8 layers/distance_without_first[1:1]} characters back. The last attends "
    "{8 layers/distance_without_first[8:8]} characters back.",
    lambda first, last, first_of_8, last_of_8: first >= last and first_of_8 >= last_of_8,
)
OUTSIDE_LINE = Experiment(
    "depth",
    "attention#do-deeper-layers-look-further-back",
    "The first layers give {baseline/outside_line[1:1]} and {8 layers/outside_line[1:1]} of their attention to earlier "
    "lines, the last {baseline/outside_line[4:4]} and {8 layers/outside_line[8:8]}. Uniform attention gives "
    "{baseline/outside_line[5:5]}.",
    lambda first, first_of_8, last, last_of_8, uniform: (
        abs(first - last) < 0.05 and abs(first_of_8 - last_of_8) < 0.05 and max(last, last_of_8) < uniform
    ),
)


CLAIMS = (
    Claim(
        89,
        "The model width is a choice: any multiple of the number of heads",
        width_is_a_choice,
        said="The model width is usually 512.",
        mistake="It was 512 in the 2017 paper. Models today are wider, and minigpt's presets narrower.",
    ),
    Claim(
        90,
        "GPT-2 and minigpt apply a norm before attention and MLP, the 2017 paper after them",
        blocks_of_one_shape,
        said="A model is N identical blocks: attention and MLP, each with a norm before it, and dropout and a "
        "residual connection after it.",
        mistake="The blocks of the 2017 paper are post-norm. The rest is correct.",
    ),
    Claim(
        91,
        "Layer norm gives a vector mean 0 and variance 1, then applies a learned gain and bias",
        layer_norm,
        said="Layer norm maps values to the range 0 to 1, then applies a learned gain and bias.",
        mistake="Most values are outside 0 to 1. The rest is correct.",
    ),
    Claim(
        39,
        "A small GPT overfits a small text after many epochs, unless dropout prevents it",
        said="Attention overfits on small data.",
        trained=(OVERFITTING, SMALL_TEXT),
    ),
    Claim(
        110,
        "Deeper layers need not look further back, nor across more line borders",
        said="Deeper layers look further back, outside the sentence.",
        mistake="In models of 4 and 8 layers, after a minute, the last layer looks no further back than the first.",
        trained=(DISTANCE, OUTSIDE_LINE),
    ),
)
