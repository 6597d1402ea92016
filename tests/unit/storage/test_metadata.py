"""metadata.json: believed only as it was written, field by field; and each file beside it only with its hash."""

import copy
import hashlib
import json
import math
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from minigpt.config.schema import MOST_THREADS, RunConfig
from minigpt.errors import UserError
from minigpt.storage.metadata import (
    FILES,
    METADATA,
    Environment,
    Metadata,
    TrainState,
    digest,
    read_checked,
    read_metadata,
    verify,
    verify_file,
)

FACTS: dict[str, Any] = {
    "format": 1,
    "step": 5,
    "characters_seen": 100,
    "validation_loss": 1.75,
    "corpus": {"name": "abc.txt", "fingerprint": "f"},
    "vocab_size": 5,
    "parameters": 7,
    "runtime": {"device": "cpu", "dtype": "float32", "compile": False, "threads": 1},
    "state": {"step": 5, "best_loss": 1.5, "best_step": 4},
}


def describe(folder: Path, facts: dict[str, Any], content: str | None = None) -> Path:
    """A metadata.json that says `facts`, with a hash that matches them, and those of the files that are there."""
    hashes = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES if (folder / name).exists()
    }
    folder.mkdir(exist_ok=True)
    text = content or json.dumps({**facts, "sha256": {**hashes, METADATA: digest(facts)}})
    (folder / METADATA).write_text(text, encoding="utf-8")
    return folder


def checkpoint(folder: Path) -> Path:
    """A folder of five files whose hashes match. Nothing here looks into the other four."""
    folder.mkdir()
    for name in FILES:
        (folder / name).write_bytes(os.urandom(2000))
    return describe(folder, FACTS)


# --- what it says ------------------------------------------------------------------------------------


def test_a_description_reads_back_with_its_types(tmp_path: Path) -> None:
    meta = read_metadata(describe(tmp_path / "c", FACTS))
    assert meta.state == TrainState(step=5, best_loss=1.5, best_step=4)
    assert meta.runtime == Environment(device="cpu", dtype="float32", compile=False, threads=1)
    assert (meta.step, meta.corpus.name, meta.validation_loss) == (5, "abc.txt", 1.75)
    with pytest.raises(UserError, match=r"meta\.json cannot be read: No such file"):
        read_metadata(tmp_path / "nowhere")


def test_a_state_of_any_kind_comes_back_the_same_to_the_last_bit(tmp_path: Path) -> None:
    state = TrainState(5, 10**15, 1 / 3, 0.1 + 0.2, 5e-324, None, 0, 1.7e308, 3, 20, math.pi, 7, 2)
    facts = {**FACTS, "state": asdict(state)}
    assert read_metadata(describe(tmp_path / "c", facts)).state == state


@pytest.mark.parametrize("form", [0, 2, 1.5, True, "1", [1], None], ids=repr)
def test_another_format_is_refused_by_its_number(tmp_path: Path, form: Any) -> None:
    with pytest.raises(UserError, match=r"has format .*, this version of minigpt reads 1|format: .*integer") as error:
        read_metadata(describe(tmp_path / "c", {**FACTS, "format": form}))
    assert "\n" not in str(error.value)


def test_a_file_of_a_later_version_may_say_more(tmp_path: Path) -> None:
    facts = copy.deepcopy(FACTS)
    for part in (facts, facts["corpus"], facts["runtime"]):
        part["of a later version"] = {"a": [1]}
    assert read_metadata(describe(tmp_path / "c", facts)).step == 5


# --- what it may not say -----------------------------------------------------------------------------

WRONG: list[tuple[str, Any]] = [
    *(("step", value) for value in (-1, 5.0, "5", None, True, 10**4000)),
    *(("characters_seen", value) for value in (-1, "100", 1.5)),
    *(("validation_loss", value) for value in ("1.5", math.nan, math.inf, [1.5])),
    *(("corpus", value) for value in (None, [], "abc", {"name": "a"}, {"name": 1, "fingerprint": "f"})),
    *(("vocab_size", value) for value in (0, -5, "5", 1 << 70)),
    *(("parameters", value) for value in (0, 7.0)),
    *(("runtime.threads", value) for value in (0, -1, "1", 10**6, True, 1.0)),
    *(("runtime.compile", value) for value in ("false", 0, None)),
    *(("runtime.device", value) for value in (None, 1, ["cpu"])),
    *(("state", value) for value in (None, [], 5)),
    *(("state.step", value) for value in (-1, "5", 5.0)),
    *(("state.best_loss", value) for value in (math.nan, -math.inf, "1.5")),
    *(("state.seconds", value) for value in (math.inf, "0", None)),
    *(("state.skipped", value) for value in (-1, 1.5, None)),
    *(("sha256", value) for value in (None, 5, {"model.safetensors": 5})),
]


@pytest.mark.parametrize(("field", "value"), WRONG, ids=lambda value: repr(value)[:20])
def test_each_field_has_its_type_and_its_bounds(tmp_path: Path, field: str, value: Any) -> None:
    """With a hash that matches, as a stranger would write it."""
    facts = copy.deepcopy(FACTS)
    *parents, name = field.split(".")
    place = facts
    for parent in parents:
        place = place[parent]
    place[name] = value
    content = None
    if field == "sha256":
        hashes = {**value, METADATA: digest(facts)} if isinstance(value, dict) else value
        content = json.dumps({**facts, "sha256": hashes})
    with pytest.raises(UserError) as error:
        read_metadata(describe(tmp_path / "c", facts, content))
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 400 + len(str(tmp_path))
    assert f"metadata.json is not valid: {field}" in message or "damaged" in message


