"""A model whose heads are set by hand, so that their scores are known."""

import pytest
import torch

from minigpt.config.schema import FAMILIES, ModelConfig
from minigpt.interpret.extract import Activations, extract
from minigpt.model.gpt import GPT
from minigpt.text.tokenizer import CharTokenizer

TEXT = "fabcadbcbaeacbde"
"""No letter is doubled. The first occurs once, because head 0.0 passes it on as its own previous letter."""
LETTER, PREVIOUS, ONE = 16, 40, 63
"""Where the residual stream holds the letter, the previous letter, and a constant one. The position is at 0."""


def hand_built_model() -> GPT:
    """Return two layers of four heads.

    Head 0.0 attends to the previous character, 0.1 to all equally, 0.2 to the first, 0.3 to itself. Head 1.0 reads
    the output of 0.0 and attends to what followed the same character earlier.
    """
    shape = {"n_layer": 2, "n_head": 4, "n_embd": 64, "context": 16}
    model = GPT(ModelConfig(family="classic", **{**FAMILIES["classic"], **shape}), 6).eval()
    large = 1000.0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.token_embedding.weight[:, LETTER : LETTER + 6] = torch.eye(6)
        model.position_embedding.weight[:, :16] = torch.eye(16)
        first, second = model.blocks[0], model.blocks[1]
        for block in (first, second):
            block.norm1.weight.fill_(1)
            block.norm1.bias[ONE] = 1
        q, k, v = first.attention.qkv.weight.view(3, 4, 16, 64)
        positions = torch.eye(16)
        q[0, :, :16], k[0, :, :16] = large * positions.roll(1, 1), positions
        v[0, :6, LETTER : LETTER + 6] = torch.eye(6)
        q[2, 0, ONE], k[2, 0, 0] = large, 1.0
        q[3, :, :16], k[3, :, :16] = large * positions, positions
        first.attention.proj.weight[PREVIOUS : PREVIOUS + 6, :6] = torch.eye(6)
        q, k, v = second.attention.qkv.weight.view(3, 4, 16, 64)
        q[0, :6, LETTER : LETTER + 6], k[0, :6, PREVIOUS : PREVIOUS + 6] = large * torch.eye(6), torch.eye(6)
    return model


@pytest.fixture(scope="package")
def text() -> str:
    """The text that the hand-built model reads."""
    return TEXT


@pytest.fixture(scope="package")
def by_hand(text: str) -> Activations:
    """The activations of the hand-built model."""
    return extract(hand_built_model(), CharTokenizer("abcdef").encode(text))
