"""Checkpoints: whole or absent, self-explaining, and checked to the last byte."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import minigpt
from minigpt import checkpoint
from minigpt import config as configuration
from minigpt.checkpoint import TrainState, load_checkpoint, repair, save, training_tensors, verify
from minigpt.config import RunConfig
from minigpt.errors import UserError
from minigpt.model import GPT
from minigpt.runs import META, checkpoint_steps, pointed_step, read_meta, step_folder
from minigpt.tokenizer import build

TOKENIZER = build("char", "abc \n")
CONFIG = configuration.resolve(
    ("test", {"model.n_layer": 1, "model.n_head": 1, "model.n_embd": 8, "model.context": 8, "train.steps": 9})
).config
FILES = (*checkpoint.FILES, META)


def publish(run: Path, step: int, *, best: int | None = None, keep_last: int = 1, scale: float = 1.0) -> Path:
    """Save a checkpoint of `step` whose weights all depend on `scale`."""
    torch.manual_seed(0)
    model = GPT(CONFIG.model, TOKENIZER.vocab_size)
    weights = {name: tensor * scale for name, tensor in model.state_dict().items()}
    state = TrainState(step=step, best_step=step if best is None else best, best_loss=1.25)
    settings = CONFIG.model_copy(update={"train": CONFIG.train.model_copy(update={"keep_last": keep_last})})
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.yaml").write_text(configuration.to_yaml(settings), encoding="utf-8")
    facts = {"corpus": {"name": "abc", "fingerprint": "f"}, "runtime": {}, "validation_loss": 1.5}
    return save(run, settings, TOKENIZER, state, weights, {"exp_avg/norm.weight": torch.ones(8)}, facts)


def visible(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


# --- what is written ---------------------------------------------------------------------------------


def test_a_checkpoint_is_five_files_that_explain_themselves(tmp_path: Path) -> None:
    folder = publish(tmp_path / "r", 5)
    assert folder == tmp_path / "r/checkpoints/step-00000005"
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert visible(tmp_path / "r") == ["best", "last", "step-00000005"]
    assert (tmp_path / "r/checkpoints/last").read_text(encoding="utf-8") == "step-00000005\n"
    meta = json.loads((folder / META).read_text(encoding="utf-8"))
    assert (meta["format"], meta["step"], meta["validation_loss"]) == (1, 5, 1.5)
    assert meta["minigpt"] == minigpt.__version__
    assert meta["corpus"] == {"name": "abc", "fingerprint": "f"}
    assert set(meta["sha256"]) == set(FILES)


def test_what_is_loaded_is_what_was_saved_by_name_by_path_and_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    publish(Path("runs/r"), 5, best=5, keep_last=2)
    publish(Path("runs/r"), 6, best=5, keep_last=2, scale=2.0)
    cases: list[tuple[str | Path, str | None, int]] = [
        ("last", None, 5), ("r", None, 5), ("r", "best", 5), ("r", "last", 6), ("r", "6", 6),
        (tmp_path / "runs/r", "last", 6), (tmp_path / "runs/r/checkpoints/step-00000006", None, 6),
    ]  # fmt: skip
    for run, which, step in cases:
        loaded = minigpt.load_checkpoint(run, which)
        assert loaded.state == TrainState(step=step, best_step=5, best_loss=1.25), (run, which)
        assert loaded.config.model == CONFIG.model
        assert loaded.tokenizer.to_json() == TOKENIZER.to_json()
        assert not loaded.model.training
    torch.manual_seed(0)
    for name, tensor in GPT(CONFIG.model, TOKENIZER.vocab_size).state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], 2 * tensor), name
    assert torch.equal(training_tensors(loaded.path)["exp_avg/norm.weight"], torch.ones(8))


def test_a_copy_of_one_checkpoint_folder_alone_samples(tmp_path: Path) -> None:
    shutil.copytree(publish(tmp_path / "r", 5), tmp_path / "copy")
    shutil.rmtree(tmp_path / "r")
    loaded = load_checkpoint(tmp_path / "copy")
    pieces = minigpt.generate(
        loaded.model, loaded.tokenizer, "ab", loaded.config.sample.model_copy(update={"length": 20})
    )
    assert len("".join(piece.text for piece in pieces)) == 20


# --- what is not as it was written -------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish(tmp_path_factory.mktemp("run"), 5)


@pytest.mark.parametrize("name", FILES)
def test_any_damage_to_any_file_is_one_line(whole: Path, tmp_path: Path, name: str) -> None:
    """In meta.json a flipped digit of the best loss was once believed."""
    content = (whole / name).read_bytes()
    middle = content.index(b"1.25") if name == META else len(content) // 2
    damaged = {
        "flipped": content[:middle] + bytes([content[middle] ^ 3]) + content[middle + 1 :],
        "truncated": content[:-20],
        "empty": b"",
        "longer": content[:-1] + b" {}",
        "other bytes": os.urandom(200),
        "swapped": (whole / FILES[FILES.index(name) - 1]).read_bytes(),
        "missing": None,
    }
    for what, replacement in damaged.items():
        folder = tmp_path / what
        shutil.copytree(whole, folder)
        (folder / name).unlink()
        if replacement is not None:
            (folder / name).write_bytes(replacement)
        with pytest.raises(UserError) as error:
            verify(folder)
        assert "\n" not in str(error.value)
        assert name in str(error.value), what
        with pytest.raises(UserError):
            load_checkpoint(folder)
    assert verify(whole)["step"] == 5


@pytest.mark.parametrize(
    "content", ["[]", "null", '{"format": 1}', '{"sha256": []}', '{"sha256": {"meta.json": 1}}', "NaN"]
)
def test_a_description_that_is_none_is_one_line(whole: Path, tmp_path: Path, content: str) -> None:
    shutil.copytree(whole, tmp_path / "copy")
    (tmp_path / "copy" / META).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"damaged: meta\.json"):
        read_meta(tmp_path / "copy")


def test_a_format_of_the_future_is_refused_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 2)
        folder = publish(tmp_path, 5)
    with pytest.raises(UserError, match="has format 2, this version of minigpt reads format 1"):
        verify(folder)


def test_weights_of_another_shape_are_one_line(tmp_path: Path) -> None:
    """A valid checkpoint of a tool that wrote other weights than its configuration says."""
    state = TrainState(step=5)
    folder = save(tmp_path, CONFIG, TOKENIZER, state, {"norm.weight": torch.ones(3)}, {}, {})
    with pytest.raises(UserError, match="does not hold the weights its configuration describes: ") as error:
        load_checkpoint(folder)
    assert "\n" not in str(error.value)


# --- interrupted -------------------------------------------------------------------------------------


def count_syncs(run: Path) -> int:
    calls = 0

    def counted(descriptor: int) -> None:
        nonlocal calls
        calls += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", counted)
        publish(run, 5)
    return calls


def test_a_save_that_fails_anywhere_leaves_the_checkpoint_before_it(tmp_path: Path) -> None:
    """A disk that fills up at any of the places where a save waits for it."""
    for failing in range(count_syncs(tmp_path / "counted")):
        run = tmp_path / str(failing)
        publish(run, 5, best=5)
        calls = 0

        def full(descriptor: int, failing: int = failing) -> None:
            nonlocal calls
            calls += 1
            if calls > failing:
                raise OSError(28, "No space left on device")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(UserError, match="cannot save the checkpoint of step 6: No space left on device"):
                publish(run, 6, best=5, scale=2.0)
        assert not any("saving" in name for name in visible(run)), failing
        for step in checkpoint_steps(run):
            verify(step_folder(run, step))
        assert load_checkpoint(run, "best").state.step == 5
        publish(run, 7)
        assert load_checkpoint(run, "last").state.step == 7


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_disk_that_refuses_to_write_the_tensors_is_one_line(tmp_path: Path) -> None:
    """safetensors raises an error of its own for a full disk, which was once not caught."""
    script = """
