"""`minigpt attention`, and the attention that `minigpt train` logs to TensorBoard."""

import io
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from command_line import VERSE, Cli
from pages import page_data
from PIL import Image
from random_models import cells
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from minigpt.interpret import images
from minigpt.interpret.extract import Activations, extract
from minigpt.interpret.probe import attention_probe
from minigpt.interpret.scores import PATTERNS, head_scores
from minigpt.model.load import load_model
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.text.dataset import TokenDataset

pytestmark = pytest.mark.usefixtures("folder")
SPLIT = VERSE[int(0.9 * len(VERSE)) :]
"""The validation split."""


def split_activations(folder: Path, checkpoint: str | None = None) -> Activations:
    """Return the activations of a checkpoint at the start of the validation split."""
    loaded = load_checkpoint(folder / "runs/verse", checkpoint)
    return extract(load_model(loaded), loaded.tokenizer.encode(SPLIT[:32]))


@pytest.mark.parametrize(
    ("choice", "heads"),
    [(["--layer", 1], ["1.0", "1.1"]), (["--head", 0], ["0.0", "1.0"]), (["--layer", 0, "--head", 1], ["0.1"])],
)
def test_layer_and_head_select_rows(cli: Cli, choice: list[Any], heads: list[str]) -> None:
    assert [line.split()[0] for line in cli("attention", "verse", *choice).out.splitlines()[1:]] == heads


def test_the_summary_names_the_strongest_pattern_beside_its_baseline(cli: Cli) -> None:
    scores = {(head["layer"], head["head"]): head["scores"] for head in cli("attention", "--json").json["heads"]}
    head, *rows = cli("attention").out.splitlines()
    assert head.split("  ")[0] == "head"
    for row in rows:
        place, phrase, pattern, weight, uniform, distance = re.split("  +", row)
        layer, number = map(int, place.split("."))
        found = scores[layer, number]
        patterns = [name for name in PATTERNS if found[name]["value"] is not None]
        best = max(patterns, key=lambda name: found[name]["value"] - found[name]["uniform"])
        assert (pattern, weight) == (best, f"{found[best]['value']:.2f}"), phrase
        assert uniform == f"{found[best]['uniform']:.2f}"
        assert distance == f"{found['distance']['value']:.2f}"


@pytest.mark.parametrize("text", ["a", "ab"])
def test_a_text_too_short_for_a_pattern(cli: Cli, text: str) -> None:
    rows = [row.split() for row in cli("attention", "--text", text).out.splitlines()[1:]]
    assert len(rows) == 4
    if text == "a":
        assert {tuple(row[-4:]) for row in rows} == {("-", "-", "-", "-")}


@pytest.mark.slow
def test_heads_have_the_names_of_the_page(cli: Cli, empty_folder: Path) -> None:
    cli("import", "stories")
    text = ("--text", 'Jakob has a new boat. She says: "I am ')
    cli("inspect", "stories-1", *text)
    names = [
        head["phrase"] for layer in page_data(Path("inspect.html").read_text())["models"][0]["heads"] for head in layer
    ]
    assert "the girl's name, after She" in names
    for words in ([], text):
        assert [head["attends_to"] for head in cli("attention", *words, "--json").json["heads"]] == names
        rows = cli("attention", *words).out.splitlines()[-len(names) :]
        assert [re.split("  +", row)[1] for row in rows] == names
    (she,) = cli("attention", "--layer", 2, "--head", 2).out.splitlines()[1:]
    assert re.split("  +", she)[1:3] == ["the girl's name, after She", "she"]


def test_npz_and_json_hold_the_activations(cli: Cli, folder: Path, tmp_path: Path) -> None:
    text, npz = "hath all too short", tmp_path / "a.npz"
    found = cli("attention", "--text", text, "--npz", npz, "--layer", 1, "--head", 0, "--json").json
    loaded = load_checkpoint(folder / "runs/verse")
    activations = extract(load_model(loaded), loaded.tokenizer.encode(text))
    with np.load(npz) as arrays:
        for name in ("ids", "weights", "q", "k", "v", "head_outputs", "residual", "logits"):
            assert np.array_equal(arrays[name], getattr(activations, name).numpy()), name
        assert "".join(arrays["characters"]) == text
        assert arrays["weights"].dtype == np.float32
    assert found["text"] == text
    assert torch.equal(torch.tensor(found["weights"]), activations.weights[1, 0])
    (head,) = found["heads"]
    assert (head["layer"], head["head"]) == (1, 0)
    previous = head_scores(activations.weights, list(text))["previous"]
    assert head["scores"]["previous"]["value"] == previous.values[1, 0].item()


