"""Checkpoints as Spark writes them, and ways to damage them. Integration tests damage checkpoints that Spark itself has written."""

from __future__ import annotations

import json
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CHUNK = 512


def write(file: Path, data: bytes) -> None:
    """Write a file with the checksums that Hadoop writes beside it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    sums = b"".join(
        struct.pack(">I", zlib.crc32(data[start : start + CHUNK])) for start in range(0, len(data), CHUNK)
    )
    _sums_of(file).write_bytes(b"crc\0" + struct.pack(">i", CHUNK) + sums)


def _sums_of(file: Path) -> Path:
    return file.with_name(f".{file.name}.crc")


class Checkpoint:
    """A directory as Spark writes it, with changelogs and with a snapshot now and then."""

    def __init__(self, root: Path, partitions: int = 2) -> None:
        self.root = root
        self.partitions = partitions
        for directory in ("offsets", "commits"):
            (root / directory).mkdir(parents=True)
        write(root / "metadata", b'{"id":"980f66e6-8a84-47f2-93ed-1abc900eec0e"}')

    def plan(self, batch: int, *, partitions: int | None = None, checkpoint: str = "first") -> None:
        conf = {"spark.sql.shuffle.partitions": str(partitions or self.partitions)}
        offset = {"topics": {"in": {"0": 10 * batch}}, "checkpoint": checkpoint, "batch": batch + 1}
        text = f"v1\n{json.dumps({'batchWatermarkMs': 0, 'conf': conf})}\n{json.dumps(offset)}"
        write(self.root / "offsets" / str(batch), text.encode())

    def work(self, batch: int, *, snapshot: bool = False, changes: bool = True) -> None:
        """Write the state files of a micro-batch."""
        write(self.root / "state/0/_metadata/v2/0", b"v2\n{}")
        write(self.root / "state/0/_stateSchema/default/0_d5badee7", b"v3")
        for partition in range(self.partitions):
            directory = self.root / "state" / "0" / str(partition)
            if changes:
                write(directory / f"{batch + 1}.changelog", bytes(range(256)) * 5)
            if snapshot:
                self._snapshot(directory, batch + 1)

    def commit(self, batch: int) -> None:
        write(self.root / "commits" / str(batch), b'v1\n{"nextBatchWatermarkMs":0}')

    def run(self, *batches: int) -> Checkpoint:
        """Run micro-batches; every fifth leaves a snapshot."""
        for batch in batches:
            self.plan(batch)
            self.work(batch, snapshot=batch % 5 == 0)
            self.commit(batch)
        return self

    def _snapshot(self, directory: Path, version: int) -> None:
        shared = f"00000{version}-10e3308e.sst"
        write(directory / "SSTs" / shared, b"rows" * 500)
        with zipfile.ZipFile(directory / f"{version}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            files = [{"localFileName": "000008.sst", "dfsSstFileName": shared, "sizeBytes": 2000}]
            archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": files, "numKeys": -1}))
            archive.writestr("MANIFEST-000012", b"manifest" * 50)
        write(directory / f"{version}.zip", (directory / f"{version}.zip").read_bytes())


def newest(root: Path, directory: str) -> int:
    """Return the number of the newest file."""
    return max(int(path.name) for path in (root / directory).iterdir() if path.name.isdigit())


def _version(root: Path) -> int:
    return newest(root, "commits") + 1


def _delete(file: Path) -> None:
    file.unlink()
    _sums_of(file).unlink(missing_ok=True)


def _replace_content(file: Path, data: bytes, *, checksum: bool = False) -> None:
    """Write other content into a file; unless ``checksum``, delete the checksum that would reveal it."""
    file.write_bytes(data)
    if not checksum:
        _sums_of(file).unlink(missing_ok=True)


def _flip_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    _replace_content(file, bytes(data), checksum=True)


def _snapshot(root: Path) -> Path:
    directory = root / "state/0/0"
    return max(directory.glob("*.zip"), key=lambda path: int(path.stem))


def _shared_file(root: Path) -> Path:
    with zipfile.ZipFile(_snapshot(root)) as archive:
        listed = json.loads(archive.read("metadata").decode().partition("\n")[2])
    return root / "state/0/0/SSTs" / str(listed["sstFiles"][0]["dfsSstFileName"])


def _change_version(file: Path) -> None:
    _replace_content(file, file.read_bytes().replace(b"v1\n", b"v9\n", 1))


def _change_snapshot_version(root: Path) -> None:
    with zipfile.ZipFile(_snapshot(root)) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content["metadata"] = content["metadata"].replace(b"v1\n", b"v9\n", 1)
    with zipfile.ZipFile(_snapshot(root), "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    _sums_of(_snapshot(root)).unlink()


def _change_checkpoint_id(root: Path) -> None:
    file = root / "offsets" / str(newest(root, "offsets"))
    lines = file.read_text().splitlines()
    other = {**json.loads(lines[2]), "checkpoint": "another"}
    _replace_content(file, "\n".join([*lines[:2], json.dumps(other)]).encode())


def _offset(root: Path, back: int = 0) -> Path:
    return root / "offsets" / str(newest(root, "offsets") - back)


def _commit(root: Path) -> Path:
    return root / "commits" / str(newest(root, "commits"))


def _changelog(root: Path) -> Path:
    return root / f"state/0/1/{_version(root)}.changelog"


@dataclass(frozen=True)
class Damage:
    """A way to damage a checkpoint.

    Attributes:
        name: Its name in tests.
        do: Damages a checkpoint whose newest micro-batch is complete.
        message: A pattern of the error at a start; N is the newest micro-batch, M the one before, V the version of the state.
    """

    name: str
    do: Callable[[Path], object]
    message: str

    def pattern(self, batch: int) -> str:
        """Return the pattern for a newest micro-batch."""
        numbers = {"N": batch, "M": batch - 1, "V": batch + 1}
        return re.sub(r"\b[NMV]\b", lambda match: str(numbers[match[0]]), self.message)


def _damages_of_offsets() -> list[Damage]:
    return [
        Damage("offset missing", lambda r: _delete(_offset(r)), "offsets/N is missing, but commits/N exists"),
        Damage(
            "offset empty",
            lambda r: _replace_content(_offset(r), b""),
            "offsets/N cannot be read: it is empty",
        ),
        Damage(
            "offset cut",
            lambda r: _replace_content(_offset(r), _offset(r).read_bytes()[:-9]),
            "offsets/N cannot be read: it begins with 'v1",
        ),
        Damage(
            "offset garbled",
            lambda r: _replace_content(_offset(r), b"\xff\x00" * 99),
            "offsets/N cannot be read",
        ),
        Damage(
            "offset with another digit",
            lambda r: _replace_content(
                _offset(r), _offset(r).read_bytes().replace(b'"batch": ', b'"batch": 9'), checksum=True
            ),
            "offsets/N is corrupt: its checksum",
        ),
        Damage(
            "offset of another version",
            lambda r: _change_version(_offset(r)),
            "offsets/N cannot be read by Millstream: it has version 'v9' and 1 sources",
        ),
        Damage(
            "offset of another checkpoint",
            _change_checkpoint_id,
            "offsets/M and offsets/N belong to different",
        ),
        Damage("gap in offsets", lambda r: _delete(_offset(r, 1)), "offsets/M is missing; Spark needs"),
        Damage(
            "no offsets",
            lambda r: shutil.rmtree(r / "offsets"),
            "offsets/ is empty, but there are",
        ),
        Damage(
            "offset and commit missing",
            lambda r: (_delete(_offset(r)), _delete(_commit(r))),
            "offsets/N is missing, but the state has version V, which micro-batch N wrote",
        ),
    ]


def _damages_of_commits() -> list[Damage]:
    return [
        Damage(
            "two commits missing",
            lambda r: (_delete(_commit(r)), _delete(_commit(r))),
            "commits/M is missing, but offsets/N exists",
        ),
        Damage(
            "commit empty",
            lambda r: _replace_content(_commit(r), b""),
            "commits/N cannot be read: it is empty",
        ),
        Damage(
            "commit cut",
            lambda r: _replace_content(_commit(r), b"v1\n{"),
            r"commits/N cannot be read.*delete it",
        ),
        Damage(
            "commit garbled", lambda r: _replace_content(_commit(r), b"\xff" * 9), "commits/N cannot be read"
        ),
        Damage(
            "commit of another version", lambda r: _change_version(_commit(r)), "commits/N has version 'v9'"
        ),
        Damage(
            "metadata missing",
            lambda r: _delete(r / "metadata"),
            "metadata, which contains the query id, is missing",
        ),
        Damage(
            "metadata cut", lambda r: _replace_content(r / "metadata", b'{"i'), "metadata has no query id"
        ),
    ]


def _damages_of_state() -> list[Damage]:
    return [
        Damage("changes missing", lambda r: _delete(_changelog(r)), r"state/0/1 lacks V\.changelog"),
        Damage("changes flipped", lambda r: _flip_byte(_changelog(r)), r"state/0/1/V\.changelog is corrupt"),
        Damage(
            "changes cut",
            lambda r: _replace_content(_changelog(r), _changelog(r).read_bytes()[:20], checksum=True),
            r"state/0/1/V\.changelog is corrupt",
        ),
        Damage(
            "a partition missing", lambda r: shutil.rmtree(r / "state/0/0"), "state/0/0 lacks 1.changelog"
        ),
        Damage(
            "state missing", lambda r: shutil.rmtree(r / "state"), "state/0 lacks files of all 2 partitions"
        ),
        Damage(
            "description missing",
            lambda r: shutil.rmtree(r / "state/0/_metadata"),
            "_metadata/v2 is empty",
        ),
        Damage(
            "schema missing",
            lambda r: shutil.rmtree(r / "state/0/_stateSchema"),
            "state/0/_stateSchema/default is empty",
        ),
        Damage(
            "description flipped",
            lambda r: _flip_byte(r / "state/0/_metadata/v2/0"),
            "state/0/_metadata/v2/0 is corrupt: its checksum",
        ),
        Damage(
            "schema flipped",
            lambda r: [_flip_byte(path) for path in (r / "state/0/_stateSchema/default").glob("[0-9]*")],
            "state/0/_stateSchema/default/0_.* is corrupt: its checksum",
        ),
        Damage(
            "checksums of chunks without length",
            lambda r: _sums_of(_changelog(r)).write_bytes(b"crc\0\0\0\0\0"),
            r"state/0/1/V\.changelog cannot be compared: its checksum file \.V\.changelog\.crc is damaged",
        ),
        Damage(
            "snapshot garbled",
            lambda r: _replace_content(_snapshot(r), b"PK" * 99),
            r"state/0/0/\d+\.zip cannot be read as a snapshot",
        ),
        Damage("snapshot flipped", lambda r: _flip_byte(_snapshot(r)), r"state/0/0/\d+\.zip "),
        Damage("snapshot of a newer Spark", _change_snapshot_version, r"\d+\.zip has version 'v9'"),
        Damage(
            "shared file missing", lambda r: _delete(_shared_file(r)), r"state/0/0/SSTs/.*\.sst is missing"
        ),
        Damage("shared file flipped", lambda r: _flip_byte(_shared_file(r)), r"SSTs/.*\.sst is corrupt"),
    ]


DAMAGES = [*_damages_of_offsets(), *_damages_of_commits(), *_damages_of_state()]
"""Damages that a start finds."""


def _create_files_of_a_killed_writer(root: Path) -> None:
    """Create the files of a killed writer: temporary files, their checksums, and a file without a checksum."""
    for directory in ("offsets", "commits"):
        (root / directory / ".9.f11056c0.tmp").write_bytes(b"v")
        (root / directory / "..9.f11056c0.tmp.crc").write_bytes(b"crc\0")
    (root / "state/0/0/.8.changelog.f11056c0.tmp").write_bytes(b"")
    _sums_of(root / f"state/0/1/{newest(root, 'offsets') + 1}.changelog").unlink()


HARMLESS = [
    Damage("nothing", lambda r: None, ""),
    Damage("newest commit missing, as after a crash", lambda r: _delete(_commit(r)), ""),
    Damage("what a killed writer leaves", _create_files_of_a_killed_writer, ""),
    Damage("old files purged", lambda r: (_delete(r / "offsets/0"), _delete(r / "commits/0")), ""),
    Damage(
        "the checksums did not come along",
        lambda r: [path.unlink() for path in r.rglob(".*.crc")],
        "",
    ),
]
"""States from which a start continues."""
