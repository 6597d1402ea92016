"""What a power loss leaves of a folder: a log of file operations, replayed on a disk that guarantees little.

The disk guarantees less than common file systems. The content of a file is safe once the file was synced. A new,
changed or removed name is safe once its folder was synced. Nothing else is safe: a power loss may keep or lose each of
the other changes, and may keep the last write of a file only in part, or as zeros. A rename within a folder is one
change, as in a journal.
"""

import itertools
import random
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeVar

HEAD = struct.Struct("=6q")
Change = TypeVar("Change")


class Record(NamedTuple):
    """An operation. Its kind is the first letter of open, write, truncate, rename, unlink, mkdir, sync, Error or Mark.

    The kind of rmdir is d.
    """

    kind: str
    path: str
    """Relative to the root of the log. For a mark, its text."""
    other: str = ""
    """The new path of a rename."""
    number: int = 0
    """The offset of a write, the new length of a file, an errno, or not 0 if opening a file empties it."""
    data: bytes = b""
    call: int = 0
    """The number of the call, counting those that failed."""


def read_log(path: Path, root: Path) -> list[Record]:
    """Return the records that faults.c wrote, without a last one that a kill made incomplete."""
    content, at, records = path.read_bytes(), 0, []
    while at + HEAD.size <= len(content):
        kind, call, number, *lengths = HEAD.unpack_from(content, at)
        ends = [at + HEAD.size + sum(lengths[:i]) for i in range(len(lengths) + 1)]
        if ends[-1] > len(content):
            break
        name, other, data = (content[begin:end] for begin, end in itertools.pairwise(ends))
        names = (_relative(name.decode(), root) if chr(kind) != "M" else name.decode(), _relative(other.decode(), root))
        records.append(Record(chr(kind), *names, number, data, call))
        at = ends[-1]
    return records


def _relative(path: str, root: Path) -> str:
    return path.removeprefix(str(root)).lstrip("/")


@dataclass
class File:
    """A file: its synced content, and the changes since, as (offset, data) or (length, None) for a truncation."""

    synced: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def content(self, changes: Iterable[tuple[int, bytes | None]]) -> bytes:
        """Return the synced content with these changes."""
        content = bytearray(self.synced)
        for at, data in changes:
            if len(content) < at:
                content.extend(bytes(at - len(content)))
            if data is None:
                del content[at:]
            else:
                content[at : at + len(data)] = data
        return bytes(content)


Names = dict[str, "File | Folder | None"]


@dataclass
class Folder:
    """A folder: its synced names, and the changes since."""

    synced: Names = field(default_factory=dict)
    pending: list[Names] = field(default_factory=list)

    def names(self, changes: Iterable[Names]) -> Names:
        """Return the synced names with these changes."""
        names = dict(self.synced)
        for change in changes:
            names |= change
        return {name: node for name, node in names.items() if node is not None}


Image = dict[str, bytes | None]
"""The content of each file of a folder by its path; None for a folder."""


class Cut:
    """A power loss that keeps all changes that were not synced, or none of them."""

    def __init__(self, keeps_all: bool) -> None:
        self.keeps_all = keeps_all

    def keep(self, pending: list[Change]) -> list[Change]:
        """Return the pending changes that the disk keeps."""
        return pending if self.keeps_all else []

    def tear(self, changes: list[tuple[int, bytes | None]]) -> list[tuple[int, bytes | None]]:
        """Return the changes of a file as the disk keeps them."""
        return changes


class RandomCut(Cut):
    """A power loss that keeps no changes, all, those up to a point, or a random choice."""

    def __init__(self, generator: random.Random) -> None:
        self.random = generator

    def keep(self, pending: list[Change]) -> list[Change]:
        """Return the pending changes that the disk keeps."""
        how = self.random.randrange(4)
        if how == 3:
            return [change for change in pending if self.random.random() < 0.5]
        return pending[: (0, len(pending), self.random.randint(0, len(pending)))[how]]

    def tear(self, changes: list[tuple[int, bytes | None]]) -> list[tuple[int, bytes | None]]:
        """Return the changes with the last write complete, cut short, or replaced by zeros."""
        if not changes or not (data := changes[-1][1]):
            return changes
        kept = (data, data[: self.random.randrange(len(data))], bytes(len(data)))[self.random.randrange(3)]
        return [*changes[:-1], (changes[-1][0], kept)]


