"""Read a file of torch.save without unpickling it.

Such a file is a zip archive with a pickle, `data.pkl`, and one entry for the numbers of each tensor. An unpickler calls
what a pickle names. Even where that is harmless, it can take forever: hashing nested tuples takes exponential time.
`_interpret` therefore reads the pickle as data, and knows only what torch.save writes for plain values and tensors.
"""

import io
import math
import os
import pickletools
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from minigpt.errors import UserError, escape
from minigpt.files import open_within
from minigpt.interop.imported import as_float32

STORAGES = {"torch FloatStorage": "F32", "torch HalfStorage": "F16", "torch BFloat16Storage": "BF16"}
"""Types of numbers, and their names in safetensors files."""
ORDERED_DICT, TENSOR = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"
LIMIT = 1 << 19
"""The maximum size of the pickle and of the archive's directory, in bytes. GPT-2 XL needs half of it."""
CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


@dataclass(frozen=True)
class _Name:
    """A class or function that the pickle names."""

    name: str


@dataclass(frozen=True)
class _Storage:
    """The numbers of one or more tensors."""

    dtype: str
    key: str
    """The name of the entry, in the folder `data`."""


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    start: int
    """The index of the first number in the storage."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """The distance between neighbors in each dimension, in numbers."""

    @property
    def is_contiguous(self) -> bool:
        """Whether its numbers follow each other in the storage."""
        steps = [math.prod(self.shape[i + 1 :]) for i in range(len(self.shape))]
        return all(
            size == 1 or stride == step for size, stride, step in zip(self.shape, self.strides, steps, strict=True)
        )


class _SmallReads(io.BufferedReader):
    """A file that refuses large reads, so that zipfile cannot read a directory of gigabytes."""

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(size if size is not None and 0 <= size <= LIMIT else LIMIT + 1)
        if len(content) > LIMIT:
            raise ValueError("more entries than torch.save writes")
        return content


def load(path: Path, part: str) -> dict[str, Any]:
    """Return the dictionary in a file. In its dictionary `part`, all values are tensors, returned in float32.

    Raises:
        UserError: The file has anything but plain values and tensors, or is damaged.
    """
    with open_within(path, path.parent) as file:
        try:
            return _load(file, part)
        except UserError as error:
            raise UserError(f"{escape(path)} {error}") from error
        except MemoryError:
            raise
        except Exception as error:  # zipfile and pickletools raise many types for damaged files
            problem = "is damaged, or not a file of torch.save with nothing but tensors and plain values"
            raise UserError(f"{escape(path)} {problem}; no code from it runs") from error


def _load(file: BinaryIO, part: str) -> dict[str, Any]:
    with zipfile.ZipFile(_SmallReads(io.FileIO(file.fileno(), closefd=False))) as archive:
        records = _records(archive, os.fstat(file.fileno()).st_size)
        if "byteorder" in records and _content(archive, records["byteorder"]) != b"little":
            raise UserError("was saved on a big-endian machine, and minigpt reads little-endian numbers")
        if (size := records["data.pkl"].file_size) > LIMIT:
            raise UserError(f"has {size:,} bytes besides its tensors")
        values = _interpret(_content(archive, records["data.pkl"]))
        tensors = values.get(part) if isinstance(values, dict) else None
        if not isinstance(tensors, dict) or not all(map(_is_tensor, tensors.items())):
            raise UserError(f"has no tensors under '{part}'")
        if len({tensor.storage.key for tensor in tensors.values()}) < len(tensors) - 1:  # two may be tied
            raise UserError("has several tensors that share their numbers")
        arrays = {}
        for name, tensor in tensors.items():
            if not tensor.is_contiguous:
                raise UserError(f"has the numbers of {escape(name)[:80]} in another order than minigpt reads")
            content = _content(archive, records[f"data/{tensor.storage.key}"])
            numbers = as_float32(tensor.storage.dtype, content)
            arrays[name] = numbers[tensor.start :][: math.prod(tensor.shape)].reshape(tensor.shape)
        return {**values, part: arrays}


def _records(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """Return the entries of an archive of `size` bytes by their names in its only folder."""
    entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise UserError("is compressed, which torch.save never does")
    if sum(entry.file_size for entry in entries) > size:
        raise UserError("is damaged: its parts are larger than the file")
    folder = entries[0].filename.partition("/")[0] + "/"
    names = {entry.filename.lower() for entry in entries if entry.filename.startswith(folder)}
    if len(names) < len(entries):
        raise UserError("has entries outside its folder, or several with the same name")
    return {entry.filename.removeprefix(folder): entry for entry in entries}


def _content(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    with archive.open(entry) as file:
        return b"".join(iter(lambda: file.read(LIMIT), b""))


def _interpret(content: bytes) -> Any:
    """Return what a pickle describes, with tensors as `_Tensor`. Nothing is called, and unknown opcodes are errors."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    argument: Any

    def pop(start: int) -> list[Any]:
        items = stack[start:]
        del stack[start:]
        return items

    for opcode, argument, _ in pickletools.genops(content):
        match opcode.name:
            case "BINUNICODE" | "BINFLOAT" | "BININT" | "BININT1" | "BININT2" | "LONG1":
                if isinstance(argument, int) and abs(argument) >= 1 << 63:  # long ones hash alike, or print slowly
                    raise UserError("has a number beyond 64 bits")
                stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE" | "EMPTY_TUPLE":
                stack.append(CONSTANTS[opcode.name])
            case "EMPTY_DICT" | "EMPTY_LIST":
                stack.append({} if opcode.name == "EMPTY_DICT" else [])
            case "MARK":
                marks.append(len(stack))
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(pop(-int(opcode.name[-1]))))
            case "TUPLE":
                stack.append(tuple(pop(marks.pop())))
            case "APPEND" | "APPENDS":
                items = pop(-1 if opcode.name == "APPEND" else marks.pop())
                stack[-1].extend(items)
            case "SETITEM" | "SETITEMS":
                items = pop(-2 if opcode.name == "SETITEM" else marks.pop())
                if not all(type(key) in (str, int) for key in items[::2]):  # others may take long to hash
                    raise UserError("has a key that is neither a name nor a number")
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "GLOBAL":
                if argument not in (ORDERED_DICT, TENSOR, *STORAGES):
                    raise UserError(f"names {escape(argument)[:80]}, which nanoGPT does not save")
                stack.append(_Name(argument))
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE":
                stack.append(_built(*pop(-2)))
            case "BUILD":  # attributes of an OrderedDict
                stack.pop()
            case "STOP":
                return stack.pop()
            case "PROTO":
                pass
            case name:
                raise UserError(f"is a pickle with {name}, which torch.save does not write")
    raise AssertionError("genops ends with STOP")


def _is_tensor(item: tuple[Any, Any]) -> bool:
    return isinstance(item[0], str) and isinstance(item[1], _Tensor)


def _storage(identity: Any) -> _Storage:
    match identity:
        case ("storage", _Name(name), str(key), str(), int()):
            return _Storage(STORAGES[name], key)
    raise ValueError("not a storage")


def _built(function: Any, arguments: Any) -> Any:
    """Return what a call returns, without calling anything."""
    if function == _Name(ORDERED_DICT) and arguments == ():
        return {}
    match arguments:
        case (_Storage() as storage, start, tuple(shape), tuple(strides), *_) if function == _Name(TENSOR):
            if len(shape) == len(strides) <= 8 and all(type(n) is int and n >= 0 for n in (start, *shape, *strides)):
                return _Tensor(storage, start, shape, strides)
    raise ValueError("neither a dictionary nor a tensor")
