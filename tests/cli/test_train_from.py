"""`minigpt train --from`: a new run starts from the weights and the vocabulary of another."""

import re
import shutil
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import SMALL, VERSE, Cli
from safetensors.numpy import load_file
from small_runs import ending

from minigpt.interpret.descriptions import untrained_warning
from minigpt.storage import checkpoint
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.metadata import OPTIMIZER, Metadata, read_metadata
from minigpt.storage.runs import checkpoint_steps, step_folder
from minigpt.text.dataset import reload_dataset
from minigpt.training.loop import Probe, Training
from minigpt.training.outcome import Outcome

OTHER = "the darling buds of May are too short a date, and all the winds do shake\n" * 30
pytestmark = pytest.mark.usefixtures("torch_settings")

FAMILIES = {
    "modern": [],
    "lstm": ["-s", "model.family=lstm"],
    "bytes": ["-s", "data.tokenizer=byte", "-s", "model.position=learned"],
}
NEW = [*SMALL[8:], "-s", "train.save_every=1", "-s", "train.keep_last=9", "-s", "model.dropout=0.1"]
"""Settings of a short run. SMALL begins with four settings of the model."""


@pytest.fixture(scope="session")
def trained(once: Callable[..., Path]) -> Path:
    """A folder with two texts, and a run of each family. Read only."""
    commands = [["verse.txt", "--name", name, *SMALL, *settings] for name, settings in FAMILIES.items()]
    return once("from", {"verse.txt": VERSE, "other.txt": OTHER}, *commands)


@pytest.fixture(autouse=True)
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the test in a copy of `trained`."""
    copy = shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(copy)
    return copy


@pytest.mark.parametrize(
    "arguments", [["other.txt", "--from", "modern", *NEW], ["--resume", "modern", "-s", "train.steps=6"]]
)
def test_training_keeps_no_second_copy_of_the_weights(
    cli: Cli, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner has the weights, so those that were read are freed."""
    read, kept, read_arrays, loop = list[weakref.ref[Any]](), list[Any](), checkpoint._read_arrays, Training.loop

    def remember(path: Path, name: str, metadata: Metadata) -> checkpoint.Arrays:
        arrays = read_arrays(path, name, metadata)
        read.extend(map(weakref.ref, arrays.values()))
        return arrays

    def look(self: Training, probes: Sequence[Probe]) -> Outcome:
        kept.extend(array for ref in read if (array := ref()) is not None)
        return loop(self, probes)

    monkeypatch.setattr(checkpoint, "_read_arrays", remember)
    monkeypatch.setattr(Training, "loop", look)
    assert cli("train", *arguments).code == 0
    assert read
    assert not kept


@pytest.mark.parametrize("name", FAMILIES)
def test_a_run_starts_from_the_weights_that_sample_uses(cli: Cli, name: str) -> None:
    done = cli("train", "other.txt", "--from", name, "--name", "new", *NEW)
    assert done.code == 0, done.err
    old, first = load_checkpoint(name), load_checkpoint("new", 0)
    assert f"starting from the weights of {name}, step {old.metadata.step}\n" in done.err
    assert {key: array.tobytes() for key, array in first.weights.items()} == {
        key: array.tobytes() for key, array in old.weights.items()
    }
    assert not load_file(first.path / OPTIMIZER), "the optimizer is new"
    assert first.config.model == old.config.model.model_copy(update={"dropout": 0.1})
    assert first.tokenizer.to_json() == old.tokenizer.to_json()
    last = load_checkpoint("new", "last")
    for metadata in (first.metadata, last.metadata):
        assert metadata.origin is not None
        assert metadata.origin.model_dump() == {
            "run": name, "step": old.metadata.step, "sha256": old.metadata.sha256["model.safetensors"]
        }  # fmt: skip
    assert any(not np.array_equal(last.weights[key], old.weights[key]) for key in old.weights)
    assert untrained_warning(first) is None
    assert [row["origin"] and row["origin"]["run"] for row in cli("runs", "--json").json][-1] == name
    assert cli("runs", "verify").code == 0


def test_a_run_that_only_gets_worse_keeps_the_weights_it_started_from(cli: Cli) -> None:
    """Also if it is killed and resumed, and if only the last checkpoint is to be kept."""
    worse = (*NEW, "-s", "optim.embedding_lr=10.0", "-s", "optim.warmup=0.0", "-s", "train.keep_last=1")
    done = cli("train", "verse.txt", "--from", "modern", "--name", "new", *worse)
    assert done.code == 0, done.err
    assert re.search(r"Finished at step 4 after .* s: validation loss .*, best .* at step 0\.", done.err)
    assert "longer:" not in done.err
    assert checkpoint_steps(Path("runs/new")) == [0, 4]
    assert load_checkpoint("new").metadata.step == 0
    assert cli("eval", "new").code == cli("sample", "new").code == 0


