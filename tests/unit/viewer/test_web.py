"""The page's JavaScript computes what minigpt computes, for models of random shape and switches."""

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from minigpt.config.resolve import contradictions
from minigpt.config.schema import FAMILIES, ModelConfig, RunConfig, SampleConfig
from minigpt.interpret.excerpt import glyph
from minigpt.interpret.extract import extract
from minigpt.model.gpt import GPT
from minigpt.model.load import Model, build_model
from minigpt.sampling.filters import weigh
from minigpt.viewer.packing_weights import dequantized, pack_weights

WEB = Path(__file__).resolve().parents[3] / "minigpt/viewer/web"
NODE = shutil.which("node")
MODELS = 50
CONFIG_FIELDS = (
    *("family", "n_layer", "n_head", "n_embd", "context", "position", "norm", "activation", "qk_norm", "bias"),
)


def random_config(rng: random.Random) -> ModelConfig:
    """Return a small model of random shape and switches. One in four is recurrent."""
    while True:
        shape = {"n_layer": rng.randint(1, 3), "context": rng.randint(8, 40)}
        if rng.random() < 0.25:
            family = rng.choice(("rnn", "gru", "lstm"))
            settings = {**FAMILIES[family], "n_embd": rng.randint(2, 40), "bias": rng.random() < 0.5}
        else:
            family, n_head = rng.choice(("classic", "modern")), rng.randint(1, 5)
            switches = {name: ModelConfig.model_fields[name].annotation for name in ("position", "norm", "activation")}
            settings = {name: rng.choice(get_args(choices)) for name, choices in switches.items()}
            settings |= {"n_head": n_head, "n_embd": n_head * rng.randint(1, 12)}
            settings |= {"bias": rng.random() < 0.5, "qk_norm": rng.random() < 0.5}
        config = ModelConfig(**{"family": family, **shape, **settings})
        if not contradictions(RunConfig(model=config)):
            return config


def random_model(config: ModelConfig, vocabulary: int) -> Model:
    """Return a model whose activations keep the size that they have in a trained model."""
    model = build_model(config, vocabulary).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=1.2 / parameter.size(1) ** 0.5)
            else:
                parameter.normal_(std=0.3).add_("norm" in name and name.endswith("weight"))
    return model


def filtered(logits: np.ndarray, rng: random.Random) -> dict[str, Any]:
    """Return random settings of the filters, and the probabilities that they give for logits (V)."""
    settings = SampleConfig(
        temperature=rng.choice((0.3, 0.8, 1.0, 2.0)),
        top_k=rng.choice((0, 0, 1, 3, 10, 100)),
        top_p=rng.choice((1.0, 1.0, 0.9, 0.5, 0.01)),
        min_p=rng.choice((0.0, 0.0, 0.05, 0.5, 1.0)),
    )
    exact = np.round(logits.astype(np.float64), rng.choice((0, 9)))  # rounding makes ties
    weights = weigh(exact[None], settings)[0]
    return {
        "logits": exact.tolist(),
        "settings": settings.model_dump(),
        "probabilities": (weights / weights.sum()).tolist(),
    }


@torch.no_grad()
def agreement_case(model: Model, ids: torch.Tensor, rng: random.Random) -> dict[str, Any]:
    """Return a model as the page gets it, with what PyTorch computes. The model keeps the weights of the page."""
    config = model.config
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    packed, rounded = pack_weights(weights), dequantized(weights)
    model.load_state_dict({name: torch.from_numpy(weight) for name, weight in rounded.items()})
    logits = model(ids[None])[0]
    case: dict[str, Any] = {
        "config": {name: getattr(config, name) for name in CONFIG_FIELDS},
        "weights": packed,
        "ids": ids.tolist(),
        "logits": logits.tolist(),
        "filters": [filtered(row, rng) for row in logits.numpy()],
    }
    if isinstance(model, GPT):
        heads = config.n_layer * config.n_head
        case["muted"] = rng.sample(range(heads), rng.randint(1, heads))
        case["attention"] = extract(model, ids.numpy()).weights.tolist()
        kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        for layer, head in (divmod(muted, config.n_head) for muted in case["muted"]):
            columns = slice(head * config.head_size, (head + 1) * config.head_size)
            model.blocks[layer].attention.proj.weight[:, columns] = 0
        case["mutedLogits"] = model(ids[None])[0].tolist()
        model.load_state_dict(kept)
    return case


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    rng, found = random.Random(0), []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for _ in range(MODELS):
            config, vocabulary = random_config(rng), rng.randint(2, 30)
            model = random_model(config, vocabulary)
            ids = torch.randint(vocabulary, (rng.randint(1, config.context),))
            found.append(agreement_case(model, ids, rng))
    return found


def test_the_cases_have_every_switch(cases: list[dict[str, Any]]) -> None:
    for name in ("family", "position", "norm", "activation", "qk_norm", "bias"):
        annotation = ModelConfig.model_fields[name].annotation
        choices = {False, True} if annotation is bool else set(get_args(annotation))
        assert {case["config"][name] for case in cases} == choices


@pytest.fixture(scope="module")
def node() -> list[str]:
    """Return the command that runs TypeScript."""
    if NODE is None or not (WEB / "node_modules/tsx").exists():
        pytest.skip("needs Node, and `npm ci` in minigpt/viewer/web")
    return [NODE, "--import", "tsx"]


def test_the_page_shows_characters_as_python_does(node: list[str]) -> None:
    """The marks are of the categories Mn, Mc and Me."""
    shown = [*map(chr, range(1, 0x180)), *"\u0301\u0903\u20dd\u200f\u2028\u3000\u3164\u2800\ue000\ufeff我😀"]
    script = "import { glyph } from './src/letters.ts';"
    script += "console.log(JSON.stringify([...process.argv[1]].map(glyph)))"
    command = [*node, "--input-type=module", "-e", script, "".join(shown)]
    ended = subprocess.run(command, cwd=WEB, capture_output=True, text=True, encoding="utf-8", check=True)
    assert json.loads(ended.stdout) == [glyph(character) for character in shown]


def test_the_page_agrees_with_pytorch(cases: list[dict[str, Any]], node: list[str], tmp_path: Path) -> None:
    (tmp_path / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    command = [*node, "test/agree.ts", str(tmp_path / "cases.json")]
    ended = subprocess.run(command, cwd=WEB, capture_output=True, text=True, encoding="utf-8", timeout=300)
    assert ended.returncode == 0, ended.stderr
    differences = json.loads(ended.stdout)
    print(differences)
    limits = {
        "logits": 1e-4,
        "attention": 1e-4,
        "muted": 1e-4,
        "incremental": 0,
        "without": 0,
        "filters": 1e-12,
    }
    assert differences.keys() == limits.keys()
    assert {name: value for name, value in differences.items() if value > limits[name]} == {}
