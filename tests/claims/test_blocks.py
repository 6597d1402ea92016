"""Blocks and training.

Each block adds two things to the vector of each token: first what its attention collected, then what its MLP computed
from the sum. Norms give the inputs of attention and MLP similar sizes.
"""

from typing import Any

import pytest
from claim import Experiment, claim, fmt, trained
from models import EXACT, calls, max_abs, normal, small_gpt
from small_models import randomize
from torch import Tensor, nn

from minigpt.course.small_models import small_config
from minigpt.model.gpt import Block, make_norm


@claim(
    "GPT-2 and minigpt apply a norm before attention and MLP, the 2017 paper after them",
    said="A model is N identical blocks: attention and MLP, each with a norm before it, and dropout and a residual "
    "connection after it.",
    mistake="The blocks of the 2017 paper are post-norm. The rest is correct.",
)
def test_claim_norms() -> str:
    """Assemble a pre-norm block and a post-norm block from their parts.

    minigpt's block is pre-norm. By default, torch's encoder layer is post-norm, like the 2017 paper.
    """
    block, x = randomize(Block(small_config()).double().eval()), normal(1, 10, 32)
    middle = x + block.attention(block.norm1(x))
    before = max_abs(middle + block.mlp(block.norm2(middle)) - block(x))
    paper = randomize(nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=128, batch_first=True).double().eval())
    middle = paper.norm1(x + paper.self_attn(x, x, x)[0])
    after = max_abs(paper.norm2(middle + paper.linear2(paper.linear1(middle).relu())) - paper(x))
    shapes = [[tuple(p.shape) for p in block.parameters()] for block in small_gpt(n_layer=3).blocks]
    dropouts = calls(block.dropout, lambda: block(x))
    assert max(before, after) < EXACT
    assert shapes.count(shapes[0]) == 3
    assert dropouts == 2
    return (
        f"{len(shapes)} identical blocks with {dropouts} dropouts each; the pre-norm version "
        f"matches minigpt's block to within {fmt(before)}, the post-norm version the paper's to within {fmt(after)}"
    )


@claim(
    "Layer norm gives a vector mean 0 and variance 1, then applies a learned gain and bias",
    said="Layer norm maps values to the range 0 to 1, then applies a learned gain and bias.",
    mistake="Most values are outside 0 to 1. The rest is correct.",
)
def test_claim_layer_norm() -> str:
    """Normalize vectors to mean 0 and variance 1. Many values fall outside 0 to 1. Then apply gain and bias."""
    config, x = small_config(n_embd=64, bias=True), 100 + 50 * normal(200, 64)
    fresh, learned = make_norm(config).double(), randomize(make_norm(config).double())
    y = fresh(x)  # (vectors, C), with gain 1 and bias 0
    mean, variance = max_abs(y.mean(-1)), max_abs(y.var(-1, correction=0) - 1)
    outside = ((y < 0) | (y > 1)).double().mean().item()
    gain, bias = learned.parameters()
    error = max_abs(learned(x) - (gain * y + bias))
    assert max(mean, error) < EXACT
    assert variance < 1e-6
    assert outside > 0.5
    return (
        f"means are within {fmt(mean)} of 0, variances within {fmt(variance)} of 1; {outside:.0%} "
        f"of the values are outside 0 to 1, from {fmt(y.min())} to {fmt(y.max())}; "
        f"with gain and bias, the output matches the formula to within {fmt(error)}"
    )


@claim("A small GPT overfits a small text after many epochs, unless dropout prevents it")
@trained(
    "epochs",
    "optimization-and-batches#what-prevents-overfitting-in-many-epochs",
    "In dozens of epochs on a fifth of Tiny Shakespeare, the validation loss falls to {baseline/best} and then "
    "rises to {baseline}. With dropout of 0.1, in the same time, the last loss is {dropout 0.1}.",
    lambda lowest, final, with_dropout: final > lowest + 0.5 and with_dropout < lowest,
)
@trained(
    "small-rivals",
    "small-and-large-texts#who-overfits-a-small-text",
    "On 50,000 characters, the validation loss of a GPT falls to {baseline/best} and rises to {baseline}. That of an "
    "LSTM of the same size rises from {lstm/best} to {lstm}. With dropout of 0.2, the GPT ends at {dropout 0.2}.",
    lambda lowest, final, lstm_lowest, lstm, with_dropout: (
        final - lowest > lstm - lstm_lowest > 0.5 and with_dropout < lowest
    ),
)
def test_claim_overfitting() -> None: ...


def test_a_model_with_other_blocks_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def norm_after_the_sum(self: Any, x: Tensor, cos_sin: Tensor | None = None) -> Any:
        x = self.norm1(x + self.attention(x, cos_sin))
        return self.norm2(x + self.mlp(x))

    monkeypatch.setattr(Block, "forward", norm_after_the_sum)
    with pytest.raises(AssertionError):
        test_claim_norms()


def test_runs_that_found_nothing_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Experiment, "values", lambda self: [[0.0]] * self.finding.count("{"))
    with pytest.raises(AssertionError):
        test_claim_overfitting()
