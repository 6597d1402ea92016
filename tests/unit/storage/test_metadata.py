"""metadata.json is strictly typed, and any change to it or to the files beside it is noticed."""

import copy
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from minigpt.config.schema import MOST_THREADS
from minigpt.errors import UserError
from minigpt.storage.metadata import (
    METADATA,
    Environment,
    TrainState,
    digest,
    read_metadata,
)

FIELDS: dict[str, Any] = {
    "format": 1,
    "corpus": "abc.txt",
    "fingerprint": "f",
    "vocab_size": 5,
    "parameters": 7,
    "runtime": {"device": "cpu", "dtype": "float32", "compile": False, "threads": 1},
    "state": {"step": 5, "best_loss": 1.5, "best_step": 4, "validation_loss": 1.75},
}


def write(folder: Path, fields: dict[str, Any], content: str | None = None) -> Path:
    """Write a metadata.json with its hash, or `content`."""
    folder.mkdir(exist_ok=True)
    text = content or json.dumps({**fields, "sha256": {METADATA: digest(fields)}})
    (folder / METADATA).write_text(text, encoding="utf-8")
    return folder


def changed(field: str, value: Any) -> dict[str, Any]:
    """Return the fields with another value for one of them."""
    fields = copy.deepcopy(FIELDS)
    *parents, name = field.split(".")
    inner = fields
    for parent in parents:
        inner = inner[parent]
    inner[name] = value
    return fields


def test_metadata_reads_back_with_its_types(tmp_path: Path) -> None:
    state = TrainState(5, 10**15, 1 / 3, 0.1 + 0.2, 5e-324, None, 0, 1.7e308, 3, math.pi, 7)
    metadata = read_metadata(write(tmp_path / "c", {**FIELDS, "state": asdict(state)}))
    assert metadata.state == state, "to the last bit"
    assert metadata.runtime == Environment(device="cpu", dtype="float32", compile=False, threads=1)
    assert (metadata.step, metadata.corpus, metadata.state.validation_loss) == (5, "abc.txt", 5e-324)
    with pytest.raises(UserError, match=r"cannot read .*metadata\.json: No such file"):
        read_metadata(tmp_path / "missing")


def test_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    fields = copy.deepcopy(FIELDS)
    for part in (fields, fields["runtime"]):
        part["of a later version"] = {"a": [1]}
    assert read_metadata(write(tmp_path / "c", fields)).step == 5


INVALID: list[tuple[str, Any]] = [
    *(("format", value) for value in (0, 2, 1.5, "1", None, "\x1b[2J\n" * 50)),
    *(("corpus", value) for value in (None, 5)),
    *(("fingerprint", value) for value in (None, 5)),
    *(("vocab_size", value) for value in (0, -5, "5", 1 << 70)),
    *(("parameters", value) for value in (0, 7.0, 1 << 70)),
    *(("runtime.threads", value) for value in (0, "1", MOST_THREADS + 1, True, 1.0)),  # more crash torch
    *(("runtime.compile", value) for value in ("false", None)),
    *(("runtime.device", value) for value in (None, 1)),
    *(("state", value) for value in (None, [])),
    *(("state.step", value) for value in (-1, "5", 5.0, True, 10**4000)),
    *(("state.best_loss", value) for value in (math.nan, -math.inf, "1.5")),
    *(("state.seconds", value) for value in (math.inf, "0", None)),
]


@pytest.mark.parametrize(("field", "value"), INVALID, ids=lambda value: repr(value)[:20])
def test_each_field_has_a_type_and_bounds(tmp_path: Path, field: str, value: Any) -> None:
    """The hashes match: a stranger chose the value."""
    with pytest.raises(UserError, match=rf"metadata\.json is not valid: {field}|damaged") as error:
        read_metadata(write(tmp_path / "a\n\x1b[2Jb", changed(field, value)))
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 400 + len(str(tmp_path))


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "format"])
def test_no_field_may_be_missing(tmp_path: Path, name: str) -> None:
    fields = {key: value for key, value in FIELDS.items() if key != name}
    with pytest.raises(UserError, match=rf"metadata\.json is not valid: {name}: Field required"):
        read_metadata(write(tmp_path / "c", fields))


@pytest.mark.parametrize(
    "content",
    [
        *("[]", "null", "7", "NaN", '"x"', "{", '{"format": 1}', '{"sha256": []}', '{"sha256": {"metadata.json": 1}}'),
        *("[" * 200_000, '{"a":' * 200_000, "9" * 5000, "\0", '{"sha256": {"metadata.json": "' + "0" * 64 + '"}}'),
    ],
    ids=lambda text: text[:20],
)
def test_anything_else_is_one_line(tmp_path: Path, content: str) -> None:
    with pytest.raises(UserError, match=r"damaged: metadata\.json has changed since it was saved"):
        read_metadata(write(tmp_path, {}, content))


def test_changes_of_the_environment_are_named() -> None:
    known = {"processor": "p", "torch": "2.9", "numpy": "2.1", "minigpt": "0.1"}
    before = Environment(device="cpu", dtype="float32", compile=False, threads=1, **known)
    after = before.model_copy(update={"threads": 4, "torch": "2.10", "compile": True})
    assert before.changes(before) == []
    expected = ["compile True instead of False", "threads 4 instead of 1", "torch 2.10 instead of 2.9"]
    assert after.changes(before) == expected
    unknown = Environment(device="cpu", dtype="float32", compile=False, threads=1)
    assert before.changes(unknown) == [], "empty fields do not count"
