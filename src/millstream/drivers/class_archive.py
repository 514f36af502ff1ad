"""Class archives: the classes that a JVM loads at its start, kept parsed and verified for the next JVM.

A JVM spends most of its start on thousands of classes. With an *archive* of these classes (class-data sharing), it maps a file instead.
The first JVM records the classes that it loads. Another JVM then creates the archive from this record, at the lowest priority. It may
outlive the program.

Archives are in a directory of the cache that only this user may enter. An archive belongs to one Java, to one path, and to jars with certain
names, sizes and times, which the JVM checks. Of concurrent programs, one creates the archive under a lock and renames it into place.

Rejected: ``-XX:ArchiveClassesAtExit`` and ``-XX:+AutoCreateSharedArchive``, which create the archive when the program's own JVM
ends. The user would wait for it after Ctrl-C, and a killed JVM creates none.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, final

from millstream.drivers.cache import cache_directory
from millstream.drivers.java import runtime_of
from millstream.drivers.private import is_private, locked, make_private, process_directory

_SWITCH: Final = "MILLSTREAM_CLASS_ARCHIVES"
_OFF: Final = ("off", "false", "no", "0")
_KEPT: Final = 3
"""Number of archives kept per program, by last use. Environments used alternately have different jars."""
_VERIFIED: Final = "-XX:+VerifySharedSpaces"
"""Otherwise a damaged archive could crash each JVM that maps it. With this option, the JVM runs without a damaged archive."""
_SILENT: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
_MAKE: Final = """partial=$1 archive=$2 notes=$3; shift 3
{
  if nice -n 19 "$@" && { sync "$partial" || sync; }
  then mv -f "$partial" "$archive"
  else : >"$archive"  # empty: not tried again
  fi
  rm -f "$partial" "$notes"
} >/dev/null 2>&1 &
"""


@final
class ClassArchive:
    """The archive for JVMs that run one program from one directory of jars. ``MILLSTREAM_CLASS_ARCHIVES=off`` disables archives.

    Args:
        program: Name of the program, which is part of the file name.

    Attributes:
        file: The archive. It may not exist yet. The file is empty if the archive could not be created.

    Example:
        >>> archive = ClassArchive("kafka", "/usr/bin/java", Path("/opt/kafka/libs"))
        >>> command = ["java", *archive.options(note=True), "-cp", "/opt/kafka/libs/*", "kafka.Kafka"]
        >>> archive.make("/opt/kafka/libs/*")  # when the program has started
    """

    def __init__(self, program: str, java: str, jars: Path) -> None:
        self._program = program
        self._java = java
        self._directory = cache_directory() / "classes"
        self.file = self._directory / f"{program}-{_key(java, jars)}.jsa"
        self._notes: Path | None = None
        self._wanted = os.environ.get(_SWITCH, "").lower() not in _OFF and _release(java) is not None

    def options(self, *, note: bool = False) -> list[str]:
        """Return JVM options that use the archive. If there is none and ``note`` is set, they record classes for :meth:`make` instead."""
        if not self._wanted:
            return []
        try:
            size = self.file.stat().st_size if is_private(self._directory) else 0
        except OSError:
            if not note:
                return []
            self._notes = process_directory() / f"{self.file.stem}.{id(self)}.classes"
            return [f"-XX:DumpLoadedClassList={self._notes}"]
        if size == 0:
            return []
        with suppress(OSError):
            os.utime(self.file)  # marks it as used
        return ["-Xshare:auto", f"-XX:SharedArchiveFile={self.file}", _VERIFIED, *_SILENT]

    @property
    def is_recording(self) -> bool:
        """Whether a JVM was started with options that record its classes, and no archive has been begun since."""
        return self._notes is not None

    def make(self, class_path: str) -> None:
        """Start to create the archive if the JVM has recorded its classes and no other program is creating it. Returns immediately."""
        if self._notes is None:
            return
        notes, self._notes = self._notes, None
        with suppress(OSError):
            make_private(self._directory)
            lock = locked(self._directory / f"{self._program}.lock")
            if lock is not None:
                with lock:
                    if not self.file.exists():
                        self._begin(notes, class_path, lock.fileno())

    def _begin(self, notes: Path, class_path: str, lock: int) -> None:
        self._remove_old()
        text = notes.read_text()
        partial, kept = self.file.with_suffix(".partial"), self.file.with_suffix(".classes")
        kept.write_text(text[: text.rfind("\n") + 1])  # the JVM is still writing
        making = ["-Xshare:dump", "-XX:TieredStopAtLevel=1", f"-XX:SharedClassListFile={kept}"]
        making += [f"-XX:SharedArchiveFile={partial}", "-cp", class_path]
        subprocess.run(
            ["/bin/sh", "-c", _MAKE, "sh", str(partial), str(self.file), str(kept), self._java, *making],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[lock],
            process_group=0,
            check=False,
        )

    def _remove_old(self) -> None:
        for pattern in ("partial", "classes"):
            for left in self._directory.glob(f"{self._program}-*.{pattern}"):
                left.unlink(missing_ok=True)
        used = sorted(self._directory.glob(f"{self._program}-*.jsa"), key=lambda file: -file.stat().st_mtime)
        for old in used[_KEPT - 1 :]:
            old.unlink(missing_ok=True)


@cache
def _release(java: str) -> str | None:
    """Return the release file of a Java, or None if it has none or creates another kind of archive."""
    runtime = runtime_of(java)
    try:
        text = (runtime / "release").read_text()
    except OSError:
        return None
    return None if "openj9" in text.lower() else f"{runtime}\n{text}"


def _key(java: str, jars: Path) -> str:
    facts = [str(_release(java)), platform.machine(), str(jars)]
    with suppress(OSError):
        for jar in sorted(jars.glob("*.jar")):
            about = jar.stat()
            facts.append(f"{jar.name} {about.st_size} {about.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
