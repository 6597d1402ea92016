"""The network: equal to GPT-2 where it claims to be, causal in every shape, the same with a cache as without."""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.config.schema import FAMILIES, ModelConfig, SampleConfig
from minigpt.model.gpt import (
    GPT,
    attention_weights,
    causal_mask,
    count_parameters,
    eval_mode,
    rope_cos_sin,
    sinusoidal_positions,
)
from minigpt.model.kernels import CPU, TORCH, Kernels
from minigpt.sampling.decode import KVCache, decoder
from minigpt.sampling.generate import generate_ids

V = 13
FAMILY_NAMES = tuple(FAMILIES)
POSITIONS = ("learned", "sinusoidal", "rotary", "none")
SWITCHES = [
    {"position": position, "norm": norm, "activation": activation, "qk_norm": qk_norm, "bias": bias}
    for position, norm, activation, qk_norm, bias in itertools.product(
        POSITIONS, ("layernorm", "rmsnorm"), ("gelu", "gelu_exact", "relu2", "swiglu"), (False, True), (False, True)
    )
]


def config(family: str, **changes: Any) -> ModelConfig:
    small = {"n_layer": 2, "n_head": 2, "n_embd": 16, "context": 10}
    return ModelConfig(**{"family": family, **FAMILIES[family], **small, **changes})


def fresh(family: str, vocab_size: int = V, **changes: Any) -> GPT:
    torch.manual_seed(0)
    return GPT(config(family, **changes), vocab_size).eval()


def awake(family: str, vocab_size: int = V, **changes: Any) -> GPT:
    """A model all of whose weights matter: fresh ones barely move the residual stream, or not at all."""
    model = fresh(family, vocab_size, **changes)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=1.5 / math.sqrt(parameter.size(1)))
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def some_ids(*shape: int, vocab_size: int = V) -> Tensor:
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(1))


def in_chunks(model: GPT, ids: Tensor, sizes: list[int]) -> Tensor:
    """Logits of `ids`, fed through a cache in pieces of these sizes."""
    cache, forward = KVCache.empty(model, ids.size(0)), decoder(model)
    return torch.cat([forward(part, cache) for part in ids.split(sizes, dim=1)], dim=1)


# --- GPT-2 to the letter -----------------------------------------------------------------------------


def as_hugging_face(model: GPT) -> tuple[nn.Module, dict[str, str]]:
    """The same weights as GPT2LMHeadModel, and for each of our names theirs."""
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
            value = weights.get(ours, torch.zeros_like(parameters[hf]))  # ours may have no biases, theirs always do
            parameters[hf].copy_(value.T if ".c_" in hf and value.ndim == 2 else value)
    return theirs, names


@pytest.fixture(params=[True, False], ids=["biases", "no biases"])
def classic_and_twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = awake("classic", n_layer=3, n_head=4, n_embd=32, context=24, bias=request.param)
    return model, *as_hugging_face(model)


def test_classic_is_gpt2(classic_and_twin: Any) -> None:
    """Logits and every gradient are those of Hugging Face's GPT-2 with the same weights."""
    ours, theirs, names = classic_and_twin
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


def test_classic_writes_what_gpt2_writes(classic_and_twin: Any) -> None:
    ours, theirs, _ = classic_and_twin
    prompt = some_ids(4)
    settings = SampleConfig(temperature=0, length=20)
    drawn = torch.cat([ids for ids, _ in generate_ids(ours, prompt, settings)])
    mask = torch.ones(1, 4, dtype=torch.long)
    expected = theirs.generate(prompt[None], attention_mask=mask, max_new_tokens=20, do_sample=False, pad_token_id=0)
    assert drawn.tolist() == expected[0, 4:].tolist()


