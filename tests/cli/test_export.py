"""`minigpt export` and `minigpt import`."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest
from command_line import VERSE, Cli
from exports import made, nanogpt_file

from minigpt.cli.export import export
from minigpt.interop.export import FORMATS
from minigpt.text.tokenizer import CharTokenizer


def test_an_exported_run_comes_back_and_computes_the_same(cli: Cli, run: Path) -> None:
    done = cli("export", "verse-1", "--to", "hf", "out", "--json").json
    assert set(done["bytes"]) == {path.name for path in Path("out").iterdir()}
    assert "pipeline" in done["usage"]
    assert "add --force" in cli("export", "--to", "hf", "out").error
    assert cli("export", "--to", "safetensors", "out", "--force").code == 0
    assert "Choose from: gguf, gguf-f16, hf, " in cli("export", "verse-1").err
    for name in ("verse-1", "last"):
        assert "is a run; name the folder" in cli("export", "--to", "hf", name).error
    assert "belongs to run" in cli("export", "--to", "hf", run / "checkpoints").error
    assert "available runs: verse-1" in cli("export", "no", "--to", "hf", "other").error
    cli("export", "--to", "hf", "again")
    assert "imported" in cli("import", "hf", "again", "--text", "verse.txt", "--name", "back").err
    losses = [cli("eval", name, "--json").json["loss"] for name in ("verse-1", "back")]
    assert losses[0] == losses[1]
    assert cli("inspect", "back", "-o", "page.html").code == 0
    assert "minigpt train TEXT --from back" in cli("train", "--resume", "back").error
    Path("other.txt").write_text(VERSE[:300], encoding="utf-8")
    wrong = cli("import", "hf", "again", "--text", "other.txt", "--name", "wrong").err
    assert "other.txt is not the text that the model was trained on" in wrong
    assert "in training" not in cli("eval", "wrong").out, "the recorded loss is of another text"
    Path("other.txt").write_text("Ω", encoding="utf-8")
    assert "name the text" in cli("import", "hf", "again", "--text", "other.txt").error


def test_a_text_for_an_import_has_only_characters_of_the_model_and_may_be_standard_input(cli: Cli, run: Path) -> None:
    Path("other.txt").write_text(VERSE + "XYZ" * 9, encoding="utf-8")
    assert cli("train", "other.txt", "--from", "verse-1", "--unknown", "skip", "-s", "train.steps=1").code == 0
    cli("export", "verse-1", "--to", "hf", "out")
    assert "outside the vocabulary" in cli("import", "hf", "out", "--text", "other.txt").error, "despite the cache"
    assert cli("import", "hf", "out", "--text", "-", "--name", "piped", stdin=VERSE[:200].encode()).code == 0
    assert cli("eval", "piped").code == 0


def test_eval_of_an_import_says_why_it_differs_from_the_list_of_runs(cli: Cli, run: Path) -> None:
    cli("export", "--to", "hf", "out")
    about = json.loads(Path("out/minigpt.json").read_text(encoding="utf-8"))
    assert "in training" not in cli("eval").out
    about["validation_loss"] += 0.0003  # as after training in bfloat16
    Path("out/minigpt.json").write_text(json.dumps(about), encoding="utf-8")
    assert cli("import", "hf", "out", "--text", "verse.txt", "--name", "back").code == 0
    recorded = f"{about['validation_loss']:.4f}"
    assert recorded in cli("runs").out.splitlines()[-1]
    line = f"in training         {recorded} nats: another precision or device rounds differently\n"
    assert line in cli("eval", "back").out
    assert line in cli("eval", "back", "verse.txt").out
    Path("other.txt").write_text(VERSE[:300], encoding="utf-8")
    for other in (["other.txt"], ["--stride", "4"]):
        assert "in training" not in cli("eval", "back", *other).out


def test_an_imported_nanogpt_continues_a_text(cli: Cli, empty_folder: Path) -> None:
    Path("verse.txt").write_text(VERSE, encoding="utf-8")
    made_up = made(CharTokenizer(VERSE), family="classic", activation="gelu_exact")
    nanogpt_file(Path("ckpt.pt"), made_up)
    assert cli("import", "nanogpt", "ckpt.pt", "--text", "verse.txt").code == 0
    assert len(cli("sample", "-l", "30", "-p", "Rough").out) == len("Rough") + 30 + 1
    assert cli("eval").code == cli("train", "verse.txt", "--from", "verse-1", "-s", "train.steps=1").code == 0


def test_the_shipped_model_is_a_run_like_any_other(cli: Cli, empty_folder: Path) -> None:
    assert "minigpt inspect stories-1 --open" in cli("import", "stories").err
    assert "run stories-2" in cli("import", "stories").err
    assert "already exists" in cli("import", "stories", "--name", "stories-1").error
    assert "intact" in cli("runs", "--verify").out
    assert "minigpt train TEXT --from stories-1" in cli("train", "--resume", "stories-1").error
    small = ("-s", "train.steps=1", "-s", "runtime.compile=false", "-s", "train.attention=false")
    assert cli("train", "builtin:stories:5000", "--from", "stories-1", *small).code == 0


def test_every_format_is_an_option() -> None:
    option = export.__annotations__["to"]
    assert set(get_args(get_args(option)[0])) == set(FORMATS)


@pytest.mark.parametrize(("to", "package"), [("gguf", "llama_cpp"), ("onnx", "onnxruntime")])
def test_an_export_prints_how_well_the_other_program_agrees(cli: Cli, run: Path, to: str, package: str) -> None:
    pytest.importorskip("gguf" if to == "gguf" else "onnx")
    done = cli("export", "--to", to, "out")
    assert done.code == 0
    assert f"wrote out from {run}" in done.err
    if find_spec(package):
        assert "greedy text          equal" in done.out
        assert float(done.out.split("largest difference   ")[1].split(",")[0]) < 0.01
    else:
        assert "not compared: " in done.out
