"""A run resumes exactly, from the newest intact checkpoint, and reports the ones that it skips."""

import json
import re
import shutil
from pathlib import Path

import pytest
from command_line import SMALL, VERSE, Cli, called
from small_runs import ending

from minigpt.errors import UserError
from minigpt.model import device
from minigpt.storage.metadata import FILES, METADATA, verify
from minigpt.storage.runs import best_step, checkpoint_steps, lock, step_folder
from minigpt.training.loop import Training
from minigpt.training.setup import newest_intact, prepare_resume, prepare_run

SETTINGS = [
    *SMALL,
    *("-s", "train.steps=6", "-s", "train.keep_last=3", "-s", "train.log_every=1", "-s", "model.dropout=0.1"),
]

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run `stopped` with checkpoints of steps 2, 4 and 6, and run `whole`, which trained to step 8 without a stop."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "verse.txt").write_text(VERSE, encoding="utf-8")
    called(folder, "train", "verse.txt", "--name", "stopped", *SETTINGS, "-s", "optim.schedule=constant")
    shutil.copytree(folder / "runs/stopped", folder / "runs/whole")
    called(folder, "train", "--resume", "whole", "-s", "train.steps=8")
    return folder


@pytest.fixture
def run(saved: Path, empty_folder: Path) -> Path:
    """A copy of run `stopped` to damage."""
    shutil.copytree(saved, empty_folder, dirs_exist_ok=True)
    assert checkpoint_steps(Path("runs/stopped")) == [2, 4, 6]
    return Path("runs/stopped")


