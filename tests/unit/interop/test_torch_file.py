"""Files of torch.save, read without torch: honest ones, and those that try to do harm."""

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minigpt.errors import UserError
from minigpt.interop import torch_file

STORAGE = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\4tQ"
"""The opcodes of a storage of four numbers."""


def archive(entries: list[tuple[str, bytes]], **options: Any) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", **options) as file:
        for name, data in entries:
            file.writestr(zipfile.ZipInfo(name), data)
    return content.getvalue()


def tensor(shape: bytes, strides: bytes, start: bytes = b"K\0") -> bytes:
    """Return the opcodes of a tensor in `STORAGE`."""
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE + start + shape + strides + b"\x89}tR"


def model(*tensors: bytes, more: bytes = b"") -> bytes:
    """Return a pickle of {"model": {"0": tensor, "1": tensor, ...}} and more items."""
    items = b"".join(b"X\1\0\0\0%d" % index + one for index, one in enumerate(tensors))
    return b"\x80\2}(X\5\0\0\0model}(" + items + b"u" + more + b"u."


FOUR = tensor(b"K\4\x85", b"K\1\x85")
DATA = ("a/data/0", np.arange(4, dtype="<f4").tobytes())
BOMB = b"\x80\2ccollections\nCounter\ncbuiltins\nbytearray\nJ\xff\xff\xff\x00\x85R\x85R."
NESTED = b"N\x85q\0" + b"h\0h\0\x86q\0" * 100  # hashing it takes 2^100 steps


def refused(path: Path, content: bytes, problem: str) -> None:
    path.write_bytes(content)
    with pytest.raises(UserError, match=problem):
        torch_file.load(path, "model")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_value_that_torch_saves_is_read(dtype: torch.dtype, tmp_path: Path) -> None:
    weights = {
        "a": torch.randn(3, 4).to(dtype),
        "b": torch.tensor(2.5, dtype=dtype),
        "c": torch.randn(9).to(dtype)[4:7],
    }
    weights["tied"] = weights["a"]
    others = {"none": None, "flags": [True, False], "tuple": (1, -2, 3.5, ()), 7: {"x": [2**40, "é"]}}
    layer = torch.nn.Linear(2, 2)
    content = {"model": weights, **others, "state": layer.state_dict(), "list": [torch.ones(2)]}
    torch.save(content, tmp_path / "ckpt.pt")
    found = torch_file.load(tmp_path / "ckpt.pt", "model")
    assert {key: found[key] for key in others} == others
    assert found["model"].keys() == weights.keys()
    for name, expected in weights.items():
        assert found["model"][name].dtype == np.float32
        assert np.array_equal(found["model"][name], expected.float().numpy())


def test_no_archive_hides_a_second_pickle(tmp_path: Path) -> None:
    path, pickled = tmp_path / "ckpt.pt", model(FOUR)
    path.write_bytes(archive([("a/data.pkl", pickled), DATA]))
    assert torch_file.load(path, "model")["model"]["0"].tolist() == [0, 1, 2, 3]
    names = [("b/DATA.PKL", BOMB), ("b/version", b"3"), ("b/byteorder", b"little"), ("b/x/data.pkl", pickled)]
    refused(path, archive(names), "damaged")
    for name in ("a/DATA.PKL", "a/data.pkl", "b/data.pkl", "data.pkl", "/a/data.pkl", "../data.pkl", "a/data.pkl\0"):
        content = archive([("a/data.pkl", pickled), (f"{name[:-1]}~", BOMB), DATA])  # zipfile warns of equal names
        refused(path, content.replace(f"{name[:-1]}~".encode(), name.encode()), "outside its folder")
    for name in ("a/x/data.pkl", "a\\data.pkl", "A/data.pkl", "a/data.pkl/"):
        refused(path, archive([("a/version", b"3"), (name, pickled), DATA]), "ckpt.pt")


def test_hostile_archives_are_refused(tmp_path: Path) -> None:
    path, pickled = tmp_path / "ckpt.pt", model(FOUR)
    good = archive([("a/data.pkl", pickled), DATA])
    refused(path, archive([("a/data.pkl", pickled), DATA, ("a/byteorder", b"big")]), "big-endian")
    refused(path, archive([("a/data.pkl", pickled)]), "damaged")
    refused(path, archive([("a/data.pkl", pickled), ("a/data/0", b"123")]), "damaged")
    refused(path, archive([("a/data.pkl", pickled), ("a/data/0", b"1234" * 3)]), "damaged")
    refused(path, good.replace(DATA[1], bytes(16), 1), "damaged")  # the checksum differs
    refused(path, good.replace(b"a/data.pkl", b"a/DATA.pkl", 1), "damaged")  # the two directories differ
    refused(path, b"", "damaged")
    count, entry = 20_000, struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 0, 20, *[0] * 8, 1, *[0] * 6) + b"a"
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(entry) * count, 0, 0)
    refused(path, entry * count + end, "damaged")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (model(FOUR, more=NESTED + b"N"), "key"),
        (model(FOUR, more=b"G" + bytes(8) + b"N"), "key"),
        (model(FOUR, more=b"X\1\0\0\0x\x8a\x09" + b"\1" * 9), "64 bits"),
        (model(FOUR, more=b"X\1\0\0\0x\x8b\xff\xff\xff\x7f"), "damaged"),
        (model(FOUR, more=b"X\1\0\0\0x" + b"cos\nsystem\n"), "names os system"),
        (model(FOUR, more=b"X\1\0\0\0x" + b"ccollections\nOrderedDict\n]\x85R"), "damaged"),
        (model(FOUR, more=b"X\1\0\0\0x" + b"\x8f"), "EMPTY_SET"),
        (model(FOUR, more=b"X\1\0\0\0xh\5"), "damaged"),
        (model(*[FOUR] * 3), "share"),
        (model(tensor(b"K\2K\2\x86", b"K\1K\2\x86")), "order"),
        (model(tensor(b"K\x64K\x04\x86", b"K\0K\1\x86")), "order"),
        (model(tensor(b"K\5\x85", b"K\1\x85")), "damaged"),
        (model(tensor(b"K\4\x85", b"K\1\x85", start=b"K\1")), "damaged"),
        (model(tensor(b"J\xff\xff\xff\xff\x85", b"K\1\x85")), "damaged"),
        (model(tensor(b"\x88\x85", b"K\1\x85")), "damaged"),
        (model(tensor(b"(" + b"K\1" * 1000 + b"t", b"(" + b"K\1" * 1000 + b"t")), "damaged"),
        (model(FOUR.replace(b"FloatStorage", b"LongStorage")), "LongStorage"),
        (model(b"}"), "no tensors"),
        (b"\x80\2].", "no tensors"),
        (b"\x80\2(" + b"N" * (1 << 20) + b"t.", "besides its tensors"),
        (b"N", "damaged"),
        (b".", "damaged"),
        (b"t.", "damaged"),
    ],
    ids=range(23),
)
def test_hostile_pickles_are_refused(content: bytes, problem: str, tmp_path: Path) -> None:
    refused(tmp_path / "ckpt.pt", archive([("a/data.pkl", content), DATA]), problem)
