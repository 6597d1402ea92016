"""`extract` returns what the model computes, and changes nothing."""

from typing import Any

import numpy as np
import pytest
import torch
from random_models import attention_stages
from torch import Tensor

from minigpt.config.schema import FAMILIES, ModelConfig
from minigpt.errors import CheckpointError, UserError
from minigpt.interpret.extract import ablate_heads, extract, patch_attention
from minigpt.model.gpt import GPT, use_kernels
from minigpt.model.kernels import CPU, TORCH

V, L, H, T = 11, 3, 2, 9


def make_model(family: str = "modern", **changes: Any) -> GPT:
    """Return a model in which every weight matters."""
    shape = {"n_layer": L, "n_head": H, "n_embd": 16, "context": 12}
    torch.manual_seed(1)
    model = GPT(ModelConfig(**{"family": family, **FAMILIES[family], **shape, **changes}), V).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def some_ids(length: int = T) -> np.ndarray:
    return np.random.default_rng(2).integers(0, V, length).astype(np.uint8)


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rotary", "none"])
@pytest.mark.parametrize("family", ["classic", "modern"])
def test_activations_are_those_of_the_forward_pass(family: str, position: str) -> None:
    model, ids = make_model(family, position=position), some_ids()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    outputs: list[Tensor] = []
    hooks = [b.attention.register_forward_hook(lambda m, x, y: outputs.append(y[0].detach())) for b in model.blocks]
    logits = model(torch.tensor(ids[None].astype(int)))[0].detach()
    for hook in hooks:
        hook.remove()
    activations = extract(model, ids)
    assert torch.equal(activations.logits, logits)
    assert activations.weights.shape == (L, H, T, T)
    assert activations.residual.shape == (L + 1, T, 16)
    assert (activations.weights.sum(-1) - 1).abs().max() < 1e-5
    assert activations.weights.triu(1).abs().max() == 0
    for layer, block in enumerate(model.blocks):
        joined = (activations.weights @ activations.v)[layer].transpose(0, 1).reshape(T, 16)
        assert torch.allclose(block.attention.proj(joined), outputs[layer], atol=1e-5)
        for head in range(H):
            assert torch.allclose(
                attention_stages(activations, layer, head)["softmax"], activations.weights[layer, head], atol=1e-6
            )
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("kernels", [CPU, TORCH])
def test_the_model_keeps_its_kernels_and_its_mode(kernels: Any) -> None:
    model = make_model(dropout=0.5).train()
    use_kernels(model, kernels)
    first, second = extract(model, some_ids()), extract(model, some_ids())
    assert model.training
    assert all(block.attention.attend is kernels.sdpa for block in model.blocks)
    assert torch.equal(first.weights, second.weights)  # no dropout


def test_bfloat16_is_accepted_with_its_rounding_errors() -> None:
    model = make_model()
    with torch.autocast("cpu", torch.bfloat16):
        activations = extract(model, some_ids())
    assert 0 < (activations.weights - extract(model, some_ids()).weights).abs().max() < 0.1


def test_a_kernel_that_differs_from_the_reference_is_an_error() -> None:
    model = make_model()

    def uniform(layer: int, sdpa: Any, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        return v.mean(2, keepdim=True).expand_as(v)

    with patch_attention(model, uniform), pytest.raises(UserError, match="reference implementation"):
        extract(model, some_ids())
    with torch.no_grad():  # the values of one layer are small, and the outputs of the others far larger
        model.blocks[1].attention.qkv.weight[32:] *= 1e-5
        model.blocks[1].attention.proj.weight *= 1e5

    def uniform_in_one_layer(layer: int, sdpa: Any, *inputs: Any) -> Tensor:
        return uniform(layer, sdpa, *inputs) if layer == 1 else sdpa(*inputs)

    with patch_attention(model, uniform_in_one_layer), pytest.raises(UserError, match=r"layer 1, head [01]"):
        extract(model, some_ids())
    extract(model, some_ids())


def test_activations_that_are_not_finite_are_an_error() -> None:
    model = make_model()
    with torch.no_grad():
        model.blocks[0].mlp.up.weight.fill_(3e38)
    with pytest.raises(CheckpointError):
        extract(model, some_ids())


@pytest.mark.parametrize("length", [1, 12])
def test_one_token_and_a_full_context_work(length: int) -> None:
    activations = extract(make_model(), some_ids(length))
    assert activations.weights.shape == (L, H, length, length)
    assert activations.weights[..., 0, 0].eq(1).all()


def test_an_ablated_head_has_no_output() -> None:
    model, ids = make_model(bias=False), torch.tensor(some_ids()[None].astype(int))
    with torch.no_grad():
        usual = model(ids)
        with ablate_heads(model, {(1, 0)}):
            ablated = model(ids)
        model.blocks[1].attention.proj.weight[:, :8] = 0  # the rows of W_O of this head
        assert torch.allclose(model(ids), ablated, atol=1e-6)
        assert not torch.allclose(usual, ablated, atol=1e-2)