import resource, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from test_checkpoint import publish
from minigpt.errors import UserError
run = Path(sys.argv[2])
publish(run, 5)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    publish(run, 6)
except UserError as error:
    print(error)
"""
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cannot save the checkpoint of step 6: "), done.stdout
    assert done.stdout.endswith("earlier checkpoints are intact\n")
    assert done.stdout.count("\n") == 1
    assert visible(tmp_path) == ["best", "last", "step-00000005"]
    assert load_checkpoint(tmp_path).state.step == 5


class Killed(BaseException):
    """Ends a save without any of its own cleaning up, like SIGKILL."""


def kill_at(function: str, call: int) -> Any:
    """Replace a function of `os` by one that is killed before its call number `call`."""
    original, calls = getattr(os, function), 0

    def killed(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > call:
            raise Killed
        return original(*arguments, **named)

    return killed


@pytest.mark.parametrize("function", ["fsync", "rename", "replace", "rmdir"])
def test_a_save_that_is_killed_anywhere_is_put_right_at_the_next_start(tmp_path: Path, function: str) -> None:
    """Killed before it moved the pointers, it left them behind for ever; killed while it pruned, half a folder."""
    for call in range(12):
        run = tmp_path / str(call)
        publish(run, 4, best=4)
        publish(run, 5, best=4)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            patch.setattr(os, function, kill_at(function, call))
            try:
                publish(run, 6, best=6)
                finished = True
            except Killed:
                finished = False
        newest = checkpoint_steps(run)[-1]
        assert newest in (5, 6)
        for which in ("best", "last"):
            assert load_checkpoint(run, which).state.step in (4, 5, 6)
        repair(run, load_checkpoint(step_folder(run, newest)).state)
        steps = checkpoint_steps(run)
        assert visible(run) == ["best", "last", *(step_folder(run, step).name for step in steps)]
        assert (pointed_step(run, "last"), pointed_step(run, "best")) == ((6, 6) if newest == 6 else (5, 4))
        for step in steps:
            verify(step_folder(run, step))
        if finished:
            return
    raise AssertionError("a save was never finished; the range is too short")


def test_repair_of_a_run_without_checkpoints_makes_nothing(tmp_path: Path) -> None:
    repair(tmp_path, TrainState())
    assert list(tmp_path.iterdir()) == []


# --- what is kept ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("keep_last", "kept"), [(1, [2, 9]), (3, [2, 7, 8, 9]), (20, [1, 2, 3, 4, 5, 6, 7, 8, 9])])
def test_the_newest_and_the_best_are_kept(tmp_path: Path, keep_last: int, kept: list[int]) -> None:
    for step in range(1, 10):
        publish(tmp_path, step, best=min(step, 2), keep_last=keep_last)
    assert checkpoint_steps(tmp_path) == kept
    assert (pointed_step(tmp_path, "last"), pointed_step(tmp_path, "best")) == (9, 2)


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    publish(tmp_path, 5)
    first = load_checkpoint(tmp_path).model.token_embedding.weight.detach()
    publish(tmp_path, 5, scale=3.0)
    assert torch.equal(load_checkpoint(tmp_path).model.token_embedding.weight, 3 * first)
    assert visible(tmp_path) == ["best", "last", "step-00000005"]


def test_a_checkpoint_stores_the_configuration_it_was_given(tmp_path: Path) -> None:
    folder = publish(tmp_path, 5, keep_last=4)
    stored: RunConfig = load_checkpoint(folder).config
    assert stored == CONFIG.model_copy(update={"train": CONFIG.train.model_copy(update={"keep_last": 4})})


def test_no_tensor_is_read_from_a_pickle(tmp_path: Path, whole: Path) -> None:
    shutil.copytree(whole, tmp_path / "copy")
    torch.save({"a": torch.ones(1)}, tmp_path / "copy/optimizer.safetensors")
    with pytest.raises(UserError, match="is not a whole safetensors file"):
        training_tensors(tmp_path / "copy")
    save_file({"a": torch.ones(1)}, tmp_path / "copy/optimizer.safetensors")
    assert torch.equal(training_tensors(tmp_path / "copy")["a"], torch.ones(1))