class Disk:
    """A folder as processes see it and as it is safe on disk. `before` is its content at first, all synced."""

    def __init__(self, before: Image | None = None) -> None:
        self.root = Folder()
        for path, content in sorted((before or {}).items()):
            folder, name = self._parent(path)
            folder.synced[name] = Folder() if content is None else File(content)

    def apply(self, record: Record) -> None:
        """Apply an operation. Raises ValueError if this model does not know it."""
        kind, path = record.kind, record.path
        if kind in "EM":
            return
        if kind not in "owtrumds" or record.path.endswith(" (deleted)"):
            raise ValueError(f"no model of this operation: {record._replace(data=b'')}")
        if kind == "s":
            node = self._find(path)
            if isinstance(node, File):
                node.synced, node.pending = node.content(node.pending), []
            else:
                node.synced, node.pending = node.names(node.pending), []
            return
        if kind in "wt":
            self._find_file(path).pending.append((record.number, record.data if kind == "w" else None))
            return
        folder, name = self._parent(path)
        if kind == "o":
            if name not in folder.names(folder.pending):
                folder.pending.append({name: File()})
            elif record.number:
                self._find_file(path).pending.append((0, None))
        elif kind == "m":
            folder.pending.append({name: Folder()})
        elif kind in "ud":
            folder.pending.append({name: None})
        else:
            new_folder, new_name = self._parent(record.other)
            if new_folder is not folder:
                raise ValueError(f"no model of a rename into another folder: {path} to {record.other}")
            folder.pending.append({name: None, new_name: self._find(path)})

    def image(self, cut: Cut) -> Image:
        """Return the folder after a power loss."""
        return dict(self._walk(self.root, "", cut))

    def _walk(self, folder: Folder, path: str, cut: Cut) -> Iterator[tuple[str, bytes | None]]:
        for name, node in folder.names(cut.keep(folder.pending)).items():
            if isinstance(node, Folder):
                yield path + name, None
                yield from self._walk(node, f"{path}{name}/", cut)
            elif node is not None:
                yield path + name, node.content(cut.tear(cut.keep(node.pending)))

    def _find(self, path: str) -> File | Folder:
        node: File | Folder | None = self.root
        for name in PurePosixPath(path).parts:
            node = node.names(node.pending).get(name) if isinstance(node, Folder) else None
        if node is None:
            raise ValueError(f"the log uses {path} but never creates it: an operation is missing")
        return node

    def _find_file(self, path: str) -> File:
        node = self._find(path)
        assert isinstance(node, File), path
        return node

    def _parent(self, path: str) -> tuple[Folder, str]:
        """Return the folder of a path, and the name in it."""
        parent, _, name = path.rpartition("/")
        folder = self._find(parent)
        assert isinstance(folder, Folder), path
        return folder, name


def read_image(root: Path) -> Image:
    """Return the content of a folder, without TensorBoard's files: faults.c does not log them."""
    found = {path.relative_to(root).as_posix(): path for path in root.rglob("*")}
    kept = {n: path for n, path in found.items() if "/tensorboard" not in n and "/log.txt" not in n}
    return {n: None if path.is_dir() else path.read_bytes() for n, path in kept.items()}


def write_image(image: Image, root: Path) -> None:
    """Make a folder with this content."""
    root.mkdir(parents=True)
    for path, content in sorted(image.items()):
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)


class PowerLoss(NamedTuple):
    """A disk after a power loss."""

    where: str
    """The last operation before it."""
    saved: int
    """The number in the last mark "saved NUMBER" before it, or -1."""
    kind: str
    """Which of the unsynced changes the disk has."""
    image: Image


def power_losses(log: Iterable[Record], before: Image, several: int, generator: random.Random) -> Iterator[PowerLoss]:
    """Yield disks after a power loss at each operation: with synced changes only, with all, and `several` with some."""
    disk, saved = Disk(before), -1
    for number, record in enumerate(log, 1):
        disk.apply(record)
        if record.kind == "M" and record.path.startswith("saved "):
            saved = int(record.path.removeprefix("saved "))
        where = f"after operation {number}: {record.kind} {record.path} {record.other}".rstrip()
        yield PowerLoss(where, saved, "only synced changes", disk.image(Cut(keeps_all=False)))
        yield PowerLoss(where, saved, "all changes", disk.image(Cut(keeps_all=True)))
        for _ in range(several):
            yield PowerLoss(where, saved, "some of the changes", disk.image(RandomCut(generator)))