@pytest.mark.parametrize(
    ("layers", "heads", "width", "count"), [(12, 12, 768, 124_439_808), (24, 16, 1024, 354_823_168)]
)
def test_gpt2_sizes(layers: int, heads: int, width: int, count: int) -> None:
    """The published GPT-2 small and medium have exactly these parameters."""
    with torch.device("meta"):
        model = GPT(config("classic", n_layer=layers, n_head=heads, n_embd=width, context=1024), 50257)
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        ("gelu", lambda x: x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        ("gelu_exact", lambda x: x / 2 * (1 + torch.erf(x / math.sqrt(2)))),
        ("relu2", lambda x: x.clamp(min=0) ** 2),
    ],
)
def test_activations_are_their_formulas(activation: str, formula: Callable[[Tensor], Tensor]) -> None:
    mlp = awake("modern", activation=activation).blocks[0].mlp
    x = torch.randn(3, 10, 16, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(mlp(x), mlp.down(formula(mlp.up(x))), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("width", [32, 64, 128, 384])
def test_swiglu_costs_no_extra_parameters(width: int) -> None:
    gelu, swiglu = (
        sum(p.numel() for p in fresh("modern", n_embd=width, activation=activation).blocks.parameters())
        for activation in ("gelu", "swiglu")
    )
    assert gelu <= swiglu < 1.03 * gelu


# --- every combination of switches -------------------------------------------------------------------


@pytest.mark.parametrize("switches", SWITCHES, ids=lambda s: "-".join(str(value) for value in s.values()))
def test_causality(switches: dict[str, Any]) -> None:
    """Changing token t+1 moves no logit up to t by a single bit, and moves that of t+1; with a cache too."""
    model = awake("modern", **switches)
    ids = some_ids(1, 10)
    changed = ids.repeat(9, 1)  # row t has another token at t + 1
    places = torch.arange(9)
    changed[places, places + 1] = (changed[places, places + 1] + 1) % V
    with torch.no_grad():
        torch.testing.assert_close(in_chunks(model, ids, [3, 6, 1]), model(ids), atol=1e-5, rtol=1e-5)
        for run in (model, lambda x: in_chunks(model, x, [3, 6, 1])):
            before, after = run(ids.repeat(9, 1)), run(changed)
            for t in range(9):
                assert torch.equal(before[t, : t + 1], after[t, : t + 1])
                assert not torch.allclose(before[t, t + 1], after[t, t + 1], atol=1e-3)
                assert not torch.allclose(before[t, -1], after[t, -1], atol=1e-6)


@pytest.mark.parametrize("switches", SWITCHES[::5], ids=lambda s: "-".join(str(value) for value in s.values()))
@hypothesis.given(cuts=st.sets(st.integers(1, 9)))
@hypothesis.settings(max_examples=15)
def test_a_cache_changes_nothing(switches: dict[str, Any], cuts: set[int]) -> None:
    """However a text is cut into pieces, its logits are those of one forward pass."""
    model, ids = awake("modern", **switches), some_ids(2, 10)
    edges = [0, *sorted(cuts), 10]
    with torch.no_grad():
        whole = model(ids)
        pieces = in_chunks(model, ids, [end - start for start, end in itertools.pairwise(edges)])
    torch.testing.assert_close(pieces, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("switches", SWITCHES[::3], ids=lambda s: "-".join(str(value) for value in s.values()))
@pytest.mark.parametrize("kernels", [TORCH, CPU], ids=["torch", "cpu"])
def test_streams_go_on_from_different_places(switches: dict[str, Any], kernels: Kernels) -> None:
    """Each sees its own past alone, whatever stands in the others and after it, also where its context ends."""
    model, ids, lengths = awake("modern", **switches), some_ids(4, 10), [2, 7, 0, 6]
    model.use(kernels)
    cache, forward = KVCache.empty(model, 4, slots=13), decoder(model)
    for kept in (cache.k, cache.v):
        kept.fill_(math.nan)
    cache.clear()
    forward(some_ids(4, 10, vocab_size=3), cache)  # of which nothing is to be seen
    for index, length in enumerate(lengths):
        if length:
            past = cache.stream(index)
            past.lengths = [0]
            forward(ids[index : index + 1, :length], past)
    new = [torch.cat((row, row))[length : length + 5] for row, length in zip(ids, lengths, strict=True)]
    cache.lengths = lengths.copy()
    with torch.no_grad():
        seen, whole = forward(torch.stack(new), cache), model(ids)
    assert cache.lengths == [7, 12, 5, 11]
    for index, length in enumerate(lengths):
        count = min(5, 10 - length)
        torch.testing.assert_close(seen[index, :count], whole[index, length : length + count], atol=1e-5, rtol=1e-5)
    assert seen.isfinite().all(), "also of what stands beyond the context"
    cache.drop(1)  # and the last takes its place
    assert cache.lengths == [7, 11, 5]
    cache.lengths = [6, 8, 4]
    with torch.no_grad():
        seen = forward(torch.stack((ids[0, 6:8], ids[3, 8:10], ids[2, 4:6])), cache)
    torch.testing.assert_close(seen, torch.stack((whole[0, 6:8], whole[3, 8:10], whole[2, 4:6])), atol=1e-5, rtol=1e-5)


def test_a_cache_needs_no_gradients_and_gives_none() -> None:
    model = awake("modern")
    assert torch.equal(in_chunks(model, some_ids(2, 10), [4, 6]).detach(), in_chunks(model, some_ids(2, 10), [4, 6]))
    assert not in_chunks(model, some_ids(2, 10), [4, 6]).requires_grad


def test_all_streams_of_a_cache_can_begin_as_the_first() -> None:
    model = awake("modern")
    cache = KVCache.empty(model, 3)
    decoder(model)(some_ids(1, 4), cache.stream(0))
    cache.spread(4)
    assert cache.lengths == [4, 4, 4]
    for kept in (cache.k, cache.v):
        assert torch.equal(kept[:, :, :, :4], kept[:, :1, :, :4].expand(-1, 3, -1, -1, -1))
    following = some_ids(3, 2)
    whole = torch.cat((some_ids(1, 4).expand(3, -1), following), 1)
    with torch.no_grad():
        torch.testing.assert_close(decoder(model)(following, cache), model(whole)[:, 4:], atol=1e-5, rtol=1e-5)


def test_the_cache_holds_what_its_shapes_say() -> None:
    model = awake("modern")
    cache = KVCache.empty(model, 3)
    assert cache.k.shape == cache.v.shape == (2, 3, 2, 10, 8)  # (L, B, H, context, D)
    with torch.no_grad():
        assert decoder(model)(some_ids(3, 4), cache).shape == (3, 4, V)
        assert cache.lengths == [4, 4, 4]
        with pytest.raises(AssertionError, match="exceed the context"):
            decoder(model)(some_ids(3, 7), cache)
    with pytest.raises(AssertionError, match="11 tokens exceed the context of 10"):
        model(some_ids(1, 11))


# --- attention ---------------------------------------------------------------------------------------


def turned(x: Tensor) -> Tensor:
    """Rotary positions, one pair at a time: x (B, H, T, D), from position 0."""
    out, half = x.clone(), x.size(-1) // 2
    for t, i in itertools.product(range(x.size(2)), range(half)):
        angle = t * 10_000 ** (-2 * i / x.size(-1))
        a, b = x[:, :, t, i], x[:, :, t, i + half]
        out[:, :, t, i] = a * math.cos(angle) - b * math.sin(angle)
        out[:, :, t, i + half] = a * math.sin(angle) + b * math.cos(angle)
    return out


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_fused_attention_agrees_with_its_explicit_twin(family: str) -> None:
    """Each block's attention is softmax(q k^T / sqrt(D)) v under the mask, recomputed from the layer's own inputs."""
    model, seen = awake(family), {}
    for layer, block in enumerate(model.blocks):
        for name, module in (("qkv", block.attention.qkv), ("out", block.attention)):
            module.register_forward_hook(lambda m, args, out, key=(layer, name): seen.update({key: out}))
    with torch.no_grad():
        model(some_ids(2, 10))
        for layer, block in enumerate(model.blocks):
            qkv = seen[layer, "qkv"].view(2, 10, 3, 2, 8)
            q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))  # each (B, H, T, D)
            if family == "modern":
                gains = block.attention.qk_norm.weight  # (D)
                q, k = (turned(gains * z / (z.square().mean(-1, keepdim=True) + 1e-6).sqrt()) for z in (q, k))
            weights = attention_weights(q, k)
            expected = block.attention.proj((weights @ v).transpose(1, 2).flatten(2))
            torch.testing.assert_close(seen[layer, "out"], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kernels", [CPU, TORCH], ids=["cpu", "torch"])
@pytest.mark.parametrize("chunks", [[10], [4, 5, 1]], ids=["prefill", "cache"])
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_attention_over_a_cache_agrees_with_its_explicit_twin(family: str, chunks: list[int], kernels: Kernels) -> None:
    """Of the queries of each piece to all keys so far; and they are the queries, keys and values of one whole pass."""
    model, whole, pieces = awake(family), [], []

    def keep(into: list[Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = kernels.sdpa(q, k, v, 0.0)
        torch.testing.assert_close(y, attention_weights(q, k) @ v, atol=1e-5, rtol=1e-5)
        into.append(torch.stack((q, k[:, :, -q.size(2) :], v[:, :, -q.size(2) :])))  # (3, B, H, T, D)
        return y

    with torch.no_grad():
        for into, run in ((whole, model), (pieces, lambda ids: in_chunks(model, ids, chunks))):
            model.use(dataclasses.replace(kernels, sdpa=lambda q, k, v, *_, into=into: keep(into, q, k, v)))
            run(some_ids(2, 10))
    layers = [torch.cat(pieces[layer :: len(model.blocks)], dim=3) for layer in range(len(model.blocks))]
    torch.testing.assert_close(torch.stack(layers), torch.stack(whole), atol=1e-5, rtol=1e-5)


def test_attention_weights_are_a_causal_distribution() -> None:
    q, k = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 6, 8)  # four queries, the last of six keys
    weights = attention_weights(q, k)
    assert weights.shape == (2, 3, 4, 6)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 4))
    for t, s in itertools.product(range(4), range(6)):
        assert bool((weights[..., t, s] > 0).all()) == (s <= t + 2)
    expected = (q[1, 2, 1] @ k[1, 2, :4].T / math.sqrt(8)).softmax(-1)
    torch.testing.assert_close(weights[1, 2, 1, :4], expected)
    assert causal_mask(2, 3, torch.device("cpu")).tolist() == [[True, True, False], [True, True, True]]


# --- positions ---------------------------------------------------------------------------------------


def test_sinusoidal_positions_are_those_of_the_paper() -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)) and PE(pos, 2i+1) the cosine, also at far positions."""
    table = sinusoidal_positions(3000, 12)
    assert table.shape == (3000, 12)
    for position, i in itertools.product((0, 1, 2, 63, 2999), range(6)):
        angle = position / 10_000 ** (2 * i / 12)
        assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
        assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize("kernels", [CPU, TORCH], ids=["cpu", "torch"])
def test_rotary_positions_turn_and_see_distances_only(kernels: Kernels) -> None:
    rotate = kernels.rope
    cos_sin = rope_cos_sin(40, 8)
    assert cos_sin.shape == (2, 40, 4)
    x = torch.randn(1, 2, 40, 8)
    torch.testing.assert_close(rotate(x, cos_sin), turned(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rotate(x, cos_sin).norm(dim=-1), x.norm(dim=-1))
    q, k = (rotate(torch.randn(8).expand(1, 1, 40, 8), cos_sin) for _ in range(2))
    scores = (q @ k.transpose(-2, -1))[0, 0]  # the same query and key everywhere
    for distance in range(-39, 40):
        along = scores.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), atol=1e-5, rtol=1e-5)
    assert scores[0].std() > 0.1  # and the distance does matter


@pytest.mark.parametrize("kernels", [CPU, TORCH], ids=["cpu", "torch"])
def test_rotary_turns_stay_exact_in_bfloat16(kernels: Kernels) -> None:
    """bfloat16 holds no position above 256 exactly, so the turning itself happens in float32."""
    rotate = kernels.rope
    x, cos_sin = torch.randn(1, 1, 1000, 16).bfloat16(), rope_cos_sin(1000, 16)
    assert rotate(x, cos_sin).dtype == torch.bfloat16
    torch.testing.assert_close(rotate(x, cos_sin).float(), rotate(x.float(), cos_sin), atol=0.0, rtol=2**-8)


@pytest.mark.parametrize("position", POSITIONS)
def test_only_without_positions_is_the_order_of_the_past_lost(position: str) -> None:
    model, ids = awake("modern", n_layer=1, position=position), torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad():
        moved = (model(ids)[0, -1] - model(ids[:, [2, 0, 3, 1, 4]])[0, -1]).abs().max().item()
    assert moved < 1e-5 if position == "none" else moved > 1e-3


# --- at the start ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 2, 32), (4, 4, 128), (6, 6, 384)], ids=str)
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_initial_loss_is_that_of_a_uniform_guess(family: str, shape: tuple[int, int, int]) -> None:
    """With the embedding tied, a fresh model that hardly mixes its tokens would predict each token to follow itself."""
    layers, heads, width = shape
    model = fresh(family, 65, n_layer=layers, n_head=heads, n_embd=width, context=64)
    with torch.no_grad():
        logits = model(some_ids(4, 64, vocab_size=65))
    targets = torch.randint(65, (4 * 64,), generator=torch.Generator().manual_seed(2))
    loss = F.cross_entropy(logits.flatten(0, 1), targets).item()
    assert loss == pytest.approx(math.log(65), abs=0.12)


def test_zero_init_makes_each_block_the_identity() -> None:
    model, x = fresh("modern"), torch.randn(2, 10, 16)
    with torch.no_grad():
        for block in model.blocks:
            assert torch.equal(block(x, model.cos_sin), x)
            block.attention.qkv.weight.fill_(1.0)  # whatever it reads, it writes nothing
            assert torch.equal(block(x, model.cos_sin), x)


def test_weights_start_as_in_gpt2() -> None:
    """N(0, 0.02), the projections into the residual stream smaller by sqrt(2 L), biases zero, gains one."""
    for name, p in fresh("classic", 200, n_layer=8, n_embd=128, context=200).named_parameters():
        if p.ndim == 2:
            residual = name.endswith(("proj.weight", "down.weight"))
            assert p.std().item() == pytest.approx(0.02 / (4 if residual else 1), rel=0.05), name
            assert abs(p.mean().item()) < 1e-3, name
        else:
            assert p.unique().tolist() == [0.0 if name.endswith("bias") else 1.0], name


def test_the_seed_decides_the_weights() -> None:
    first, again = (fresh("classic").state_dict() for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize("position", POSITIONS)
def test_a_state_dict_is_the_parameters_each_once(position: str) -> None:
    """No second name for the tied embedding and no buffers: a checkpoint holds each number once."""
    model = fresh("modern", position=position, norm="layernorm", bias=True)
    state = model.state_dict()
    assert set(state) == {name for name, _ in model.named_parameters(remove_duplicate=False)}
    assert len({tensor.data_ptr() for tensor in state.values()}) == len(state)
    other = GPT(model.config, V).eval()
    other.load_state_dict(state)
    assert torch.equal(other(some_ids(1, 10)), model(some_ids(1, 10)))


# --- learning ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_one_batch_is_memorised(family: str) -> None:
    model, ids = fresh(family, n_embd=32).train(), some_ids(4, 11)
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
def test_every_parameter_learns(family: str) -> None:
    model = awake(family)
    F.cross_entropy(model(some_ids(4, 10)).flatten(0, 1), some_ids(40)).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_dropout_acts_in_training_only(family: str) -> None:
    """On the embeddings, the attention weights and both branches; and nowhere once training is over."""
    model, ids = awake(family, dropout=0.3), some_ids(2, 10)
    plain = awake(family, dropout=0.0)
    assert torch.equal(model(ids), plain(ids))
    inputs: dict[str, Tensor] = {}
    dropped = {"embedding": model.dropout, "branches": model.blocks[0].dropout}
    for name, module in dropped.items():
        module.register_forward_hook(lambda m, args, out, name=name: inputs.update({name: out == 0}))
    model.train()
    assert not torch.equal(model(ids), model(ids))
    assert len(inputs) == 2
    assert all(0.2 < zeros.float().mean() < 0.4 for zeros in inputs.values())
    attention, x = model.blocks[0].attention, torch.randn(2, 10, 16)
    assert not torch.equal(attention(x, model.cos_sin), attention(x, model.cos_sin))


@pytest.mark.parametrize("training", [True, False])
def test_evaluating_puts_the_mode_back(training: bool) -> None:
    model = fresh("classic").train(training)
    with contextlib.suppress(KeyError), eval_mode(model):
        assert not any(module.training for module in model.modules())
        raise KeyError
    assert all(module.training == training for module in model.modules())


@pytest.mark.parametrize("family", ["classic", "modern"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_exact", "relu2", "swiglu"])
@pytest.mark.parametrize(
    ("norm", "position", "bias"),
    [("layernorm", "learned", True), ("rmsnorm", "rotary", False), ("layernorm", "none", False)],
)
def test_parameters_are_counted_without_a_model(
    family: str, activation: str, norm: str, position: str, bias: bool
) -> None:
    model = fresh(family, n_embd=36, n_head=2, activation=activation, norm=norm, position=position, bias=bias)
    vocab_size = model.token_embedding.num_embeddings
    assert count_parameters(model.config, vocab_size) == sum(p.numel() for p in model.parameters())
