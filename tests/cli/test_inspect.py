"""`minigpt attention` as its users meet it, and what a run shows in TensorBoard of its heads."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from command_line import VERSE, Cli, called
from google.protobuf import text_format
from PIL import Image
from random_models import cells
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.projector import projector_plugin
from tensorboard.plugins.projector.metadata import PROJECTOR_FILENAME
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

from minigpt.cli.inspect import _spread
from minigpt.interpret import images
from minigpt.interpret.extract import Activations, extract
from minigpt.interpret.probe import attention_probe
from minigpt.model.load import load_model
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.text.dataset import TokenDataset

SETTINGS = {"model.n_layer": 2, "model.n_head": 2, "model.n_embd": 16, "model.context": 32, "train.steps": 4} | {
    "train.eval_every": 2, "train.batch_size": 4, "sample.preview": 0, "runtime.dtype": "float32",
    "runtime.device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run in it."""
    folder = tmp_path_factory.mktemp("inside")
    (folder / "verse.txt").write_text(VERSE, encoding="utf-8")
    settings = [part for key, value in SETTINGS.items() for part in ("-s", f"{key}={value}")]
    called(folder, "train", "verse.txt", "--name", "verse", *settings)
    return folder


@pytest.fixture(autouse=True)
def in_its_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def test_a_table_of_all_heads_beside_uniform_attention(cli: Cli) -> None:
    done = cli("attention")
    head, uniform, *heads = done.out.splitlines()
    assert head.split()[:3] == ["head", "kind", "previous"]
    assert uniform.split()[0] == "uniform"
    assert [line.split()[0] for line in heads] == ["0.0", "0.1", "1.0", "1.1"]
    value, lift = heads[0].split()[2:4]
    assert float(lift.removeprefix("×")) == pytest.approx(float(value) / float(uniform.split()[1]), rel=0.3)
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
    seen = extract(load_model(loaded), loaded.tokenizer.encode(text))
    with np.load(record) as arrays:
        for name in ("ids", "weights", "q", "k", "v", "head_outputs", "residual", "logits", "output_norms"):
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


def test_a_probe_stands_beside_its_baseline(cli: Cli, tmp_path: Path) -> None:
    text = ["--text", "all too short a date"]
    head, uniform, *heads = cli("attention", *text, "--probe", "date", "short").out.splitlines()
    assert head.split() == ["head", "kind", "probe"]
    assert float(uniform.split()[1]) == pytest.approx(np.mean([5 / n for n in (17, 18, 19, 20)]), abs=0.005)
    assert len(heads) == 4
    found = json.loads(cli("attention", *text, "--probe", "date", "short", "--npz", tmp_path / "a.npz", "--json").out)
    with np.load(tmp_path / "a.npz") as arrays:
        exact = arrays["weights"][..., 16:20, 8:13].sum(-1).mean(-1)
    assert [head["scores"]["probe"]["value"] for head in found["heads"]] == pytest.approx(exact.ravel().tolist())
    assert "no 'date' comes before a 'short'" in cli("attention", *text, "--probe", "short", "date").error
    assert "expected two strings" in cli("attention", *text, "--probe", "", "date").error
    assert "does not know '@'" in cli("attention", *text, "--probe", "@", "date").error


def split_seen(folder: Path, checkpoint: str | None = None) -> Activations:
    """What a checkpoint of the run makes of the start of its validation split."""
    loaded = load_checkpoint(folder / "runs/verse", checkpoint)
    return extract(load_model(loaded), loaded.tokenizer.encode(VERSE[int(0.9 * len(VERSE)) :][:32]))


def test_pictures_of_all_heads_and_of_one(cli: Cli, folder: Path, tmp_path: Path) -> None:
    file, shades = tmp_path / "heads.png", images.to_shades(split_seen(folder).weights)
    for choice, layers, heads in (([], [0, 1], [0, 1]), (["--layer", 1], [1], [0, 1]), (["--head", 1], [0, 1], [1])):
        assert cli("attention", "--png", file, *choice).code == 0
        with Image.open(file) as image:
            assert (cells(image, len(layers), len(heads), 32) == shades[layers][:, heads]).all()
    assert cli("attention", "--png", file, "--layer", 1, "--head", 0).code == 0
    with Image.open(file) as image:
        assert image.size == (32 * 32, 32 * 32)
        assert (np.asarray(image)[::32, ::32] == shades[1, 0]).all()


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
    assert json.loads(done.out)["skipped"] == len(VERSE) - 32
    assert f"looking at the last 32 of {len(VERSE):,} tokens" in cli("attention", "--file", "verse.txt").err
    few = json.loads(cli("attention", "--file", "-", "--max-chars", 5, "--json", stdin=b"too short").out)
    assert few["text"] == "short"


