"""The recurrent families: their formulas, their NumPy engines, and what they share with the transformer."""

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor, nn
from torch_engine import TorchEngine

from minigpt.config.presets import read_preset
from minigpt.config.resolve import flatten, parse_overrides, resolve
from minigpt.config.schema import FAMILIES, RECURRENT, ModelConfig, SampleConfig
from minigpt.config.shapes import parameter_shapes
from minigpt.errors import ConfigError
from minigpt.model.load import build_model, numpy_engine
from minigpt.model.recurrent import Recurrent
from minigpt.model.size import training_flops
from minigpt.sampling.generate import generate_ids

VOCABULARY = 11


def random_model(family: str, seed: int = 0, **changes: Any) -> Recurrent:
    """Return a model whose weights are large in every parameter."""
    shape = {"n_layer": 2, "n_embd": 6, "context": 5, **FAMILIES[family], **changes}
    torch.manual_seed(seed)
    model = build_model(ModelConfig(family=family, **shape), VOCABULARY)
    assert isinstance(model, Recurrent)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7)
    return model.eval()


recurrent_configs = st.builds(
    lambda family, **shape: ModelConfig(family=family, **{**FAMILIES[family], **shape}),
    st.sampled_from([*RECURRENT]),
    n_layer=st.integers(1, 3),
    n_embd=st.integers(1, 9),
    context=st.integers(1, 9),
    dropout=st.sampled_from([0.0, 0.5]),
    bias=st.booleans(),
)
sample_options = st.builds(
    SampleConfig,
    length=st.integers(1, 20),
    temperature=st.just(0.0) | st.floats(0.3, 3),
    top_k=st.integers(0, 5),
    top_p=st.sampled_from([1.0, 0.9]),
    seed=st.integers(0, 2**63 - 1),
)


def lstm_by_hand(layer: nn.LSTM, inputs: Tensor) -> Tensor:
    """Return the outputs (T, C) of an LSTM layer for inputs (T, C), by the textbook's equations, gate by gate."""
    (W_i, W_f, W_g, W_o), (U_i, U_f, U_g, U_o) = layer.weight_ih_l0.chunk(4), layer.weight_hh_l0.chunk(4)
    b_i, b_f, b_g, b_o = (layer.bias_ih_l0 + layer.bias_hh_l0).chunk(4)
    h = c = torch.zeros(inputs.size(1))
    outputs = []
    for x in inputs:
        input_gate = torch.sigmoid(W_i @ x + U_i @ h + b_i)
        forget_gate = torch.sigmoid(W_f @ x + U_f @ h + b_f)
        output_gate = torch.sigmoid(W_o @ x + U_o @ h + b_o)
        c = forget_gate * c + input_gate * torch.tanh(W_g @ x + U_g @ h + b_g)
        h = output_gate * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs)


@torch.no_grad()
def test_an_lstm_is_the_plain_loop_over_its_steps() -> None:
    model, ids = random_model("lstm"), torch.randint(VOCABULARY, (9,))
    first = lstm_by_hand(model.blocks[0], model.token_embedding.weight[ids] * math.sqrt(6))
    second = first + lstm_by_hand(model.blocks[1], first)
    expected = second @ model.token_embedding.weight.T
    torch.testing.assert_close(model(ids[None])[0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("family", RECURRENT)
@torch.no_grad()
def test_the_engine_computes_what_the_model_computes(family: str, bias: bool) -> None:
    for layers in (1, 3):
        model = random_model(family, bias=bias, n_layer=layers)
        ids = torch.randint(VOCABULARY, (3, 20))
        engine = numpy_engine(model)
        logits = [engine.start(ids[:, :4].numpy()), *(engine.step(ids[:, t].numpy()) for t in range(4, 20))]
        np.testing.assert_allclose(np.stack(logits, 1), model(ids)[:, 3:].numpy(), rtol=1e-6, atol=1e-5)
        parts = 2 if family == "lstm" else 1  # only an LSTM has a cell
        assert [state.shape for state in engine.states] == [(parts, 3, 6)] * layers


@given(data=st.data())
@settings(max_examples=25)
def test_any_recurrent_model_samples_what_it_computes_from_the_whole_text(data: st.DataObject) -> None:
    """The NumPy engine keeps its state; torch reads the whole text again for each token."""
    config = data.draw(recurrent_configs)
    model = random_model(config.family, data.draw(st.integers(0, 99)), **config.model_dump(exclude={"family"}))
    for parameter in model.parameters():
        parameter.data *= 0.5  # larger weights amplify rounding errors with each token
    prompt = np.array(data.draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12)))
    options = data.draw(sample_options)
    ids = np.stack([prompt, prompt[::-1]])
    np.testing.assert_allclose(numpy_engine(model).start(ids), TorchEngine(model).start(ids), atol=1e-4)
    ours, torchs = (
        [ids.tolist() for ids, _ in generate_ids(engine, prompt, options, num_samples=2)]
        for engine in (numpy_engine(model), TorchEngine(model))
    )
    assert ours == torchs


