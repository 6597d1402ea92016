"""The encoder-decoder of the course: its masks, its attention, its training, and the page about it."""

import importlib.util
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch
from torch import Tensor

COURSE = Path(__file__).resolve().parents[2] / "docs/course"
PAGE = (COURSE / "encoder-decoder.md").read_text(encoding="utf-8")
RECORD = json.loads((COURSE / "encoder-decoder.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    """Return docs/course/encoder_decoder.py as a module that can import the file beside it. Use one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(COURSE)
        spec = importlib.util.spec_from_file_location("encoder_decoder", COURSE / "encoder_decoder.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    sys.modules.pop("encoder_decoder_figures", None)
    torch.set_num_threads(threads)


def small(example: Any, name: str, width: int = 16) -> torch.nn.Module:
    torch.manual_seed(1)
    model: torch.nn.Module = {
        "LSTM": lambda: example.ContextVector(width, 8),
        "LSTM with attention": lambda: example.AdditiveAttention(width, 8),
        "transformer": lambda: example.Transformer(width, 2, 2),
    }[name]()
    return model


NAMES = ("LSTM", "LSTM with attention", "transformer")


def changed(before: Tensor, after: Tensor) -> list[bool]:
    """Return for each position whether the vectors there differ, for two tensors (1, T, C)."""
    return [not torch.equal(a, b) for a, b in zip(before[0], after[0], strict=True)]


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_the_decoder_cannot_see_later_targets(example: Any, name: str) -> None:
    model = small(example, name)
    source, target, _ = example.make_batch(6, 1, torch.Generator().manual_seed(0))
    other = target.clone()
    other[0, 4] = (target[0, 4] + 1) % 26
    memory = model.encode(source)
    before, after = (model.decode(memory, letters)[0] for letters in (target, other))
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert ((before - after).abs().amax(2) > 1e-4).tolist() == [[False] * 4 + [True] * 3]


@pytest.mark.parametrize("name", ["LSTM with attention", "transformer"])
@torch.no_grad()
def test_each_output_of_the_encoder_depends_on_each_letter(example: Any, name: str) -> None:
    model = small(example, name)
    source, _, _ = example.make_batch(6, 1, torch.Generator().manual_seed(0))
    for position in (0, 5):
        other = source.clone()
        other[0, position] = (source[0, position] + 1) % 26
        found = [model.encode(letters) for letters in (source, other)]
        before, after = (memory if name == "transformer" else memory[0] for memory in found)
        assert all(changed(before, after))


@torch.no_grad()
def test_cross_attention_is_the_plain_formula(example: Any) -> None:
    torch.manual_seed(0)
    layer = example.CrossAttention(example.ModelConfig(n_embd=12, n_head=3)).double()
    x, memory = torch.randn(1, 4, 12).double(), torch.randn(1, 7, 12).double()
    output, weights = layer(x, memory)
    assert weights.shape == (1, 3, 4, 7)
    torch.testing.assert_close(weights.sum(3), torch.ones(1, 3, 4).double())
    w_k, w_v = layer.key_value.weight.chunk(2)
    for t in range(4):
        heads = []
        for head in range(3):
            rows = slice(4 * head, 4 * head + 4)
            q = layer.query.weight[rows] @ x[0, t]
            scores = [float(q @ (w_k[rows] @ vector)) / math.sqrt(4) for vector in memory[0]]
            mine = [math.exp(score) / sum(map(math.exp, scores)) for score in scores]
            torch.testing.assert_close(weights[0, head, t].tolist(), mine)
            heads.append(sum(w * (w_v[rows] @ vector) for w, vector in zip(mine, memory[0], strict=True)))
        torch.testing.assert_close(output[0, t], layer.proj.weight @ torch.cat(heads))


@torch.no_grad()
def test_additive_attention_is_the_plain_formula(example: Any) -> None:
    model = small(example, "LSTM with attention").double()
    source, target, _ = example.make_batch(5, 1, torch.Generator().manual_seed(0))
    states, _, h, _ = memory = model.encode(source)
    weights = model.decode(memory, target)[1][0]  # (T, S)
    torch.testing.assert_close(weights.sum(1), torch.ones(6).double())
    key = [model.key.weight @ state + model.key.bias for state in states[0]]
    scores = [float(model.score.weight[0] @ torch.tanh(model.query.weight @ h[0] + k)) for k in key]
    torch.testing.assert_close(weights[0].tolist(), [math.exp(s) / sum(map(math.exp, scores)) for s in scores])


@pytest.mark.parametrize("name", NAMES)
def test_training_is_reproducible_and_lowers_the_loss(example: Any, name: str) -> None:
    first, again = (example.train(small(example, name), 1, 0.02, 60, range(2, 4))[0] for _ in range(2))
    assert first == again
    assert sum(first[-10:]) < 0.9 * sum(first[:10])


def test_one_pass_tells_what_greedy_decoding_gets_right(example: Any) -> None:
    model = small(example, "LSTM", 32)
    example.train(model, 1, 0.02, 150, range(2, 4))
    words, _, _ = example.make_batch(3, 50, torch.Generator().manual_seed(2003))
    texts = ["".join(chr(ord("a") + i) for i in word[:-1]) for word in words.tolist()]
    written = [example.write(model, text)[0] == text[::-1] for text in texts]
    assert 0 < sum(written) < 50
    assert example.accuracy(model, 3, 1, 50) == sum(written) / 50


@pytest.fixture
def tiny(example: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the example with small models, a few steps and short words."""
    rivals = {name: (lambda name=name: small(example, name), 0.01, 10) for name in NAMES}
    monkeypatch.setattr(example, "RIVALS", rivals)
    monkeypatch.setattr(example, "TRAINED", range(2, 4))
    monkeypatch.setattr(example, "TESTED", range(2, 6))
    monkeypatch.setattr(example, "EXAMPLES", ("abc", "abcde"))
    return example


def test_the_command_prints_a_table_and_draws_two_figures(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    matplotlib.use("Agg")
    monkeypatch.setattr(sys, "argv", ["encoder_decoder.py", "--plot", str(tmp_path)])
    tiny.main()
    printed = capsys.readouterr().out
    for name in NAMES:
        assert re.search(rf"^{name}: \d+ parameters, 10 steps in ", printed, re.MULTILINE)
        assert re.search(rf"^{name} +\d+% +\d+%$", printed, re.MULTILINE)
    assert {path.name for path in tmp_path.iterdir()} == {
        "encoder-decoder-accuracy.png",
        "encoder-decoder-alignment.png",
    }


def runs_of(name: str) -> list[dict[str, Any]]:
    return [run for run in RECORD["runs"] if run["model"] == name]


def share(name: str, length: int) -> str:
    found = [run["accuracy"][str(length)] for run in runs_of(name)]
    return f"{sum(found) / len(found):.0%}"


def seconds(name: str) -> float:
    return sum(run["seconds"] for run in runs_of(name)) / 3


def test_the_numbers_on_the_page_are_the_records() -> None:
    head, *rows = re.findall(r"^\| (letters|LSTM|LSTM with attention|transformer) \| (\d.*) \|$", PAGE, re.MULTILINE)
    lengths = [int(cell) for cell in head[1].split(" | ")]
    assert lengths[-1] > 16
    accuracy, training = rows[:3], rows[3:]
    assert accuracy == [(name, " | ".join(share(name, length) for length in lengths)) for name in NAMES]
    for (name, cells), expected in zip(training, NAMES, strict=True):
        run = runs_of(name)[0]
        facts = (f"{run['parameters']:,}", f"{run['rate']:g}", f"{run['steps']:,}", f"{seconds(name):.0f}")
        assert (name, cells) == (expected, " | ".join(facts))
