"""Training that is broken in every way a machine can: scripts/stress/torture in short, and whether it can fail."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts/stress"))

import powerloss
from powerloss import Cut, Disk, RandomCut, Record

pytestmark = pytest.mark.alone

Tortured = tuple[Path, "subprocess.CompletedProcess[str]"]
SHORT = ("--kills", "2", "--faults", "3", "--images", "3", "--seed", "1")


@pytest.fixture(scope="module")
def tortured(tmp_path_factory: pytest.TempPathFactory) -> Tortured:
    """A short run of scripts/stress/torture in all its parts, and the folder that it worked in."""
    if sys.platform != "linux":
        pytest.skip("the faults are made with Linux's filter of system calls")
    folder = tmp_path_factory.mktemp("torture") / "work"
    command = [sys.executable, str(ROOT / "scripts/stress/torture"), *SHORT, "--keep", str(folder)]
    done = subprocess.run([*command, "--json", str(folder) + ".json"], capture_output=True, text=True, check=False)
    if done.returncode == 2 and done.stderr.startswith("torture: "):
        pytest.skip(done.stderr.strip())
    return folder, done


def test_every_fault_is_survived(tortured: Tortured) -> None:
    """No checkpoint is lost or seen in part, and every ending is the untouched run's, bit for bit."""
    folder, done = tortured
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["fault"]: row for row in json.loads(Path(f"{folder}.json").read_text(encoding="utf-8"))}
    assert all(row["survived"] == row["tried"] > 0 for row in rows.values())
    kinds = ("resumed after kills", "SIGKILL at an operation", "power cut", "resumed after a power cut", "limit on")
    assert [kind for kind in kinds if not any(fault.startswith(kind) for fault in rows)] == []


SYNCED: dict[str, Callable[[str], bool]] = {
    "anything": lambda path: True,
    "the folder of runs": lambda path: path == "runs",
    "the run's folder": lambda path: path == "runs/run",
    "the folder of checkpoints": lambda path: path.endswith("/checkpoints"),
    "a checkpoint's folder": lambda path: Path(path).name.startswith(".saving-"),
    "weights": lambda path: path.endswith("/model.safetensors"),
    "meta.json": lambda path: path.endswith("/meta.json"),
}


@pytest.mark.parametrize("what", SYNCED)
def test_a_sync_that_is_left_out_is_found(tortured: Tortured, tmp_path: Path, what: str) -> None:
    """Real training's file operations without one sort of sync: some power cut must be seen to lose or spoil a save."""
    from endings import damage_after_cut

    folder = tortured[0] / "power"
    log = powerloss.read_log(folder / "power.log", folder / "power")
    left = [record for record in log if record.kind != "s" or not SYNCED[what](record.path)]
    assert len(left) < len(log)
    problems = set()
    for i, cut in enumerate(powerloss.cuts(left, {"text.txt": b""}, 0, random.Random(0))):
        if cut.saved and cut.kind == "only what was synced" and i % 10 == 0:
            powerloss.write_image(cut.image, tmp_path / str(i))
            problems.add(damage_after_cut(tmp_path / f"{i}/runs/run", cut.saved))
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


def lost(log: list[Record], several: int = 40) -> bool:
    """Whether some power cut after `saved 1` leaves no old/file, or one that is not whole."""
    cuts = powerloss.cuts(log, {}, several, random.Random(0))
    return any(cut.image.get("old/file") != b"content" for cut in cuts if cut.saved)


def test_a_protocol_that_syncs_everything_loses_nothing() -> None:
    assert not lost(PUBLISH)


@pytest.mark.parametrize("path", ["new/file", "new", ""])
def test_each_missing_sync_is_found(path: str) -> None:
    assert lost([record for record in PUBLISH if record != Record("s", path)])


def test_what_is_seen_early_is_not_whole_without_the_syncs_before_the_rename() -> None:
    """A rename that reaches the disk before the content does: found only among the disks that have some of it."""
    log = [record for record in PUBLISH if record != Record("s", "new/file")]
    seen = {cut.image.get("old/file") for cut in powerloss.cuts(log, {}, 40, random.Random(0))}
    assert {None, b"content", b"", bytes(7)} < seen
    assert any(content and content not in (b"content", bytes(7)) for content in seen)


def test_what_was_there_before_lasts_until_its_removal_is_synced() -> None:
    disk = Disk({"a": None, "a/kept": b"1", "a/gone": b"2"})
    disk.apply(Record("u", "a/gone"))
    assert disk.image(Cut(leaves_all=True)) == {"a": None, "a/kept": b"1"}
    assert disk.image(Cut(leaves_all=False)) == {"a": None, "a/kept": b"1", "a/gone": b"2"}
    disk.apply(Record("s", "a"))
    assert disk.image(Cut(leaves_all=False)) == {"a": None, "a/kept": b"1"}


def test_a_file_that_replaces_another_is_the_one_or_the_other() -> None:
    """An atomic write that forgot to sync the folder: old or new, never neither, never in part."""
    disk = Disk({"a": b"before"})
    for record in (Record("o", "b"), Record("w", "b", data=b"after"), Record("s", "b"), Record("r", "b", "a")):
        disk.apply(record)
    draws = random.Random(0)
    assert {disk.image(RandomCut(draws))["a"] for _ in range(50)} == {b"before", b"after"}


def test_writes_and_cuts_are_replayed_where_they_were_made() -> None:
    disk = Disk({"f": b"0123456789"})
    changes: list[dict[str, Any]] = [{"number": 2, "data": b"ab"}, {"number": 12, "data": b"z"}]
    for change in changes:
        disk.apply(Record("w", "f", **change))
    disk.apply(Record("t", "f", number=14))
    assert disk.image(Cut(leaves_all=True)) == {"f": b"01ab456789\0\0z\0"}
    disk.apply(Record("o", "f", number=1))
    assert disk.image(Cut(leaves_all=True)) == {"f": b""}
    assert disk.image(Cut(leaves_all=False)) == {"f": b"0123456789"}


@pytest.mark.parametrize(
    "record", [Record("x", "f"), Record("w", "unknown", data=b"1"), Record("r", "f", "folder/f")], ids=str
)
def test_what_the_model_does_not_know_is_no_silent_success(record: Record) -> None:
    disk = Disk({"f": b"", "folder": None})
    with pytest.raises(ValueError, match=r"no model|never made"):
        disk.apply(record)
