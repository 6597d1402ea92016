"""The NumPy engine computes what the torch model computes."""

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from small_models import SWITCHES, switch_names
from torch_engine import TorchEngine

from minigpt.config.resolve import contradictions
from minigpt.config.schema import ModelConfig, RunConfig, SampleConfig
from minigpt.config.shapes import parameter_shapes
from minigpt.model.gpt import GPT
from minigpt.model.load import numpy_engine
from minigpt.sampling import engine
from minigpt.sampling.generate import generate, generate_ids
from minigpt.text.tokenizer import CharTokenizer


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Keep torch from waiting for a second thread in each of thousands of small operations."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def random_model(vocab_size: int = 11, std: float = 0.4, seed: int = 0, **changes: Any) -> GPT:
    """Return a model with weights that are large in every parameter, gains and biases too."""
    config = ModelConfig(**{"n_layer": 2, "n_head": 2, "n_embd": 16, "context": 12, **changes})
    assert not contradictions(RunConfig(model=config))
    model, generator = GPT(config, vocab_size).eval(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=std, generator=generator)
    return model


def relative_error(model: GPT, batch: int = 3, prompt: int = 5) -> float:
    """Return the largest error of the engine's logits over a whole context, relative to the largest logit."""
    T, rng = model.config.context, np.random.default_rng(0)
    ids = rng.integers(0, model.token_embedding.num_embeddings, (batch, T))
    prompt, numpy_model = min(prompt, T), numpy_engine(model)
    logits = [numpy_model.start(ids[:, :prompt]), *(numpy_model.step(ids[:, t]) for t in range(prompt, T))]
    with torch.no_grad():
        expected = model(torch.tensor(ids)).numpy()[:, prompt - 1 :]
    return float(np.abs(np.stack(logits, 1) - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("switches", SWITCHES, ids=switch_names)
def test_every_combination_of_switches_matches_the_torch_model(switches: dict[str, Any]) -> None:
    assert relative_error(random_model(**switches)) < 1e-5


@pytest.mark.parametrize(
    "shape",
    [
        {"n_layer": 1, "n_head": 1, "n_embd": 2, "context": 1},
        {"vocab_size": 1},
        {"n_head": 16, "position": "learned"},  # one number in a head
        {"n_head": 1, "n_embd": 6, "context": 3},
        {"context": 300, "prompt": 290, "batch": 2},  # several chunks of a prompt
        {"context": 80, "prompt": 1, "batch": 1},
        {"n_embd": 192, "n_head": 6, "n_layer": 3, "std": 0.08},  # several blocks of columns
        {"n_embd": 250, "n_head": 5, "batch": 10, "std": 0.06},
        {"batch": 11},  # more rows than blocks are for
        {"std": 2.0, "activation": "gelu"},  # attention that sees one token
        {"vocab_size": 300, "std": 0.02},  # attention that sees all alike
    ],
    ids=str,
)
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_odd_shapes_match_the_torch_model(norm: str, shape: dict[str, Any]) -> None:
    arguments = {key: shape[key] for key in ("batch", "prompt") if key in shape}
    changes = {key: value for key, value in shape.items() if key not in arguments}
    assert relative_error(random_model(norm=norm, bias=True, **changes), **arguments) < 1e-5


@pytest.mark.parametrize("row_by_row", [False, True])
@pytest.mark.parametrize("size", [1, 65, 401, 1009, 1536, 2003])
def test_blocks_are_wide_for_any_number_of_columns(
    size: int, row_by_row: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prime vocabulary had blocks of one column, and took up to 2.4 times as long."""
    monkeypatch.setattr(engine, "ROW_BY_ROW", row_by_row)
    weight = np.random.default_rng(0).normal(size=(size, 256)).astype(np.float32)
    linear = engine.Linear(weight, np.arange(size, dtype=np.float32))
    assert min(size, 195) <= linear.blocks.shape[2] <= 390
    for rows in (1, 4, 11):
        x = np.random.default_rng(rows).normal(size=(rows, 256)).astype(np.float32)
        np.testing.assert_allclose(linear(x), x @ weight.T + np.arange(size), rtol=1e-4, atol=1e-3)


def test_start_forgets_what_came_before_and_weights_stay_as_they_are() -> None:
    model = random_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    numpy_model, ids = numpy_engine(model), np.arange(8)[None] % 11
    first = numpy_model.start(ids)
    numpy_model.step(np.array([3]))
    numpy_model.start(ids[:, ::-1])
    np.testing.assert_array_equal(numpy_model.start(ids), first)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_erf_is_accurate_to_1e_7() -> None:
    x = np.linspace(-7, 7, 50_001).astype(np.float32)
    found = engine.erf(x)
    assert np.abs(found - [math.erf(value) for value in x.tolist()]).max() < 1e-7


def test_the_shapes_are_those_of_the_torch_model() -> None:
    for switches in SWITCHES:
        model = random_model(**switches)
        assert parameter_shapes(model.config, 11) == {key: tuple(t.shape) for key, t in model.state_dict().items()}


@pytest.mark.slow
def test_the_same_text_as_the_torch_model_for_random_settings() -> None:
    """For 200 random models, prompts and settings, below and beyond the context."""
    rng, differences = random.Random(1), 0
    tokenizer = CharTokenizer("abcdefghij\n")
    for seed in range(200):
        n_head = rng.choice((1, 2, 4))
        shape = {"n_layer": rng.randint(1, 3), "n_head": n_head, "n_embd": n_head * rng.choice((2, 4, 10))}
        model = random_model(
            std=rng.choice((0.1, 0.4, 1.0)), seed=seed, context=rng.choice((1, 2, 5, 16, 40)), **shape,
            **rng.choice(SWITCHES),
        )  # fmt: skip
        prompt = "".join(rng.choices(tokenizer.chars, k=rng.choice((1, 3, 10, 70))))
        settings = SampleConfig(
            length=rng.choice((1, 10, 30)), temperature=rng.choice((0.0, 0.5, 1.0, 3.0)), seed=seed,
            top_k=rng.choice((0, 0, 3)), top_p=rng.choice((1.0, 1.0, 0.8)), min_p=rng.choice((0.0, 0.0, 0.1)),
        )  # fmt: skip
        texts = []
        for one in (numpy_engine(model), TorchEngine(model)):
            chars = list(generate(one, tokenizer, prompt, settings, num_samples=seed % 4 + 1))
            texts.append([(char.sample, char.text) for char in chars])
            assert len(chars) == settings.length * (seed % 4 + 1)
        differences += texts[0] != texts[1]
    assert differences == 0


def test_the_reference_turns_dropout_off_and_training_continues() -> None:
    model = random_model(dropout=0.5).train()
    settings, prompt = SampleConfig(length=5), np.array([1, 2])
    tokens = [[ids.tolist() for ids, _ in generate_ids(TorchEngine(model), prompt, settings)] for _ in range(2)]
    assert tokens[0] == tokens[1] == [ids.tolist() for ids, _ in generate_ids(numpy_engine(model), prompt, settings)]
    assert all(module.training for module in model.modules())
