"""The trained model that is part of minigpt."""

import math
import os
from pathlib import Path

import numpy as np
import pytest

import minigpt
from minigpt.errors import CheckpointError
from minigpt.interop import shipped
from minigpt.model.load import load_model
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.metadata import verify
from minigpt.text.dataset import reload_dataset
from minigpt.training.evaluate import evaluate


def test_it_is_a_checkpoint_of_the_recorded_loss(empty_folder: Path) -> None:
    loaded = load_checkpoint(shipped.create_run(None))
    assert verify(loaded.path).imported == "minigpt"
    assert {array.dtype for array in loaded.weights.values()} == {np.dtype(np.float32)}
    data = reload_dataset(loaded.config.data, loaded.metadata.fingerprint, loaded.tokenizer)
    loss = evaluate(load_model(loaded), data.validation, loaded.tokenizer).loss
    assert loss == pytest.approx(loaded.metadata.state.validation_loss, abs=1e-4)


def test_it_knows_whom_a_pronoun_means(empty_folder: Path) -> None:
    model = minigpt.load(str(shipped.create_run("example")))
    for pronoun, name, other in (("He", "Jakob", "Anna"), ("She", "Anna", "Jakob")):
        text = f'{other} has a red kite.\n{name} has a new boat.\n{pronoun} says: "I am '
        written = model.generate(text, length=len(name), temperature=0)
        assert written.text == name
        assert written.logprobs[0] > math.log(0.9)


def test_a_changed_file_of_the_installation_is_refused(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.listdir(folder := shipped.resource_path("data", "stories")):
        Path(name).write_bytes((folder / name).read_bytes() + b" " * (name == "tokenizer.json"))
    monkeypatch.setattr(shipped, "resource_path", lambda *_: Path())
    with pytest.raises(CheckpointError, match=r"tokenizer\.json has changed"):
        shipped.create_run("example")
    assert not Path("runs").exists()
