"""The network equals GPT-2 where it claims to, is causal with every switch, and starts and learns as documented."""

import contextlib
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_models import FAMILY_NAMES, SWITCHES, V, random_model, small_config, some_ids, switch_names, untrained_model
from torch import Tensor, nn

from minigpt.model.gpt import (
    GPT,
    attention_weights,
    causal_mask,
    eval_mode,
    rope_cos_sin,
    sinusoidal_positions,
    use_kernels,
)
from minigpt.model.kernels import KERNELS, Kernels, apply_rope
from minigpt.model.size import count_parameters, training_flops

POSITIONS = ("learned", "sinusoidal", "rotary", "none")

# --- GPT-2 -------------------------------------------------------------------------------------------


def as_hugging_face(model: GPT) -> tuple[nn.Module, dict[str, str]]:
    """Return a GPT2LMHeadModel with the weights of `model`, and its parameter name for each of ours."""
    transformers = pytest.importorskip("transformers")
    c = model.config
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=V, n_positions=c.context, n_embd=c.n_embd, n_layer=c.n_layer, n_head=c.n_head,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
        )
    ).eval()  # fmt: skip
    inside = {"norm1": "ln_1", "attention.qkv": "attn.c_attn", "attention.proj": "attn.c_proj"}
    inside |= {"norm2": "ln_2", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}
    names = {"token_embedding.weight": "transformer.wte.weight", "norm.weight": "transformer.ln_f.weight"}
    names |= {"position_embedding.weight": "transformer.wpe.weight", "norm.bias": "transformer.ln_f.bias"}
    for layer, (ours, hf), kind in itertools.product(range(c.n_layer), inside.items(), ("weight", "bias")):
        names[f"blocks.{layer}.{ours}.{kind}"] = f"transformer.h.{layer}.{hf}.{kind}"
    parameters, weights = dict(theirs.named_parameters()), model.state_dict()
    assert set(parameters) == set(names.values())
    with torch.no_grad():
        for ours, hf in names.items():
            value = weights.get(ours, torch.zeros_like(parameters[hf]))  # theirs always has biases
            parameters[hf].copy_(value.T if ".c_" in hf and value.ndim == 2 else value)
    return theirs, names


