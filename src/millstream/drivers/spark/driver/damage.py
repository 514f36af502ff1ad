"""Finds the damage of a checkpoint before a query starts on it.

Spark checks each file of a checkpoint only when it needs the file. By then, other tasks may have sent results, and the loss of a newest
offset is noticed only after a micro-batch that should not have run. A start therefore checks these rules first:

* ``offsets/<n>`` is written before micro-batch n runs, ``commits/<n>`` when it is complete, and ``offsets/<n + 1>`` afterwards.
* Micro-batch n creates version n + 1 of the state in every partition: a snapshot ``<version>.zip``, or the changes since the
  previous version, ``<version>.changelog``. A version needs its newest snapshot and all changes after it. A snapshot refers
  to files in ``SSTs``, which several snapshots share.
* ``metadata`` contains the id of the query. Offsets contain the id of the checkpoint, assigned by Millstream's planner.

The remains of a crash are not damage: an offset without its commit, the state of an incomplete micro-batch, temporary files.

On a local disk, a start compares the bytes with Hadoop's checksum files, up to a limit. Hadoop's local file system writes
``.<name>.crc`` beside each file. It contains ``crc``, a zero byte, the length of a chunk, and the CRC-32 of each chunk. A file without a
checksum file is accepted unverified, as in Hadoop. HDFS and object stores verify bytes themselves, so there a start checks only names and
small files.
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from millstream.core.model.errors import CheckpointError
from millstream.drivers.spark.driver.checkpoint import Files, beginning_of, numbers, offset_of

_METADATA: Final = "metadata"
_DESCRIPTIONS: Final = ("state/0/_metadata/v2", "state/0/_stateSchema/default")
"""Files that Spark writes in the first micro-batch to describe a stateful operator and its columns."""
_COMMIT_VERSIONS: Final = ("v1", "v2")
_VERSION: Final = re.compile(r"(\d+)(?:_[\w-]+)?\.(zip|changelog)")
_MOST_BYTES: Final = 16 << 20
"""Limit of the bytes that a start verifies with checksums. This takes about 20 ms."""
_CHECKSUM_HEAD: Final = struct.Struct(">4si")
_CHECKSUM_MAGIC: Final = b"crc\0"
_SNAPSHOT_VERSION: Final = "v1"


@dataclass(frozen=True)
class Seen:
    """The content of a checkpoint that a start needs.

    Attributes:
        offsets: Numbers of the planned micro-batches, ascending.
        commits: Numbers of the complete micro-batches, ascending.
        texts: Contents of the files that a start reads, by path: ``metadata``, the two newest offsets, the newest commit.
        state: File names, by partition of the state.
        descriptions: Number of files, by directory that describes the state.
        altered: Damage of needed files that are altered or missing, by path.
    """

    offsets: Sequence[int]
    commits: Sequence[int]
    texts: Mapping[str, str]
    state: Mapping[int, frozenset[str]]
    descriptions: Mapping[str, int]
    altered: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """The version of the state that the next micro-batch needs. 0 if there is none yet."""
        return self.commits[-1] + 1 if self.commits else 0

    @property
    def partitions(self) -> int:
        """Number of state partitions in the newest complete micro-batch. 0 if unknown."""
        if not self.commits or self.commits[-1] not in self.offsets[-2:]:
            return 0
        return _offset(self, self.commits[-1])[0]


def look(files: Files) -> Seen:
    offsets, commits = numbers(files.names("offsets")), numbers(files.names("commits"))
    paths = [_METADATA] if _METADATA in files.names("") else []
    paths += [f"offsets/{batch}" for batch in offsets[-2:]]
    paths += [f"commits/{batch}" for batch in commits[-1:]]
    state = {
        partition: frozenset(files.names(f"state/0/{partition}"))
        for partition in numbers(files.names("state/0"))
    }
    described = {
        path: [name for name in files.names(path) if not name.startswith(".")] for path in _DESCRIPTIONS
    }
    counts = {path: len(names) for path, names in described.items()}
    seen = Seen(offsets, commits, {path: files.read(path) for path in paths}, state, counts)
    if commits:
        paths = [*paths, *(f"{path}/{name}" for path, names in described.items() for name in names)]
    return replace(seen, altered=_altered_files(files, [*paths, *_files_of_state(seen)]))


def _files_of_state(seen: Seen) -> list[str]:
    return [
        f"state/0/{partition}/{name}"
        for partition in range(seen.partitions)
        for name in chain(seen.state.get(partition, frozenset()), seen.version)[0]
    ]


def _altered_files(files: Files, paths: Sequence[str]) -> dict[str, str]:
    """Verify the checksums of local files, smallest first, and check the files that snapshots need."""
    files_of = {path: file for path in paths if (file := files.local(path)) is not None}
    problems: dict[str, str] = {}
    for path in [path for path in files_of if path.endswith(".zip")]:
        try:
            beside = _files_of_snapshot(files_of[path])
        except ValueError as error:
            problems[path] = str(error)
            continue
        files_of |= {f"{path.rpartition('/')[0]}/SSTs/{name}": file for name, file in beside.items()}
    left = _MOST_BYTES
    for size, path, file in sorted((_size(file), path, file) for path, file in files_of.items()):
        left -= max(size, 0)
        problem = "is missing" if size < 0 else _problem_of(file) if left >= 0 else None
        if problem is not None:
            problems.setdefault(path, problem)
    return problems


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else -1


def chain(names: frozenset[str], version: int) -> tuple[list[str], list[str]]:
    """Return the present and the missing files of a state version in a partition.

    Example:
        >>> chain(frozenset(["2.zip", "2.changelog", "3.changelog", "5.changelog"]), 5)
        (['2.zip', '3.changelog', '5.changelog'], ['4.changelog'])
    """
    versions = {(int(match[1]), match[2]): name for name in names if (match := _VERSION.fullmatch(name))}
    base = max((number for number, kind in versions if kind == "zip" and number <= version), default=0)
    wanted = [(base, "zip")] if base else []
    wanted += [(number, "changelog") for number in range(base + 1, version + 1)]
    present = [versions[part] for part in wanted if part in versions]
    return present, [f"{number}.{kind}" for number, kind in wanted if (number, kind) not in versions]


def findings(seen: Seen) -> list[str]:
    """Return the damage of a checkpoint, one line per file. The result is empty if a query can continue from the checkpoint."""
    problems: list[str] = []
    if seen.offsets or seen.commits or any(map(_newest, seen.state.values())):
        problems += [
            *_of_metadata(seen.texts.get(_METADATA)),
            *_of_numbers(seen),
            *_of_texts(seen),
            *_of_state(seen),
        ]
    described = {line.partition(" ")[0] for line in problems}
    return problems + [
        f"{path} {problem}" for path, problem in sorted(seen.altered.items()) if path not in described
    ]


def _of_metadata(text: str | None) -> Iterator[str]:
    if text is None:
        yield "metadata, which contains the query id, is missing"
        return
    try:
        json.loads(text)["id"]
    except (ValueError, KeyError, TypeError):
        yield f"metadata has no query id: {beginning_of(text)}"


def _of_numbers(seen: Seen) -> Iterator[str]:
    """Check that the numbers of offsets and commits are consecutive."""
    committed = seen.commits[-1] if seen.commits else -1
    if not seen.offsets:
        yield "offsets/ is empty, but there are " + ("commits" if seen.commits else "versions of the state")
        return
    planned = seen.offsets[-1]
    if committed > planned:
        yield (
            f"offsets/{committed} is missing, but commits/{committed} exists, so this micro-batch was planned and "
            "completed"
        )
    if planned and seen.offsets[-2:-1] != [planned - 1]:
        yield f"offsets/{planned - 1} is missing; Spark needs the newest two, and the newest is offsets/{planned}"
    if committed < planned - 1:
        yield (
            f"commits/{planned - 1} is missing, but offsets/{planned} exists, which is written only when micro-batch "
            f"{planned - 1} is complete"
        )
    newest = max(
        (_newest(names) for partition, names in seen.state.items() if partition < seen.partitions), default=0
    )
    if newest - 1 > max(planned, committed):
        yield (
            f"offsets/{newest - 1} is missing, but the state has version {newest}, which micro-batch {newest - 1} wrote; the newest "
            f"is offsets/{planned}"
        )


def _newest(names: frozenset[str]) -> int:
    return max((int(match[1]) for name in names if (match := _VERSION.fullmatch(name))), default=0)


def _of_texts(seen: Seen) -> Iterator[str]:
    """Check the contents of the offsets and the commit."""
    ids = set()
    for batch in seen.offsets[-2:]:
        partitions, offset = _offset(seen, batch)
        if not partitions:
            yield _unreadable(seen, batch)
        elif offset.get("checkpoint"):
            ids.add(offset["checkpoint"])
    if len(ids) > 1:
        yield (
            f"offsets/{seen.offsets[-2]} and offsets/{seen.offsets[-1]} belong to different checkpoints, "
            f"{' and '.join(sorted(ids))}: files of two directories were mixed"
        )
    for batch in seen.commits[-1:]:
        text = seen.texts[f"commits/{batch}"]
        version, _, content = text.partition("\n")
        if version not in _COMMIT_VERSIONS and re.fullmatch(r"v\d+", version):
            yield f"commits/{batch} has version {version!r}, which a newer Spark has written"
        elif version not in _COMMIT_VERSIONS or not _is_object(content):
            yield (
                f"commits/{batch} cannot be read: {beginning_of(text)}. If this is the only damage, delete it and the file .{batch}.crc "
                "beside it: the micro-batch is then repeated, as after a crash"
            )


def _unreadable(seen: Seen, batch: int) -> str:
    try:
        offset_of(seen.texts[f"offsets/{batch}"], batch)
    except CheckpointError as error:
        return error.message
    raise AssertionError(f"offsets/{batch} can be read")


def _of_state(seen: Seen) -> Iterator[str]:
    """Check the state of the newest complete micro-batch."""
    missing = {
        partition: gone
        for partition in range(seen.partitions)
        if (gone := chain(seen.state.get(partition, frozenset()), seen.version)[1])
    }
    where = f"micro-batch {seen.version - 1} is complete, and its state is version {seen.version}"
    if seen.partitions > 1 and len(missing) == seen.partitions:
        yield f"state/0 lacks files of all {seen.partitions} partitions, for example {', '.join(missing[0][:3])} of the first: {where}"
        return
    for path, count in seen.descriptions.items():
        if seen.commits and not count:
            yield f"{path} is empty, so the content of the state is unknown"
    for partition, names in missing.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield f"state/0/{partition} lacks {', '.join(names[:3])}{more}: {where}"


def _offset(seen: Seen, batch: int) -> tuple[int, Mapping[str, Any]]:
    """Return the number of partitions and the planner's offset. 0 partitions mean that the file is unreadable."""
    try:
        return offset_of(seen.texts[f"offsets/{batch}"], batch)
    except CheckpointError:
        return 0, {}


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


