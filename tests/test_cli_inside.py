"""`minigpt attention` as its users meet it, and what a run shows in TensorBoard of its heads."""

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from minigpt.checkpoint import load_checkpoint
from minigpt.cli import main
from minigpt.inside.extract import extract

VERSE = "Rough winds do shake the darling buds of May,\nand summer's lease hath all too short a date.\n" * 20
SETTINGS = {"model.n_layer": 2, "model.n_head": 2, "model.n_embd": 16, "model.context": 32, "train.steps": 4} | {
    "train.eval_every": 2, "train.batch_size": 4, "sample.preview": 0, "runtime.dtype": "float32",
}  # fmt: skip


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of a UserError."""
        assert (self.code, self.out) == (1, ""), self
        last = self.err.splitlines()[-1]
        assert last.startswith("minigpt: ")
        return last.removeprefix("minigpt: ")


Cli = Callable[..., Done]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run in it."""
    folder = tmp_path_factory.mktemp("inside")
    (folder / "verse.txt").write_text(VERSE, encoding="utf-8")
    settings = [part for key, value in SETTINGS.items() for part in ("-s", f"{key}={value}")]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["minigpt", "train", "verse.txt", "--name", "verse", *settings])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
    return folder


@pytest.fixture
def cli(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.chdir(folder)

    def call(*arguments: object, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "argv", ["minigpt", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        code = end.value.code or 0
        assert isinstance(code, int)
        return Done(code, *capsys.readouterr())

    return call


def test_a_table_of_all_heads_beside_uniform_attention(cli: Cli) -> None:
    done = cli("attention")
    head, uniform, *heads = done.out.splitlines()
    assert head.split()[:3] == ["head", "kind", "previous"]
    assert uniform.split()[0] == "uniform"
    assert [line.split()[0] for line in heads] == ["0.0", "0.1", "1.0", "1.1"]
    assert "32 tokens, validation split from 0; fast path and formula agree to " in done.err


@pytest.mark.parametrize(
    ("choice", "heads"),
    [(["--layer", 1], ["1.0", "1.1"]), (["--head", 0], ["0.0", "1.0"]), (["--layer", 0, "--head", 1], ["0.1"])],
)
def test_a_layer_a_head_or_one_head(cli: Cli, choice: list[Any], heads: list[str]) -> None:
    assert [line.split()[0] for line in cli("attention", "verse", *choice).out.splitlines()[2:]] == heads


def test_the_record_is_what_the_model_computes(cli: Cli, folder: Path, tmp_path: Path) -> None:
    text, record = "hath all too short", tmp_path / "a.npz"
    found = json.loads(cli("attention", "--text", text, "--npz", record, "--layer", 1, "--head", 0, "--json").out)
    loaded = load_checkpoint(folder / "runs/verse")
    seen = extract(loaded.model, loaded.tokenizer.encode(text))
    with np.load(record) as arrays:
        for name in ("ids", "weights", "q", "k", "v", "heads", "stream", "logits", "written"):
            assert np.array_equal(arrays[name], getattr(seen, name).numpy()), name
        assert "".join(arrays["characters"]) == text
        previous = arrays["score/previous"][1, 0]
        assert arrays["weights"].dtype == np.float32
    assert found["text"] == text
    assert torch.equal(torch.tensor(found["weights"]), seen.weights[1, 0])
    (head,) = found["heads"]
    assert (head["layer"], head["head"]) == (1, 0)
    assert head["scores"]["previous"]["value"] == previous
    assert head["scores"]["next"] == {"value": 0.0, "uniform": 0.0, "lift": None}


def test_pictures_of_all_heads_and_of_one(cli: Cli, tmp_path: Path) -> None:
    grid, one = tmp_path / "grid.png", tmp_path / "one.png"
    assert cli("attention", "--png", grid).code == 0
    assert cli("attention", "--png", one, "--layer", 0, "--head", 0).code == 0
    with Image.open(grid) as image:
        assert image.width == image.height
    with Image.open(one) as image:
        assert image.size == (32 * 32, 32 * 32)


def test_where_a_query_looks(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    done = cli("attention", "--text", "short date", "--query", 4, "--layer", 0, "--head", 0)
    lines = done.out.splitlines()
    assert lines[0] == "query 4 t, layer 0 head 0"
    assert sorted(int(line.split()[0]) for line in lines[2:]) == [0, 1, 2, 3, 4]
    assert sum(float(line.split()[-1]) for line in lines[2:]) == pytest.approx(1, abs=1e-3)
    coloured = cli("attention", "--text", "short date", "--tty").out
    assert "mean of 4 heads" in coloured
    assert "\x1b[48;2;" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    plain = cli("attention", "--text", "short date", "--tty").out
    assert "\x1b" not in plain
    assert plain.splitlines()[1] == "short date"
    assert plain.splitlines()[2].endswith("^")


def test_a_longer_text_shows_its_last_part_and_says_so(cli: Cli) -> None:
    done = cli("attention", "--file", "verse.txt", "--json")
    assert json.loads(done.out)["text"] == VERSE[-32:]
    assert json.loads(done.out)["left_out"] == len(VERSE) - 32
    assert f"looking at the last 32 of {len(VERSE):,} tokens" in cli("attention", "--file", "verse.txt").err
    few = json.loads(cli("attention", "--file", "-", "--max-chars", 5, "--json", stdin=b"too short").out)
    assert few["text"] == "short"


def test_the_validation_split_from_anywhere(cli: Cli) -> None:
    split = VERSE[int(0.9 * len(VERSE)) :]
    assert json.loads(cli("attention", "--val", 7, "--json").out)["text"] == split[7 : 7 + 32]
    assert json.loads(cli("attention", "--json").out)["text"] == split[:32]


def test_a_run_whose_text_is_gone_looks_at_one_of_its_own(cli: Cli, folder: Path, tmp_path: Path) -> None:
    text = folder / "verse.txt"
    text.rename(tmp_path / "away.txt")
    try:
        done = cli("attention", "--json")
        assert json.loads(done.out)["source"] == "drawn by the model itself"
        assert "looking at a text that the model draws itself" in done.err
        assert "verse.txt" in cli("attention", "--val", 0).error
    finally:
        (tmp_path / "away.txt").rename(text)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--layer", 2], "--layer 2: there are 2 layers, counted from 0"),
        (["--head", -1], "--head -1: there are 2 heads, counted from 0"),
        (["--text", "all", "--query", 3], "--query 3: there are 3 tokens of the text, counted from 0"),
        (["--text", ""], "there is nothing to look at: the text is empty"),
        (["--text", "a", "--val", 0], "--text, --file and --val exclude each other"),
        (["--val", 10_000], "--val 10000: the validation split has 184 tokens, counted from 0"),
        (["--max-chars", 0], "--max-chars 0: expected 1 to 512"),
        (["--png", "no/such/folder.png"], "cannot write no/such/folder.png: No such file or directory"),
        (["--unknown", "guess"], "--unknown guess: expected error, skip or replace"),
        (["--checkpoint", "77"], "77"),
    ],
)
def test_what_cannot_be_is_one_line(cli: Cli, arguments: list[Any], problem: str) -> None:
    assert problem in cli("attention", "verse", *arguments).error


def test_unknown_characters_are_as_in_sample(cli: Cli) -> None:
    assert "'§' (U+00A7 SECTION SIGN) at position 2" in cli("attention", "--text", "a§d").error
    assert json.loads(cli("attention", "--text", "a§d", "--unknown", "skip", "--json").out)["text"] == "ad"


def test_an_untrained_checkpoint_is_said_to_be_one(cli: Cli, folder: Path) -> None:
    assert "not trained" not in cli("attention").err


def test_heads_can_be_watched_in_tensorboard(folder: Path) -> None:
    events = EventAccumulator(str(folder / "runs/verse/tensorboard"), size_guidance={"images": 0}).Reload()
    assert [image.step for image in events.Images("attention/grid")] == [0, 2, 4]
    with Image.open(io.BytesIO(events.Images("attention/grid")[0].encoded_image_string)) as image:
        image.load()
        assert image.width == image.height
    loaded = load_checkpoint(folder / "runs/verse", "last")
    ids = loaded.tokenizer.encode(VERSE[int(0.9 * len(VERSE)) :][:32])
    seen = extract(loaded.model, ids)
    previous = seen.weights.diagonal(-1, 2, 3).mean(-1).max()
    (*_, last) = events.Scalars("heads/previous")
    assert (last.step, last.value) == (4, pytest.approx(previous.item(), abs=1e-6))
    assert {"attention/distance/layer 0", "attention/entropy/layer 1", "heads/induction"} <= {*events.Tags()["scalars"]}