@pytest.mark.parametrize("family", RECURRENT)
@torch.no_grad()
def test_the_model_does_not_see_the_future_and_sees_all_of_the_past(family: str) -> None:
    model, ids = random_model(family), torch.randint(VOCABULARY, (1, 12))
    for position in range(12):
        changed = ids.clone()
        changed[0, position] = (ids[0, position] + 1) % VOCABULARY
        moved = (model(changed) - model(ids)).abs().amax((0, 2)) > 1e-7
        assert moved.tolist() == [t >= position for t in range(12)]


@pytest.mark.parametrize("family", RECURRENT)
def test_shapes_are_known_without_building_the_model(family: str) -> None:
    for bias in (True, False):
        model = random_model(family, bias=bias)
        assert {name: tuple(p.shape) for name, p in model.state_dict().items()} == parameter_shapes(
            model.config, VOCABULARY
        )
        matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2)
        assert training_flops(model.config, VOCABULARY) == 6 * matrices


def test_the_forget_gates_of_a_new_lstm_are_open() -> None:
    torch.manual_seed(0)
    model = build_model(ModelConfig(family="lstm", n_embd=50, **FAMILIES["lstm"]), VOCABULARY)
    gates = torch.stack([parameter for name, parameter in model.named_parameters() if name.endswith("bias_ih_l0")])
    assert (gates.view(-1, 4, 50)[:, 1] == 1).all()
    assert gates.view(-1, 4, 50)[:, [0, 2, 3]].abs().max() < 0.2


@pytest.mark.parametrize("family", RECURRENT)
@torch.no_grad()
def test_autocast_on_a_cpu_leaves_the_layers_in_float32(family: str) -> None:
    """Only the product with the embeddings is rounded to bfloat16."""
    model, ids = random_model(family, n_embd=32), torch.randint(VOCABULARY, (4, 64))
    (layer, *_), inputs = model.blocks, []
    layer.register_forward_hook(lambda block, args, out: inputs.append(out[0]))
    exact = model(ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(ids)
    assert torch.equal(*inputs)
    targets = torch.randint(VOCABULARY, (4, 64)).flatten()
    losses = [F.cross_entropy(logits.float().flatten(0, 1), targets).item() for logits in (exact, rounded)]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


def test_dropout_is_off_in_evaluation_and_on_in_training() -> None:
    model, ids = random_model("gru", dropout=0.5), torch.randint(VOCABULARY, (2, 5))
    assert torch.equal(model(ids), model(ids))
    model.train()
    assert not torch.equal(model(ids), model(ids))
    single = random_model("gru", dropout=0.5, n_layer=1).train()
    single.token_embedding.weight.data = torch.eye(VOCABULARY, 6)  # the logits are the output of the layer
    dropped = (single(torch.randint(VOCABULARY, (20, 5)))[..., :6] == 0).float().mean()
    assert 0.4 < dropped < 0.6


# --- settings ------------------------------------------------------------------------------------------


def test_the_preset_of_a_rival_has_as_many_parameters() -> None:
    ours, gpts = (
        sum(map(math.prod, parameter_shapes(resolve(*read_preset(preset)).config.model, 65).values()))
        for preset in ("shakespeare-lstm", "shakespeare-small")
    )
    assert ours == pytest.approx(gpts, rel=0.02)


@pytest.mark.parametrize("setting", ["model.n_head=2", "model.position=rotary", "model.qk_norm=true"])
def test_settings_of_attention_are_refused(setting: str) -> None:
    key = setting.partition("=")[0]
    with pytest.raises(ConfigError, match=f"{key} does not apply to model.family lstm; remove it"):
        resolve(parse_overrides(["model.family=lstm", setting]))


def test_a_later_family_discards_what_a_preset_says_of_attention() -> None:
    preset = ("preset p", {"model.n_head": 4, "model.n_embd": 30, "model.position": "learned", "model.bias": False})
    resolved = resolve(preset, parse_overrides(["model.family=gru"]))
    assert resolved.config.model.n_embd == 30
    assert (resolved.config.model.bias, resolved.sources["model.bias"]) == (True, "family gru")
    assert not resolve(preset, parse_overrides(["model.family=gru", "model.bias=false"])).config.model.bias
    assert resolved.sources["model.n_head"] == "not used"
    assert (resolved.config.optim.lr, resolved.sources["optim.lr"]) == (RECURRENT["gru"], "family gru")
    again = resolve(("checkpoint", flatten(resolved.config)))
    assert again.config == resolved.config


@pytest.mark.parametrize("family", ["classic", "modern"])
def test_a_later_transformer_has_its_own_defaults(family: str) -> None:
    back = resolve(("preset p", {"model.family": "gru"}), parse_overrides([f"model.family={family}"]))
    assert back == resolve(("", {}), parse_overrides([f"model.family={family}"]))