@pytest.mark.slow
def test_png_shows_all_heads_or_one(cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, drawn = tmp_path / "heads.png", list[Any]()
    draw = images.draw
    monkeypatch.setattr(images, "draw", lambda *values: drawn.append(values) or draw(*values))
    weights = split_activations(folder).weights
    for choice, layers, heads in (([], [0, 1], [0, 1]), (["--layer", 1], [1], [0, 1]), (["--head", 1], [0, 1], [1])):
        assert cli("attention", "--png", file, "--force", *choice).code == 0
        Image.open(file).verify()
        shown, rows, columns, *_ = drawn.pop()
        assert torch.equal(shown, weights[layers][:, heads])
        assert ([*rows], [*columns]) == (layers, heads)


# ---- the excerpt ----


def test_a_long_text_is_cut_at_its_start(cli: Cli) -> None:
    done = cli("attention", "--file", "verse.txt", "--json")
    assert done.json["text"] == VERSE[-32:]
    assert done.json["skipped"] == len(VERSE) - 32
    assert f"the last 32 of {len(VERSE):,} tokens" in cli("attention", "--file", "verse.txt").err
    assert cli("attention", "--file", "-", "--json", stdin=b"too short").json["text"] == "too short"


def test_the_default_is_the_validation_split(cli: Cli) -> None:
    assert cli("attention", "--json").json["text"] == SPLIT[:32]
    assert cli("attention", "--val", 7, "--json").json["text"] == SPLIT[7 : 7 + 32]


def test_a_run_whose_text_is_missing_generates_one(
    cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIGPT_CACHE", "empty")
    done = cli("attention", "--json")
    assert done.json["source"] == "generated by the model"
    assert "generated text" in done.err
    assert "verse.txt" in cli("attention", "--val", 0).error


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--layer", 2], "--layer 2"),
        (["--head", -1], "--head -1"),
        (["--text", ""], "empty"),
        (["--text", "a", "--val", 0], "mutually exclusive"),
        (["--val", 10_000], "184 tokens"),
        (["--checkpoint", "77"], "77"),
    ],
)
def test_wrong_options_are_one_line(cli: Cli, arguments: list[Any], problem: str) -> None:
    assert problem in cli("attention", "verse", *arguments).error


def test_unknown_characters_can_be_skipped(cli: Cli) -> None:
    assert "'§' (U+00A7 SECTION SIGN)" in cli("attention", "--text", "a§d").error
    assert cli("attention", "--text", "a§d", "--unknown", "skip", "--json").json["text"] == "ad"


# ---- outputs ----


def test_outputs_never_overwrite_a_run_or_its_text(cli: Cli, folder: Path) -> None:
    """A run whose text is overwritten cannot be resumed."""
    run = folder / "runs/verse"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    kept = [run / "config.yaml", next(run.glob("checkpoints/step-*/model.safetensors"))]
    for out in [*kept, folder / "verse.txt"]:
        for command in (["inspect", "-o"], ["sample", "-l", 3, "-o"], ["attention", "--npz"]):
            assert cli(*command, out).error.startswith(f"cannot write {out}: ")
    assert cli("attention", "--file", "x", "--png", "x").error.startswith("cannot write x: ")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


# ---- TensorBoard ----


def test_training_logs_attention(folder: Path) -> None:
    events = EventAccumulator(str(folder / "runs/verse"), size_guidance={"images": 0}).Reload()
    shown = events.Images("5 attention/a row per layer, a column per head")
    assert [image.step for image in shown] == [0, 2, 4]
    weights = split_activations(folder, "last").weights
    with Image.open(io.BytesIO(shown[-1].encoded_image_string)) as image:
        assert np.abs(cells(np.asarray(image), 2, 2, 32) - images.to_colors(weights).astype(int)).max() <= 2
    previous = weights.diagonal(-1, 2, 3).mean(-1).max()
    (*_, last) = events.Scalars("5 attention/heads/previous")
    assert (last.step, last.value) == (4, pytest.approx(previous.item(), abs=1e-6))
    assert {f"5 attention/{name}" for name in ("distance/layer 0", "entropy/layer 1", "heads/induction")} <= {
        *events.Tags()["scalars"]
    }


def test_a_failed_probe_does_not_end_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    loaded = load_checkpoint(folder / "runs/verse")
    ids = loaded.tokenizer.encode(VERSE)
    data = TokenDataset(ids, ids, loaded.tokenizer, "", len(VERSE))
    monkeypatch.setattr("minigpt.interpret.extract.TOLERANCE", {torch.float32: -1.0})
    attention_probe(data)(7, load_model(loaded), SimpleNamespace(message=messages.append))  # type: ignore[arg-type]
    assert len(messages) == 1
    assert messages[0].startswith("step 7: ")