# Files on a local disk.


def _problem_of(file: Path) -> str | None:
    """Return the damage of a file, or None if the bytes match or there is no checksum."""
    data, beside = file.read_bytes(), file.with_name(f".{file.name}.crc")
    if not beside.exists():
        return None
    sums = beside.read_bytes()
    if len(sums) < _CHECKSUM_HEAD.size:
        return None
    magic, chunk = _CHECKSUM_HEAD.unpack_from(sums)
    if magic != _CHECKSUM_MAGIC:
        return None
    if chunk < 1:
        return f"cannot be compared: its checksum file {beside.name} is damaged"
    expected = sums[_CHECKSUM_HEAD.size :]
    actual = b"".join(
        zlib.crc32(data[start : start + chunk]).to_bytes(4, "big") for start in range(0, len(data), chunk)
    )
    return None if actual == expected else "is corrupt: its checksum does not match"


def _files_of_snapshot(file: Path) -> dict[str, Path]:
    """Return the shared files that a snapshot of the state needs, by their name in ``SSTs``.

    Raises:
        ValueError: If the snapshot cannot be read. The text contains the reason.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            broken = archive.testzip()
            version, _, content = archive.read("metadata").decode().partition("\n")
        names = [each["dfsSstFileName"] for each in json.loads(content)["sstFiles"]]
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"cannot be read as a snapshot: {error}") from None
    if broken is not None:
        raise ValueError(f"is corrupt: the checksum of {broken} in it does not match")
    if version != _SNAPSHOT_VERSION:
        raise ValueError(f"has version {version!r}, which a newer Spark has written")
    return {name: file.parent / "SSTs" / name for name in names}
