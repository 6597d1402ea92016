"""A short form of scripts/stress/torture, and tests that it can fail."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import powerloss
import pytest
from checks import find_damage
from powerloss import Cut, Disk, RandomCut, Record

ROOT = Path(__file__).resolve().parents[2]
COUNTS = "kills=2 early=1 pairs=2 ranks=3 hosts=0 faults=3 images=3 settings=1 seed=1"
SHORT = [word for option in COUNTS.split() for word in f"--{option}".split("=")]
Tortured = tuple[Path, "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def tortured(tmp_path_factory: pytest.TempPathFactory) -> Tortured:
    """The folder and the result of a short run of scripts/stress/torture."""
    folder = tmp_path_factory.mktemp("torture") / "work"
    command = [sys.executable, str(ROOT / "scripts/stress/torture"), *SHORT, "--keep", str(folder)]
    done = subprocess.run([*command, "--json", str(folder) + ".json"], capture_output=True, text=True, check=False)
    if done.returncode == 2 and done.stderr.startswith("torture: "):
        pytest.skip(done.stderr.removeprefix("torture: ").strip())
    return folder, done


@pytest.mark.nightly
def test_training_survives_every_fault(tortured: Tortured) -> None:
    """No checkpoint is lost or visible in part, and resumed runs end in the same state, bit for bit."""
    folder, done = tortured
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["fault"]: row for row in json.loads(Path(f"{folder}.json").read_text(encoding="utf-8"))}
    assert all(row["survived"] == row["tried"] > 0 for row in rows.values())
    parts = (
        *("resumed after kills", "SIGKILL before", "resumed with another number of ranks"),
        *("SIGKILL at an operation", "power loss", "resumed after a power loss", "limit on", "a flipped bit"),
    )
    assert [part for part in parts if not any(fault.startswith(part) for fault in rows)] == []


SYNCED: dict[str, Callable[[str], bool]] = {
    "anything": lambda path: True,
    "the folder of runs": lambda path: path == "runs",
    "the run": lambda path: path == "runs/run",
    "the folder of checkpoints": lambda path: path.endswith("/checkpoints"),
    "a checkpoint": lambda path: Path(path).name.startswith(".step-"),
    "weights": lambda path: path.endswith("/model.safetensors"),
    "metadata": lambda path: path.endswith("/metadata.json"),
}


@pytest.mark.nightly
@pytest.mark.parametrize("what", SYNCED)
def test_a_missing_sync_is_found(tortured: Tortured, tmp_path: Path, what: str) -> None:
    """Without the syncs of one kind in the log of a real run, some power loss must damage a save."""
    folder = tortured[0] / "power"
    log = powerloss.read_log(folder / "power.log", folder / "power")
    without = [record for record in log if record.kind != "s" or not SYNCED[what](record.path)]
    assert len(without) < len(log)
    problems = set()
    for i, loss in enumerate(powerloss.power_losses(without, {"text.txt": b""}, 0, random.Random(0))):
        if loss.saved > 0 and loss.kind == "only synced changes" and i % 10 == 0:
            powerloss.write_image(loss.image, tmp_path / str(i))
            problems.add(find_damage(tmp_path / f"{i}/runs/run", loss.saved))
    assert problems - {None}


# --- the model of a disk, on logs written by hand ------------------------------------------------------

PUBLISH = [
    Record("m", "new"),
    Record("o", "new/file", number=1),
    Record("w", "new/file", number=0, data=b"content"),
    Record("s", "new/file"),
    Record("s", "new"),
    Record("r", "new", "old"),
    Record("s", ""),
    Record("M", "saved 1"),
]


def can_lose(log: list[Record]) -> bool:
    """Return whether some power loss after `saved 1` leaves no old/file, or an incomplete one."""
    losses = powerloss.power_losses(log, {}, 40, random.Random(0))
    return any(loss.image.get("old/file") != b"content" for loss in losses if loss.saved > 0)


def test_publishing_with_all_syncs_loses_nothing() -> None:
    assert not can_lose(PUBLISH)


@pytest.mark.parametrize("path", ["new/file", "new", ""])
def test_publishing_without_one_sync_can_lose_the_file(path: str) -> None:
    assert can_lose([record for record in PUBLISH if record != Record("s", path)])


def test_a_rename_can_be_kept_before_the_content() -> None:
    log = [record for record in PUBLISH if record != Record("s", "new/file")]
    losses = powerloss.power_losses(log, {}, 40, random.Random(0))
    seen = {loss.image.get("old/file") for loss in losses}
    assert {None, b"content", b"", bytes(7)} < seen
    assert any(content and content not in (b"content", bytes(7)) for content in seen)


def test_a_removed_file_can_return_until_its_folder_is_synced() -> None:
    disk = Disk({"a": None, "a/kept": b"1", "a/removed": b"2"})
    disk.apply(Record("u", "a/removed"))
    assert disk.image(Cut(keeps_all=True)) == {"a": None, "a/kept": b"1"}
    assert disk.image(Cut(keeps_all=False)) == {"a": None, "a/kept": b"1", "a/removed": b"2"}
    disk.apply(Record("s", "a"))
    assert disk.image(Cut(keeps_all=False)) == {"a": None, "a/kept": b"1"}


def test_a_replaced_file_has_the_old_or_the_new_content() -> None:
    disk = Disk({"a": b"before"})
    for record in (Record("o", "b"), Record("w", "b", data=b"after"), Record("s", "b"), Record("r", "b", "a")):
        disk.apply(record)
    generator = random.Random(0)
    assert {disk.image(RandomCut(generator))["a"] for _ in range(50)} == {b"before", b"after"}


def test_writes_and_truncations_are_replayed_at_their_offsets() -> None:
    disk = Disk({"f": b"0123456789"})
    for record in (Record("w", "f", number=2, data=b"ab"), Record("w", "f", number=12, data=b"z")):
        disk.apply(record)
    disk.apply(Record("t", "f", number=14))
    assert disk.image(Cut(keeps_all=True)) == {"f": b"01ab456789\0\0z\0"}
    disk.apply(Record("o", "f", number=1))
    assert disk.image(Cut(keeps_all=True)) == {"f": b""}
    assert disk.image(Cut(keeps_all=False)) == {"f": b"0123456789"}


@pytest.mark.parametrize(
    "record", [Record("x", "f"), Record("w", "unknown", data=b"1"), Record("r", "f", "folder/f")], ids=str
)
def test_an_operation_without_a_model_is_an_error(record: Record) -> None:
    disk = Disk({"f": b"", "folder": None})
    with pytest.raises(ValueError, match=r"no model|never creates"):
        disk.apply(record)