@pytest.mark.parametrize("bias", [True, False])
def test_classic_is_gpt2(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits and every gradient equal those of Hugging Face's GPT-2 with the same weights."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    ours = random_model("classic", n_layer=3, n_head=4, n_embd=32, context=24, bias=bias)
    theirs, names = as_hugging_face(ours)
    ids, targets = some_ids(3, 24), some_ids(24, 3).T
    logits, expected = ours(ids), theirs(ids).logits
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    for out in (logits, expected):
        F.cross_entropy(out.flatten(0, 1), targets.flatten()).backward()
    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        expected = gradients[names[name]]
        expected = expected.T if ".c_" in names[name] and expected.ndim == 2 else expected
        torch.testing.assert_close(parameter.grad, expected, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(
    ("layers", "heads", "width", "count"), [(12, 12, 768, 124_439_808), (24, 16, 1024, 354_823_168)]
)
def test_gpt2_sizes(layers: int, heads: int, width: int, count: int) -> None:
    """The published GPT-2 small and medium have exactly these parameters."""
    config = small_config("classic", n_layer=layers, n_head=heads, n_embd=width, context=1024)
    assert count_parameters(config, 50257) == count


# --- every switch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("switches", SWITCHES, ids=switch_names)
def test_causality(switches: dict[str, Any]) -> None:
    """Changing token t + 1 changes no bit of the logits up to t, and changes the logits from t + 1 on."""
    model, ids = random_model("modern", **switches), some_ids(1, 10)
    changed = ids.repeat(9, 1)  # sequence t has another token at t + 1
    t = torch.arange(9)
    changed[t, t + 1] = (changed[t, t + 1] + 1) % V
    with torch.no_grad():
        before, after = model(ids.repeat(9, 1)), model(changed)
    for t in range(9):
        assert torch.equal(before[t, : t + 1], after[t, : t + 1])
        assert not torch.allclose(before[t, t + 1], after[t, t + 1], atol=1e-3)
        assert not torch.allclose(before[t, -1], after[t, -1], atol=1e-6)


@pytest.mark.parametrize("switches", SWITCHES, ids=switch_names)
def test_parameters_are_counted_without_a_model(switches: dict[str, Any]) -> None:
    model = untrained_model("modern", n_embd=36, **switches)
    assert count_parameters(model.config, V) == sum(p.numel() for p in model.parameters())


def test_flops_are_those_of_the_matrix_products() -> None:
    """Three times the forward pass: two for each weight that multiplies, and attention over the whole context."""
    model = untrained_model("classic")
    C, T, L = 16, 10, 2
    assert training_flops(model.config, V) == 3 * (2 * (L * 12 * C * C + V * C) + L * 4 * T * C)


def test_more_tokens_than_the_context_are_refused() -> None:
    with pytest.raises(AssertionError, match="11 tokens exceed the context of 10"):
        untrained_model("modern")(some_ids(1, 11))


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        ("gelu", lambda x: x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        ("gelu_exact", lambda x: x / 2 * (1 + torch.erf(x / math.sqrt(2)))),
        ("relu2", lambda x: x.clamp(min=0) ** 2),
    ],
)
def test_activations_are_their_formulas(activation: str, formula: Callable[[Tensor], Tensor]) -> None:
    mlp, x = random_model("modern", activation=activation).blocks[0].mlp, torch.randn(3, 10, 16)
    torch.testing.assert_close(mlp(x), mlp.down(formula(mlp.up(x))), atol=1e-5, rtol=1e-5)


def test_swiglu_multiplies_by_a_gate_and_costs_no_extra_parameters() -> None:
    mlp, x = random_model("modern", activation="swiglu").blocks[0].mlp, torch.randn(3, 10, 16)
    gate = mlp.gate(x)
    torch.testing.assert_close(mlp(x), mlp.down(gate * gate.sigmoid() * mlp.up(x)), atol=1e-5, rtol=1e-5)
    for width in (32, 64, 128, 384):
        kinds = [small_config("modern", n_embd=width, activation=name) for name in ("gelu", "swiglu")]
        gelu, swiglu = (count_parameters(kind, V) for kind in kinds)
        assert gelu <= swiglu < 1.03 * gelu


# --- attention and positions -------------------------------------------------------------------------


def rotated(x: Tensor) -> Tensor:
    """Rotate x (B, H, T, D) by rotary positions, one pair at a time."""
    out, half = x.clone(), x.size(-1) // 2
    for t, i in itertools.product(range(x.size(2)), range(half)):
        angle = t * 10_000 ** (-2 * i / x.size(-1))
        a, b = x[:, :, t, i], x[:, :, t, i + half]
        out[:, :, t, i] = a * math.cos(angle) - b * math.sin(angle)
        out[:, :, t, i + half] = a * math.sin(angle) + b * math.cos(angle)
    return out


@pytest.mark.parametrize("kernels", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_attention_agrees_with_the_reference_implementation(family: str, kernels: Kernels) -> None:
    """Each layer computes softmax(q k^T / sqrt(D)) v under the mask, from its own inputs."""
    model, seen = random_model(family), {}
    use_kernels(model, kernels)
    for layer, block in enumerate(model.blocks):
        for name, module in (("qkv", block.attention.qkv), ("out", block.attention)):
            module.register_forward_hook(lambda m, args, out, key=(layer, name): seen.update({key: out}))
    with torch.no_grad():
        model(some_ids(2, 10))
        for layer, block in enumerate(model.blocks):
            qkv = seen[layer, "qkv"].view(2, 10, 3, 2, 8)
            q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))  # (B, H, T, D) each
            if family == "modern":
                gains = block.attention.qk_norm.weight  # (D)
                q, k = (rotated(gains * z / (z.square().mean(-1, keepdim=True) + 1e-6).sqrt()) for z in (q, k))
            expected = block.attention.proj((attention_weights(q, k) @ v).transpose(1, 2).flatten(2))
            torch.testing.assert_close(seen[layer, "out"], expected, atol=1e-5, rtol=1e-5)


def test_attention_weights_are_a_causal_distribution() -> None:
    q, k = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 6, 8)  # four queries, the last of six positions
    weights = attention_weights(q, k)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 4))
    for t, s in itertools.product(range(4), range(6)):
        assert bool((weights[..., t, s] > 0).all()) == (s <= t + 2)
    expected = (q[1, 2, 1] @ k[1, 2, :4].T / math.sqrt(8)).softmax(-1)
    torch.testing.assert_close(weights[1, 2, 1, :4], expected)
    assert causal_mask(2, 3, torch.device("cpu")).tolist() == [[True, True, False], [True, True, True]]


