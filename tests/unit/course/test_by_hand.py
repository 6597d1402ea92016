"""The example that readers compute by hand is what the model's attention layer computes."""

import pytest
import torch
from by_hand import compute

from minigpt.course.by_hand import W_K, W_Q, W_V, X
from minigpt.course.small_models import small_config
from minigpt.model.gpt import Attention


def test_the_example_is_the_attention_of_the_model() -> None:
    steps, layer = compute(), Attention(small_config(n_embd=5, n_head=1)).double()
    x, *matrices = (torch.tensor(matrix, dtype=torch.float64) for matrix in (X, W_Q, W_K, W_V))
    with torch.no_grad():
        layer.qkv.weight.copy_(torch.cat([matrix.T for matrix in matrices]))
        layer.proj.weight.copy_(torch.eye(5))
        assert layer(x[None])[0].tolist() == [pytest.approx(row, abs=1e-12) for row in steps.outputs]
    assert max(steps.weights[3]) == steps.weights[3][2], '"fox" attends to "brown" most'