def spoil(run: Path, step: int, name: str = "optimizer.safetensors", kind: str = "flipped") -> None:
    path = step_folder(run, step) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.unlink()
    if kind == "flipped":
        path.write_bytes(content)
    elif kind == "cut":
        path.write_bytes(content[: len(content) // 2])


def contents(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}


GO_ON = ["-s", "train.steps=8"]


# --- a new run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "settings", "expected"),
    [
        (4999, [], "the text has only 4,999 characters, "),
        (5000, [], "only 500 characters are for validation, "),
        (49_990, [], "only 4,999 characters are for validation, "),
        (50_000, [], None),
        (50_000, ["data.val_fraction=0.01", "data.tokenizer=byte"], "only 500 characters are for validation, "),
        (4999, ["data.val_source=other.txt"], "the text has only 4,999 characters, "),
    ],
)
def test_little_text_gives_one_warning(size: int, settings: list[str], expected: str | None) -> None:
    Path("a.txt").write_text("aé" * (size // 2) + "a" * (size % 2), encoding="utf-8")
    Path("other.txt").write_text("éa" * 4000, encoding="utf-8")
    notices = prepare_run(["a.txt"], None, settings).notices
    assert [line.startswith(str(expected)) for line in notices if "characters" in line] == [True] * bool(expected)


# --- falling back ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damaged", "start"),
    [
        ([], 6),
        ([(6, "optimizer.safetensors", "flipped")], 4),
        ([(6, METADATA, "cut"), (4, "tokenizer.json", "missing")], 2),
        ([(4, "model.safetensors", "cut")], 6),
    ],
    ids=["nothing", "the newest", "the two newest", "an older one"],
)
def test_a_resume_is_exact_from_the_newest_intact_checkpoint(
    cli: Cli, run: Path, saved: Path, damaged: list[tuple[int, str, str]], start: int
) -> None:
    """Skipped checkpoints are reported and kept. The result equals that of an uninterrupted run, bit for bit."""
    for step, name, kind in damaged:
        spoil(run, step, name, kind)
    before = {path.name: path.read_bytes() for path in step_folder(run, 6).iterdir()}
    done = cli("train", "--resume", "stopped", *GO_ON)
    assert done.code == 0, done.err
    assert f"resuming at step {start}" in done.err
    assert json.loads((run / "environment.jsonl").read_text().splitlines()[-1])["step"] == start
    skipped = [step for step, _, _ in damaged if step > start]
    assert re.findall(r"^skipping the checkpoint of step (\d+): ", done.err, re.M) == [str(step) for step in skipped]
    for step, name, _ in damaged:
        assert not (step > start) or re.search(rf"^skipping .* step {step}: .*{name}", done.err, re.M)
    kept = sorted(path.name.rpartition("-")[0] for path in (run / "checkpoints").glob("quarantined-*"))
    assert kept == sorted(f"quarantined-{step_folder(run, step).name}" for step in skipped)
    assert (
        re.findall(r"^quarantined a checkpoint of a later step: .*(quarantined-step-\d+)-\w+$", done.err, re.M) == kept
    )
    if skipped:
        (aside,) = (run / "checkpoints").glob("quarantined-step-00000006-*")
        assert {path.name: path.read_bytes() for path in aside.iterdir()} == before
    found, expected = ending(run), ending(saved / "runs/whole")
    assert {key for key in expected if found[key] != expected[key]} == set()
    for step in checkpoint_steps(run):
        if step > start or not damaged:
            verify(step_folder(run, step))


def test_by_default_a_run_keeps_one_to_fall_back_on(cli: Cli, empty_folder: Path) -> None:
    """This holds even if the newest checkpoint is also the best."""
    (empty_folder / "verse.txt").write_text(VERSE, encoding="utf-8")
    called(empty_folder, "train", "verse.txt", "--name", "plain", *SMALL, "-s", "train.steps=6")
    run = Path("runs/plain")
    newest = checkpoint_steps(run)[-1]
    assert best_step(run) == newest
    spoil(run, newest)
    done = cli("train", "--resume", "plain", *GO_ON)
    assert (done.code, f"skipping the checkpoint of step {newest}: " in done.err) == (0, True)


def test_without_an_intact_checkpoint_a_resume_is_one_line_and_changes_nothing(cli: Cli, run: Path) -> None:
    for step in (2, 4, 6):
        spoil(run, step)
    before = contents(run)
    error = cli("train", "--resume", "stopped", *GO_ON).error
    problem = "no checkpoint is intact (skipping the checkpoint of step 6: "
    assert error.startswith(f"cannot resume run stopped: {problem}")
    assert contents(run) == before


def test_a_run_without_a_checkpoint_says_so(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UserError, match=r"^cannot resume run stopped: it has no checkpoint"):
        prepare_resume(run, [])


@pytest.mark.parametrize("name", [*FILES, METADATA])
def test_a_checkpoint_with_any_damaged_file_is_skipped(run: Path, name: str) -> None:
    spoil(run, 6, name)
    checkpoint, (notice,) = newest_intact(run)
    assert (checkpoint.path, checkpoint.metadata.state.step) == (step_folder(run, 4), 4)
    assert notice.startswith("skipping the checkpoint of step 6: ")
    assert name in notice


def test_a_refused_resume_quarantines_nothing(cli: Cli, run: Path) -> None:
    spoil(run, 6)
    assert "a resumed run keeps its settings" in cli("train", "--resume", "stopped", "-s", "optim.lr=1").error
    assert checkpoint_steps(run) == [2, 4, 6]


@pytest.mark.parametrize("damage", ["missing", "invalid", "other length"])
def test_the_settings_of_the_checkpoint_win(cli: Cli, run: Path, damage: str) -> None:
    """One flipped bit of config.yaml must not change a run."""
    settings = (run / "config.yaml").read_text(encoding="utf-8")
    if damage == "missing":
        (run / "config.yaml").unlink()
    else:
        changed = "train: {step: 8}" if damage == "invalid" else settings.replace("steps: 6", "steps: 7")
        assert changed != settings
        (run / "config.yaml").write_text(changed, encoding="utf-8")
    done = cli("train", "--resume", "stopped", *GO_ON)
    assert (done.code, "config.yaml" in done.err, "; using the checkpoint's settings" in done.err) == (0, True, True)
    assert (run / "config.yaml").read_text(encoding="utf-8") == settings.replace("steps: 6", "steps: 8")


def test_resuming_a_finished_run_changes_nothing(cli: Cli, run: Path) -> None:
    """A refused resume neither quarantines the damaged checkpoint nor saves the new length."""
    spoil(run, 6)
    before = contents(run)
    error = cli("train", "--resume", "stopped", "-s", "train.steps=4").error
    assert "run stopped is finished at step 4" in error
    assert contents(run) == before


def test_a_resume_of_a_finished_run_completes_its_last_save(cli: Cli, run: Path) -> None:
    """A kill after the checkpoint is published leaves hidden folders."""
    after = contents(run)
    (run / "checkpoints/.step-00000002.0123456789abcdef0123456789abcdef.tmp").mkdir()
    assert "run stopped is finished" in cli("train", "--resume", "stopped", "-s", "train.steps=6").error
    assert contents(run) == after
    assert list((run / "checkpoints").glob(".*")) == []


def test_a_resume_that_fails_after_a_save_keeps_its_new_settings(
    cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new checkpoint has the same step as the quarantined one."""
    spoil(run, 6)
    step = Training.step

    def failing(self: Training) -> None:
        if self.state.step == 7:
            raise UserError("not one step more")
        step(self)

    monkeypatch.setattr(Training, "step", failing)
    assert "not one step more" in cli("train", "--resume", "stopped", *GO_ON).error
    assert checkpoint_steps(run) == [2, 4, 6]
    assert "steps: 8" in (run / "config.yaml").read_text(encoding="utf-8")


def test_errors_of_sample_and_eval_about_damage_say_what_to_type(cli: Cli, run: Path) -> None:
    """The suggested checkpoint works."""
    spoil(run, 6, "model.safetensors")
    for command in (["sample", "-l", "3"], ["eval"]):
        error = cli(*command, "stopped@last").error
        assert "model.safetensors has changed since it was saved" in error
        assert cli(*command, "stopped@4").code == 0


# --- one at a time -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["--resume", "stopped", *GO_ON], ["verse.txt", "--name", "stopped"]], ids=str)
def test_a_run_in_use_is_refused_in_one_line_and_untouched(cli: Cli, run: Path, command: list[str]) -> None:
    before = contents(run)
    with lock(run):
        error = cli("train", *command).error
        assert "run stopped is in use by process" in error or "run 'stopped' already exists" in error
        for reading in (["sample", "stopped", "-l", "3"], ["eval", "stopped"], ["runs"], ["runs", "verify"]):
            assert cli(*reading).code == 0, "the lock does not stop readers"
    assert contents(run) == before
    assert cli("train", "--resume", "stopped", *GO_ON).code == 0


def test_settings_for_a_mac_are_those_for_its_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("text.txt").write_text(VERSE * 400, encoding="utf-8")
    on_cpu = prepare_run(["text.txt"]).config
    monkeypatch.setattr(device, "available_devices", lambda: ["mps", "cpu"])
    assert prepare_run(["text.txt"], processes=2).config.train.steps == on_cpu.train.steps
    assert prepare_run(["text.txt"]).config.train.steps == on_cpu.train.steps
