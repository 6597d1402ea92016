"""The gradient by distance is the analytic one, of the last prediction alone, in the mean over windows."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_models import V, small_config, some_ids
from torch import Tensor, nn

from minigpt.config.schema import FAMILIES
from minigpt.interpret.gradient import gradient_by_distance, spread_windows
from minigpt.model.load import build_model

DECAY = 0.5


class Leaky(nn.Module):
    """A linear recurrence h_t = DECAY h_(t-1) + x_t, whose logits are W h_t."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(context=6)
        self.token_embedding = nn.Embedding(5, 3)
        self.unembed = nn.Linear(3, 5, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x, h, states = self.token_embedding(ids), torch.zeros(3), []
        for t in range(ids.size(1)):
            h = DECAY * h + x[:, t]
            states.append(h)
        return self.unembed(torch.stack(states, dim=1))


def test_a_linear_recurrence_has_the_analytic_gradient() -> None:
    """dL/dx_(T-1-d) = DECAY^d W^T (p - onehot(y))."""
    model, windows = Leaky(), some_ids(4, 7, vocab_size=5)
    found = gradient_by_distance(model, windows)  # type: ignore[arg-type]
    with torch.no_grad():
        error = model(windows[:, :-1])[:, -1].softmax(-1) - F.one_hot(windows[:, -1], 5)  # (B, V)
        last = (error @ model.unembed.weight).norm(dim=-1).mean()
    assert found.tolist() == pytest.approx([last.item() * DECAY**d for d in range(6)], rel=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_is_that_of_the_embeddings_and_the_model_is_unchanged(family: str) -> None:
    torch.manual_seed(0)
    model, ids = build_model(small_config(family, dropout=0.5), V).train(), some_ids(1, 11)
    found = gradient_by_distance(model, ids)
    assert model.training
    assert not model.token_embedding._forward_hooks
    assert all(parameter.grad is None for parameter in model.parameters())
    inputs: list[Tensor] = []
    model.eval().token_embedding.register_forward_hook(lambda module, ids, x: inputs.append(x))
    (gradient,) = torch.autograd.grad(F.cross_entropy(model(ids[:, :-1])[:, -1], ids[:, -1]), inputs)
    assert found.tolist() == pytest.approx(gradient[0].norm(dim=-1).flip(0).tolist(), rel=1e-4)


def test_windows_are_spread_over_the_whole_text() -> None:
    tokens = np.arange(20, dtype=np.uint8)
    assert spread_windows(tokens, 3, 4)[:, 0].tolist() == [0, 5, 10, 16]
    assert spread_windows(tokens, 3, 4)[-1].tolist() == [16, 17, 18, 19]
    assert spread_windows(tokens, 3, 99)[:, 0].tolist() == list(range(17))
    assert spread_windows(tokens, 20, 4).shape == (0, 21)
