"""What a power cut leaves of a folder: a log of file operations, replayed against a disk that promises little.

The model is stricter than any file system in use. A file's content lasts once the file was synced; that a name
was made, changed or removed lasts once its folder was synced; nothing else lasts. What was not synced may be there
or not, each change for itself: of content any of the writes, the last one in part or as zeros; of names any of the
changes. The two sides of a rename within one folder are one change, as journals have it.
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
    """One operation, by a letter: open, write, truncate, rename, unlink, mkdir, sync, d for rmdir; Error, Mark."""

    kind: str
    path: str
    """Relative to the root of the log; of a mark, its text."""
    other: str = ""
    """Where a rename leads."""
    number: int = 0
    """Where a write begins, how long a file becomes, not 0 for an opening that empties the file, an errno."""
    data: bytes = b""
    call: int = 0
    """How many calls were counted when it was made, itself and refused ones included."""


def read_log(path: Path, root: Path) -> list[Record]:
    """Return the records that tests/faults.c wrote. A last one that a kill cut off is left out."""
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
    """A file: what of it lasts, and what was done since it was synced: (at, bytes) written or (length, None) cut."""

    synced: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def content(self, changes: Iterable[tuple[int, bytes | None]]) -> bytes:
        """Return what was synced with these changes made to it."""
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
    """A folder: which names in it last, and what was done to them since it was synced."""

    synced: Names = field(default_factory=dict)
    pending: list[Names] = field(default_factory=list)

    def names(self, changes: Iterable[Names]) -> Names:
        """Return what was synced with these changes made to it."""
        names = dict(self.synced)
        for change in changes:
            names |= change
        return {name: node for name, node in names.items() if node is not None}


Image = dict[str, bytes | None]
"""What is in a folder: the content of each file by its path, None for a folder."""


class Cut:
    """Which of the changes that were not synced a power cut leaves: none of them or all."""

    def __init__(self, leaves_all: bool) -> None:
        self.leaves_all = leaves_all

    def survivors(self, pending: list[Change]) -> list[Change]:
        """Return the changes that the disk has after all."""
        return pending if self.leaves_all else []

    def torn(self, changes: list[tuple[int, bytes | None]]) -> list[tuple[int, bytes | None]]:
        """Return these changes of a file as the disk has them."""
        return changes


class RandomCut(Cut):
    """A power cut that leaves anything: of names and of content none, all, those up to some point, or any."""

    def __init__(self, draws: random.Random) -> None:
        self.draws = draws

    def survivors(self, pending: list[Change]) -> list[Change]:
        """Return the changes that the disk has after all."""
        how = self.draws.randrange(4)
        if how == 3:
            return [change for change in pending if self.draws.random() < 0.5]
        return pending[: (0, len(pending), self.draws.randint(0, len(pending)))[how]]

    def torn(self, changes: list[tuple[int, bytes | None]]) -> list[tuple[int, bytes | None]]:
        """Return the changes, the last write whole, cut short, or with its length but zeros for data."""
        if not changes or not (data := changes[-1][1]):
            return changes
        left = (data, data[: self.draws.randrange(len(data))], bytes(len(data)))[self.draws.randrange(3)]
        return [*changes[:-1], (changes[-1][0], left)]


class Disk:
    """A folder as processes see it and as it lasts; `before` is what it held, on the disk for long."""

    def __init__(self, before: Image | None = None) -> None:
        self.root = Folder()
        for path, content in sorted((before or {}).items()):
            folder, name = self._place(path)
            folder.synced[name] = Folder() if content is None else File(content)

    def apply(self, record: Record) -> None:
        """Do what the record says. Raises ValueError for an operation that this model does not know."""
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
            self._file(path).pending.append((record.number, record.data if kind == "w" else None))
            return
        folder, name = self._place(path)
        if kind == "o":
            if name not in folder.names(folder.pending):
                folder.pending.append({name: File()})
            elif record.number:
                self._file(path).pending.append((0, None))
        elif kind == "m":
            folder.pending.append({name: Folder()})
        elif kind in "ud":
            folder.pending.append({name: None})
        else:
            there, new_name = self._place(record.other)
            if there is not folder:
                raise ValueError(f"no model of a rename into another folder: {path} to {record.other}")
            folder.pending.append({name: None, new_name: self._find(path)})

    def image(self, cut: Cut) -> Image:
        """Return what is there after a power cut."""
        return dict(self._walk(self.root, "", cut))

    def _walk(self, folder: Folder, path: str, cut: Cut) -> Iterator[tuple[str, bytes | None]]:
        for name, node in folder.names(cut.survivors(folder.pending)).items():
            if isinstance(node, Folder):
                yield path + name, None
                yield from self._walk(node, f"{path}{name}/", cut)
            elif node is not None:
                yield path + name, node.content(cut.torn(cut.survivors(node.pending)))

    def _find(self, path: str) -> File | Folder:
        node: File | Folder | None = self.root
        for name in PurePosixPath(path).parts:
            node = node.names(node.pending).get(name) if isinstance(node, Folder) else None
        if node is None:
            raise ValueError(f"the log uses {path}, which it never made: an operation is missing in it")
        return node

    def _file(self, path: str) -> File:
        node = self._find(path)
        assert isinstance(node, File), path
        return node

    def _place(self, path: str) -> tuple[Folder, str]:
        """Return the folder that a path is in, and its name there."""
        parent, _, name = path.rpartition("/")
        folder = self._find(parent)
        assert isinstance(folder, Folder), path
        return folder, name


def read_image(root: Path) -> Image:
    """Return what is in a folder now."""
    return {path.relative_to(root).as_posix(): None if path.is_dir() else path.read_bytes() for path in root.rglob("*")}


def write_image(image: Image, root: Path) -> None:
    """Make a folder that holds this image."""
    root.mkdir(parents=True)
    for path, content in sorted(image.items()):
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)


class After(NamedTuple):
    """A disk after a power cut."""

    where: str
    """The operation that was done last."""
    saved: int
    """The number in the last mark "saved NUMBER" before it."""
    kind: str
    """Which of the changes not yet synced it has."""
    image: Image


def cuts(log: Iterable[Record], before: Image, several: int, draws: random.Random) -> Iterator[After]:
    """Yield the disks that a power cut may leave after each operation of the log.

    For each one with only what was synced, one with everything, and `several` with some of it.
    """
    disk, saved = Disk(before), 0
    for number, record in enumerate(log, 1):
        disk.apply(record)
        if record.kind == "M" and record.path.startswith("saved "):
            saved = int(record.path.removeprefix("saved "))
        where = f"after operation {number}: {record.kind} {record.path} {record.other}".rstrip()
        yield After(where, saved, "only what was synced", disk.image(Cut(leaves_all=False)))
        yield After(where, saved, "everything", disk.image(Cut(leaves_all=True)))
        for _ in range(several):
            yield After(where, saved, "some of the rest", disk.image(RandomCut(draws)))