def test_no_output_replaces_what_a_run_keeps_or_was_trained_on(cli: Cli, folder: Path) -> None:
    """One could write the page over the text, and the run was lost."""
    run = folder / "runs" / cli("runs", "--json").json[-1]["name"]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    kept = [run / "config.yaml", next(run.glob("checkpoints/step-*/model.safetensors")), run / "checkpoints" / "best"]
    for out in [*kept, folder / "verse.txt"]:
        for command in (["inspect", "-o"], ["sample", "-l", 3, "-o"], ["attention", "--png"], ["attention", "--npz"]):
            error = cli(*command, out).error
            assert error.startswith(f"cannot write {out}: it would replace ")
            assert error.endswith("trained on" if out.name == "verse.txt" else f"what run {run.name} keeps there")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    for _ in range(2):
        assert cli("sample", "-l", 3, "-o", run / "drawn.txt").code == 0
    (run / "drawn.txt").unlink()


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
        (["--max-chars", -5], "--max-chars -5: expected 1 to 512"),
        (["--max-chars", 513, "--val", 0], "--max-chars 513: expected 1 to 512"),
        (["--png", "no/such/folder.png"], "cannot write no/such/folder.png: No such file or directory"),
        (["--unknown", "guess"], "--unknown guess: expected error, skip or replace"),
        (["--checkpoint", "77"], "77"),
        (["--png", "x", "--npz", "./x"], "cannot write x: it would replace what this command reads or writes as well"),
        (["--file", "x", "--png", "x"], "cannot write x: it would replace what this command reads or writes as well"),
        (["--json", "--query", "0"], "--json tells of all places; it excludes --tty and --query, which ask of one"),
        (["--json", "--tty"], "--json tells of all places; it excludes --tty and --query, which ask of one"),
        (["--probe", "a", "b", "--tty"], "--probe excludes --tty and --query, which ask of one place"),
    ],
)
def test_what_cannot_be_is_one_line(cli: Cli, arguments: list[Any], problem: str) -> None:
    assert problem in cli("attention", "verse", *arguments).error


def test_unknown_characters_are_as_in_sample(cli: Cli) -> None:
    assert "'§' (U+00A7 SECTION SIGN) at position 2" in cli("attention", "--text", "a§d").error
    assert json.loads(cli("attention", "--text", "a§d", "--unknown", "skip", "--json").out)["text"] == "ad"


# ---- inspect ----


def page_data(path: Path) -> Any:
    page = path.read_text(encoding="utf-8")
    return json.loads(page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])


def test_the_page_is_shown_where_that_is_asked_for(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    page = tmp_path / "my page.html"
    assert cli("inspect", "-o", page).code == cli("inspect", "-o", page, "--open").code == 0
    assert shown == [page.as_uri()]


def test_a_page_of_a_run_is_one_file(cli: Cli, folder: Path) -> None:
    done = cli("inspect")
    assert done.out == ""
    page = folder / "inspect.html"
    assert f"wrote inspect.html, {page.stat().st_size / 1e6:.2f} MB" in done.err
    before = page.read_bytes()
    cli("inspect")
    assert page.read_bytes() == before
    data = page_data(page)
    assert (data["run"], data["ablation"], data["training"], data["compare"], data["detail"]) == ("verse", *[None] * 4)
    assert len(data["text"]["symbols"]) == 32


def test_all_that_a_page_can_hold(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    options = ["--ablate", "--steps", "all", "--compare", "verse", "--detail", "--layers", "1"]
    assert cli("inspect", "verse", *options, "--text", "hath all too short", "-o", out).code == 0
    data = page_data(out)
    assert data["layers"] == [1]
    assert len(data["text"]["symbols"]) == 18
    assert np.array(data["ablation"]["increases"]).shape == (1, 2)
    assert [frame["step"] for frame in data["training"]["frames"]] == [2, 4]
    assert data["compare"]["name"] == "verse"
    assert data["detail"] is not None


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--layers", "2"], "--layers: this model has layers 0 to 1"),
        (["--layers", "one"], "--layers one: expected whole numbers separated by commas"),
        (["--steps", "3"], "--steps: there is no checkpoint of step 3, only 2, 4"),
        (["-o", "no/such/page.html"], "cannot write no/such/page.html: No such file or directory"),
        (["--compare", "nothing"], "nothing"),
        (["--text", ""], "there is nothing to look at: the text is empty"),
    ],
)
def test_a_page_that_cannot_be_is_one_line(cli: Cli, arguments: list[Any], problem: str) -> None:
    assert problem in cli("inspect", "verse", *arguments).error