def test_a_resumed_run_ends_in_the_same_bits(cli: Cli) -> None:
    """It was stopped at step 0, as a kill before its first step leaves it, or at step 2."""
    assert cli("train", "other.txt", "--from", "modern", "--name", "whole", *NEW).code == 0
    shutil.rmtree("runs/modern")  # a resume does not need it
    for step in (0, 2):
        copy = shutil.copytree(Path("runs/whole"), Path(f"runs/stopped-{step}"))
        for later in checkpoint_steps(copy):
            if later > step:
                shutil.rmtree(step_folder(copy, later))
        done = cli("train", "--resume", copy)
        assert "starting from" not in done.err
        assert ending(copy) == ending(Path("runs/whole"))
        assert read_metadata(step_folder(copy, 4)).origin == read_metadata(step_folder(copy, 0)).origin is not None


def test_a_checkpoint_of_another_step_and_one_without_optimizer_state_are_accepted(cli: Cli) -> None:
    checkpoint = shutil.copytree(step_folder(Path("runs/modern"), 2), Path("elsewhere"))
    (checkpoint / OPTIMIZER).unlink()
    assert cli("train", "other.txt", "--from", checkpoint, "--name", "new", *NEW).code == 0
    origin = read_metadata(step_folder(Path("runs/new"), 0)).origin
    assert origin is not None
    assert (origin.run, origin.step) == ("elsewhere", 2)


def test_characters_outside_the_vocabulary_are_an_error_or_are_skipped(cli: Cli) -> None:
    text = OTHER.replace("winds", "wïnds").replace("May", "Mäy") + "☃123456789"
    Path("strange.txt").write_text(text, encoding="utf-8")
    line = cli("train", "strange.txt", "--from", "modern", *NEW).error
    assert line == (
        "the text has 12 characters outside the vocabulary of the run: 'ä', 'ï', '1', '2', '3', '4', '5', '6', ...; "
        "to leave them out, add --unknown skip; "
        "the vocabulary of a run cannot change, but a new run with --set data.tokenizer=byte reads any character"
    )
    assert not Path("runs/strange-1").exists()
    done = cli("train", "strange.txt", "--from", "modern", "--unknown", "skip", "-s", "train.steps=2", *NEW)
    assert done.code == 0, done.err
    assert f"skipped 70 of {len(text):,} characters, which are not in the vocabulary: 'ä', 'ï', " in done.err
    loaded = load_checkpoint("strange-1")
    data = reload_dataset(loaded.config.data, loaded.metadata.fingerprint, loaded.tokenizer)
    kept = loaded.tokenizer.encode(text, "skip")
    assert np.array_equal(np.concatenate([data.train, data.validation]), kept)
    assert data.characters == len(kept)
    assert cli("train", "--resume", "strange-1", "-s", "train.steps=6").code == 0
    assert cli("eval", "strange-1").code == 0
    # The tokens are in the cache now. They must not hide the error.
    assert "outside the vocabulary" in cli("train", "strange.txt", "--from", "modern", *NEW).error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["other.txt", "-s", "model.n_layer=3", "-s", "data.tokenizer=byte"],
            "data.tokenizer is char in the run but byte now (command line); model.n_layer is 1 in the run but 3 now",
        ),
        (["other.txt", "-c", "tiny"], "model.n_embd is 16 in the run but 32 now (preset tiny)"),
        (["other.txt", "-s", "model.nlayer=3"], "model.nlayer: unknown setting; did you mean model.n_layer?"),
        (
            ["other.txt", "--unknown", "skip", "-s", "data.unknown=error"],
            "data.unknown is set twice; remove one of the options",
        ),
        (["other.txt", "-s", "data.source=short.txt"], "data.source is set twice"),
        (["short.txt"], "the context of the model is 16 tokens, and the text has 13 training tokens"),
        ([], "--from needs a text to train on: minigpt train TEXT --from RUN"),
        (["--resume", "modern"], "--resume keeps the text, configuration and name of the run"),
        (["other.txt", "--from", "nothing"], "no run is named 'nothing'; available runs: "),
    ],
)
def test_what_does_not_fit_is_one_line(cli: Cli, arguments: list[str], message: str) -> None:
    Path("short.txt").write_text("the buds of May", encoding="utf-8")
    assert message in cli("train", "--from", "modern", *arguments).error
    assert len(list(Path("runs").iterdir())) == len(FAMILIES)


def test_a_start_that_was_trained_on_the_validation_text_is_named(cli: Cli) -> None:
    warning = (
        "modern, with data.val_fraction=0.1, was trained on a part of this validation text: the loss may be too low"
    )

    def is_named(text: str, *settings: str) -> bool:
        return warning in cli("train", text, "--from", "modern", *NEW, *settings).err

    assert is_named("verse.txt", "-s", "data.val_fraction=0.4")
    assert is_named("other.txt", "-s", "data.val_source=verse.txt")
    assert not is_named("verse.txt", "-s", "data.val_fraction=0.1")
    assert not is_named("verse.txt", "-s", "data.val_source=other.txt", "--unknown", "skip")
    assert not is_named("other.txt", "-s", "data.val_fraction=0.4")


def test_unknown_needs_from(cli: Cli) -> None:
    assert cli("train", "other.txt", "--unknown", "skip").error.startswith("--unknown needs --from")