@pytest.mark.parametrize("name", [name for name in FACTS if name != "format"])
def test_no_field_may_be_missing(tmp_path: Path, name: str) -> None:
    facts = {key: value for key, value in FACTS.items() if key != name}
    with pytest.raises(UserError, match=rf"meta\.json is not valid: {name}: Field required"):
        read_metadata(describe(tmp_path / "c", facts))


@pytest.mark.parametrize(
    "content",
    [
        *(
            "",
            "[]",
            "null",
            "7",
            "NaN",
            '"x"',
            "{",
            '{"format": 1}',
            '{"sha256": []}',
            '{"sha256": {"metadata.json": 1}}',
        ),
        *("[" * 200_000, '{"a":' * 200_000, "9" * 5000, "\0", '{"sha256": {"metadata.json": "' + "0" * 64 + '"}}'),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_description_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / METADATA).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"damaged: meta\.json changed since it was written"):
        read_metadata(tmp_path)


def test_any_change_to_what_it_says_is_found(tmp_path: Path) -> None:
    """A flipped digit of the best loss was once believed."""
    folder = describe(tmp_path / "c", FACTS)
    content = (folder / METADATA).read_bytes()
    for place in range(len(content)):
        changed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        (folder / METADATA).write_bytes(changed)
        try:
            meta = read_metadata(folder)
        except UserError:
            continue
        assert meta.model_dump() == Metadata.model_validate_json(content).model_dump(), changed


@pytest.mark.parametrize(
    ("name", "fine"),
    [
        ("step-00000005", True),
        ("copy", True),
        ("step-last", True),
        ("step-00000006", False),
        ("step-5", False),
        ("step-000000005", False),
        ("00000006", False),
    ],
)
def test_a_folder_that_is_named_for_another_step_is_damaged(tmp_path: Path, name: str, fine: bool) -> None:
    """The files of two steps were swapped, each whole in itself."""
    folder = describe(tmp_path / name, FACTS)
    if fine:
        assert read_metadata(folder).step == 5
        return
    with pytest.raises(UserError, match=r"is damaged: it holds step 5"):
        read_metadata(folder)


def test_a_state_of_another_step_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="damaged"):
        read_metadata(describe(tmp_path / "c", {**FACTS, "state": {"step": 6}}))


def test_a_name_cannot_break_the_line(tmp_path: Path) -> None:
    folder = describe(tmp_path / "a\n\x1b[2Jb", {**FACTS, "format": "\x1b[2J\n" * 50})
    with pytest.raises(UserError) as error:
        read_metadata(folder)
    assert str(error.value).isprintable()


# --- the files beside it -----------------------------------------------------------------------------


def test_a_whole_checkpoint_is_verified_and_read(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c")
    meta = verify(folder)
    assert meta.step == 5
    for name in FILES:
        assert read_checked(folder, name, meta, 2000) == (folder / name).read_bytes()
        with pytest.raises(UserError, match="is larger than the 1,999 bytes"):
            read_checked(folder, name, meta, 1999)
        with pytest.raises(UserError, match="is larger than the 1,999 bytes"):
            verify_file(folder, name, meta, 1999)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["flipped", "shorter", "longer", "swapped", "missing", "unnamed"])
def test_each_file_is_covered_by_its_hash(tmp_path: Path, name: str, damage: str) -> None:
    folder, other = checkpoint(tmp_path / "c"), checkpoint(tmp_path / "other")
    path, content = folder / name, (folder / name).read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "swapped":
        shutil.copy(other / name, path)
    elif damage == "unnamed":
        said = json.loads((folder / METADATA).read_text(encoding="utf-8"))
        del said["sha256"][name]
        (folder / METADATA).write_text(json.dumps(said), encoding="utf-8")
    else:
        flipped = content[:1000] + bytes([content[1000] ^ 64]) + content[1001:]
        path.write_bytes({"flipped": flipped, "shorter": content[:-1], "longer": content + b"\0"}[damage])
    says = f"is incomplete: {name} is missing" if damage == "missing" else f"is damaged: {name} changed since"
    meta = read_metadata(folder)
    for check in (lambda: verify(folder), lambda: read_checked(folder, name, meta, 9999)):
        with pytest.raises(UserError, match=says):
            check()
    assert verify(other).step == 5


# --- what a run was computed with --------------------------------------------------------------------


def test_what_changed_is_named_and_what_was_not_noted_is_not() -> None:
    known = {"processor": "p", "torch": "2.9", "numpy": "2.1", "minigpt": "0.1"}
    facts = Environment(device="cpu", dtype="float32", compile=False, threads=1, **known)
    assert facts.changes(facts) == []
    newer = facts.model_copy(update={"threads": 4, "torch": "2.10", "compile": True})
    assert newer.changes(facts) == [
        "compile True in place of False",
        "threads 4 in place of 1",
        "torch 2.10 in place of 2.9",
    ]
    before = Environment(device="cpu", dtype="float32", compile=False, threads=1)
    assert facts.changes(before) == [], "an older version noted less"


def test_the_bounds_of_threads_are_those_of_the_setting() -> None:
    """Torch ends the process with a segmentation fault when it is asked for a million."""
    facts = {"device": "cpu", "dtype": "float32", "compile": False}
    most = MOST_THREADS
    assert Environment(**facts, threads=most).threads == most
    with pytest.raises(ValueError, match="less than or equal to"):
        Environment(**facts, threads=most + 1)
    RunConfig.model_validate({"runtime": {"threads": most}})
    with pytest.raises(ValueError, match="threads"):
        RunConfig.model_validate({"runtime": {"threads": most + 1}})
