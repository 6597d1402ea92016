"""The gradient by distance is the analytic one, of the last prediction alone, in the mean over windows."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_models import V, small_config, some_ids
from torch import Tensor, nn

from minigpt.config.schema import FAMILIES, RECURRENT
from minigpt.interpret.gradient import gradient_by_distance, spread_windows
from minigpt.model.gpt import use_kernels
from minigpt.model.kernels import KERNELS
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


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_along_the_gradient_changes_the_loss_as_it_says(family: str, kernels: str) -> None:
    """Compare with finite differences: move one input by epsilon along its gradient."""
    torch.manual_seed(0)
    model, ids = build_model(small_config(family, dropout=0.5), V).train(), some_ids(1, 11)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))  # a new GPT hardly looks at earlier inputs
    use_kernels(model, KERNELS[kernels])
    found, epsilon = gradient_by_distance(model, ids), 1e-3
    assert model.training
    assert not model.token_embedding._forward_hooks
    assert all(parameter.grad is None for parameter in model.parameters())
    model.eval()
    for distance in (0, 3, 9):
        x = model.token_embedding(ids[:, :-1]).detach().requires_grad_()

        def loss(x: Tensor) -> Tensor:
            hook = model.token_embedding.register_forward_hook(lambda *_: x)
            logits = model(ids[:, :-1])[:, -1]
            hook.remove()
            return F.cross_entropy(logits, ids[:, -1])

        (gradient,) = torch.autograd.grad(loss(x), x)
        step = torch.zeros_like(x)
        direction = gradient[0, -1 - distance]
        step[0, -1 - distance] = epsilon * direction / direction.norm()
        with torch.no_grad():
            slope = (loss(x + step) - loss(x - step)).item() / (2 * epsilon)
        assert found[distance].item() == pytest.approx(slope, rel=0.02)


@pytest.mark.parametrize("family", RECURRENT)
def test_the_gradient_of_a_recurrent_network_falls_with_the_distance(family: str) -> None:
    torch.manual_seed(0)
    model = build_model(small_config(family, n_layer=1, context=32), V)
    found = gradient_by_distance(model, some_ids(50, 33))
    octaves = [found[a:b].mean().item() for a, b in ((0, 1), (1, 2), (2, 4), (4, 8), (8, 16), (16, 32))]
    assert octaves == sorted(octaves, reverse=True)
    assert octaves[-1] < 0.02 * octaves[0]


def test_windows_are_spread_over_the_whole_text() -> None:
    tokens = np.arange(20, dtype=np.uint8)
    assert spread_windows(tokens, 3, 4)[:, 0].tolist() == [0, 5, 10, 16]
    assert spread_windows(tokens, 3, 4)[-1].tolist() == [16, 17, 18, 19]
    assert spread_windows(tokens, 3, 99)[:, 0].tolist() == list(range(17))
    assert spread_windows(tokens, 20, 4).shape == (0, 21)
