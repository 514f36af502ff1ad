"""Verifies the files of a checkpoint on a local disk.

Hadoop's local file system writes ``.<name>.crc`` beside each file. It contains ``crc``, a zero byte, the length of a chunk, and the CRC-32
of each chunk. A file without a checksum file is accepted unverified, as in Hadoop.
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Final

_HEAD: Final = struct.Struct(">4si")
_MAGIC: Final = b"crc\0"
_READABLE: Final = "v1"


def problem(file: Path) -> str | None:
    """Return the damage of a file, or None if the bytes match or there is no checksum."""
    data, beside = file.read_bytes(), file.with_name(f".{file.name}.crc")
    if not beside.exists():
        return None
    sums = beside.read_bytes()
    if len(sums) < _HEAD.size:
        return None
    magic, chunk = _HEAD.unpack_from(sums)
    if magic != _MAGIC:
        return None
    if chunk < 1:
        return f"cannot be compared: its checksum file {beside.name} is damaged"
    expected = sums[_HEAD.size :]
    actual = b"".join(
        zlib.crc32(data[start : start + chunk]).to_bytes(4, "big") for start in range(0, len(data), chunk)
    )
    return None if actual == expected else "is corrupt: its checksum does not match"


def files_of_snapshot(file: Path) -> dict[str, Path]:
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
    if version != _READABLE:
        raise ValueError(f"has version {version!r}, which a newer Spark has written")
    return {name: file.parent / "SSTs" / name for name in names}