def test_sinusoidal_positions_are_those_of_the_paper() -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)) and PE(pos, 2i+1) is the cosine, also at distant positions."""
    table = sinusoidal_positions(3000, 12)
    assert table.shape == (3000, 12)
    for position, i in itertools.product((0, 1, 2, 63, 2999), range(6)):
        angle = position / 10_000 ** (2 * i / 12)
        assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
        assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_rotary_scores_depend_on_distance_only() -> None:
    cos_sin, x = rope_cos_sin(40, 8), torch.randn(1, 2, 40, 8)
    torch.testing.assert_close(apply_rope(x, cos_sin), rotated(x), atol=1e-5, rtol=1e-5)
    q, k = (apply_rope(torch.randn(8).expand(1, 1, 40, 8), cos_sin) for _ in range(2))
    scores = (q @ k.transpose(-2, -1))[0, 0]  # the same query and key at every position
    for distance in range(-39, 40):
        along = scores.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), atol=1e-5, rtol=1e-5)
    assert scores[0].std() > 0.1


@pytest.mark.parametrize("position", POSITIONS)
def test_only_without_positions_the_order_of_the_past_is_lost(position: str) -> None:
    model, ids = random_model("modern", n_layer=1, position=position), torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad():
        moved = (model(ids)[0, -1] - model(ids[:, [2, 0, 3, 1, 4]])[0, -1]).abs().max().item()
    assert moved < 1e-5 if position == "none" else moved > 1e-3


# --- initialization and state ------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 2, 32), (4, 4, 128)], ids=str)
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_initial_loss_is_that_of_a_uniform_guess(family: str, shape: tuple[int, int, int]) -> None:
    """With tied embeddings, a new model could predict that each token follows itself."""
    layers, heads, width = shape
    model = untrained_model(family, 65, n_layer=layers, n_head=heads, n_embd=width, context=64)
    with torch.no_grad():
        logits = model(some_ids(4, 64, vocab_size=65))
    targets = torch.randint(65, (4 * 64,), generator=torch.Generator().manual_seed(2))
    assert F.cross_entropy(logits.flatten(0, 1), targets).item() == pytest.approx(math.log(65), abs=0.12)


def test_zero_init_makes_each_block_the_identity() -> None:
    model, x = untrained_model("modern"), torch.randn(2, 10, 16)
    with torch.no_grad():
        for block in model.blocks:
            assert torch.equal(block(x, model.cos_sin), x)


def test_weights_start_as_in_gpt2() -> None:
    """N(0, 0.02), the projections into the residual stream smaller by sqrt(2 L), biases zero, gains one."""
    for name, p in untrained_model("classic", 200, n_layer=8, n_embd=128, context=200).named_parameters():
        if p.ndim == 2:
            is_residual = name.endswith(("proj.weight", "down.weight"))
            assert p.std().item() == pytest.approx(0.02 / (4 if is_residual else 1), rel=0.05), name
            assert abs(p.mean().item()) < 1e-3, name
        else:
            assert p.unique().tolist() == [0.0 if name.endswith("bias") else 1.0], name


@pytest.mark.parametrize("position", POSITIONS)
def test_a_state_dict_holds_each_parameter_once_and_nothing_else(position: str) -> None:
    model = untrained_model("modern", position=position, norm="layernorm", bias=True)
    state = model.state_dict()
    assert set(state) == {name for name, _ in model.named_parameters(remove_duplicate=False)}
    assert len({tensor.data_ptr() for tensor in state.values()}) == len(state)
    other = GPT(model.config, V).eval()
    other.load_state_dict(state)
    assert torch.equal(other(some_ids(1, 10)), model(some_ids(1, 10)))


# --- training ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_one_batch_is_memorized(family: str) -> None:
    model, ids = untrained_model(family, n_embd=32).train(), some_ids(4, 11)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(250):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        if loss < 0.1:
            return
        loss.backward()
        optimizer.step()
    pytest.fail(f"the loss is still {loss:.3f}")


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_dropout_acts_in_training_only(family: str) -> None:
    """On the embeddings, the attention weights and both branches."""
    model, ids = random_model(family, dropout=0.3), some_ids(2, 10)
    assert torch.equal(model(ids), random_model(family, dropout=0.0)(ids))
    zeros: dict[str, Tensor] = {}
    for name, module in {"embedding": model.dropout, "branches": model.blocks[0].dropout}.items():
        module.register_forward_hook(lambda m, args, out, name=name: zeros.update({name: out == 0}))
    model.train()
    assert not torch.equal(model(ids), model(ids))
    assert [0.2 < share.float().mean() < 0.4 for share in zeros.values()] == [True, True]
    attention, x = model.blocks[0].attention, torch.randn(2, 10, 16)
    assert not torch.equal(attention(x, model.cos_sin), attention(x, model.cos_sin))


@pytest.mark.parametrize("training", [True, False])
def test_eval_mode_restores_the_mode_after_an_error(training: bool) -> None:
    model = untrained_model("classic").train(training)
    with contextlib.suppress(KeyError), eval_mode(model):
        assert not any(module.training for module in model.modules())
        raise KeyError
    assert all(module.training == training for module in model.modules())