@pytest.mark.parametrize("command", [["attention", "--png"], ["attention", "--npz"], ["inspect", "-o"]])
def test_what_cannot_be_written_is_told_before_anything_is_computed(
    cli: Cli, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minigpt.storage.checkpoint.load_checkpoint", lambda *_: pytest.fail("began"))
    assert cli(*command, "runs").error == "cannot write runs: Is a directory"


def test_a_film_of_many_steps_takes_some_of_them() -> None:
    assert _spread([4]) == [4]
    assert _spread(list(range(20))) == list(range(20))
    some = _spread(list(range(0, 1000, 10)))
    assert (len(some), some[0], some[-1]) == (20, 0, 990)


# ---- claims ----


def test_claims_without_a_model(cli: Cli) -> None:
    found = json.loads(cli("claims", "--json").out)
    assert {row["verdict"] for row in found} == {"PASS", "CORRECTED"}
    assert all({"id", "claim", "note", "measured", "verdict"} <= row.keys() for row in found)
    lines = cli("claims").out.splitlines()
    assert sum("  CORRECTED  " in line for line in lines) == sum("     correct: " in line for line in lines) > 5


def test_claims_that_a_model_answers(cli: Cli, folder: Path) -> None:
    plain = {row["id"] for row in json.loads(cli("claims", "--json").out)}
    found = json.loads(cli("claims", "verse", "--json").out)
    asked = [row for row in found if row["verdict"] not in ("PASS", "CORRECTED")]
    assert len(asked) >= 10
    assert {row["verdict"] for row in asked} <= {"SUPPORTED", "NOT SUPPORTED", "INCONCLUSIVE"}
    assert not plain & {row["id"] for row in asked}
    assert [row["id"] for row in found] == sorted(row["id"] for row in found)


def test_a_claim_that_fails_ends_in_an_error(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.claims.mask.causal_mask", lambda q, k, device: torch.ones(q, k).bool())
    done = cli("claims")
    assert done.code == 1
    assert "claims do not hold: " in done.err.splitlines()[-1]
    assert "  FAIL  " in done.out
    assert "No such" not in done.err


def test_a_run_that_is_not_there_is_one_line(cli: Cli) -> None:
    assert "nothing" in cli("claims", "nothing").error
    assert "--checkpoint needs a run" in cli("claims", "--checkpoint", "best").error


def test_a_probe_that_cannot_look_ends_no_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    loaded = load_checkpoint(folder / "runs/verse")
    ids = loaded.tokenizer.encode(VERSE)
    data = TokenDataset(ids, ids, loaded.tokenizer, "", len(VERSE))
    monkeypatch.setattr("minigpt.interpret.extract.TOLERANCE", {torch.float32: -1.0})
    attention_probe(data)(7, load_model(loaded), SimpleNamespace(say=said.append))
    assert said[0].startswith("step 7: cannot show the attention of layer 0, head ")


# ---- TensorBoard ----


def test_heads_can_be_watched_in_tensorboard(folder: Path) -> None:
    events = EventAccumulator(str(folder / "runs/verse/tensorboard"), size_guidance={"images": 0}).Reload()
    assert [image.step for image in events.Images("attention/grid")] == [0, 2, 4]
    seen = split_seen(folder, "last")
    with Image.open(io.BytesIO(events.Images("attention/grid")[-1].encoded_image_string)) as image:
        assert (
            np.abs(cells(image, 2, 2, 32) - images.to_shades(seen.weights).astype(int)).max() <= 1
        )  # but for rounding
    previous = seen.weights.diagonal(-1, 2, 3).mean(-1).max()
    (*_, last) = events.Scalars("heads/previous")
    assert (last.step, last.value) == (4, pytest.approx(previous.item(), abs=1e-6))
    assert {"attention/distance/layer 0", "attention/entropy/layer 1", "heads/induction"} <= {*events.Tags()["scalars"]}


def test_embeddings_can_be_projected_with_labels_that_are_seen(folder: Path) -> None:
    config, board = ProjectorConfig(), folder / "runs/verse/tensorboard"
    text_format.Parse((board / PROJECTOR_FILENAME).read_text(encoding="utf-8"), config)
    (embedding,) = config.embeddings
    vectors = projector_plugin._read_tensor_tsv_file(str(board / embedding.tensor_path))
    loaded = load_checkpoint(folder / "runs/verse", "last")
    weight = load_model(loaded).token_embedding.weight.detach().numpy()
    assert vectors == pytest.approx(weight, rel=1e-5, abs=1e-12)
    labels = (board / embedding.metadata_path).read_text(encoding="utf-8").splitlines()
    assert len(labels) == len(vectors) == loaded.tokenizer.vocab_size
    assert labels[:3] == ["↵", "␣", "'"]
