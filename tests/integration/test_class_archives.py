"""Class archives with a real JVM: it starts from a valid archive, and silently ignores an archive that does not fit."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.drivers.class_archive import ClassArchive
from millstream.drivers.private import locked
from millstream.testing._jars import _ivy_jar
from millstream.testing._java import find_java

pytestmark = pytest.mark.broker  # needs Java

_MAIN = "org.apache.ivy.Main"
FROM_ARCHIVE = f"{_MAIN} source: shared objects file"


class Program:
    """Ivy, which prints its version: the smallest program among the jars."""

    def __init__(self, home: Path) -> None:
        self.jars = home / "jars"
        self.jars.mkdir()
        shutil.copy(_ivy_jar(), self.jars)
        self.class_path = f"{self.jars}/*"

    @property
    def archive(self) -> ClassArchive:
        return ClassArchive("ivy", find_java(), self.jars)

    def run(self, options: list[str], *, class_path: str | None = None) -> str:
        """Run it; return the output of the program and the JVM."""
        ended = subprocess.run(
            [find_java(), *options, "-cp", class_path or self.class_path, _MAIN, "-version"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout
        return ended.stdout

    def make(self) -> None:
        """Create the archive, and wait for it."""
        archive = self.archive
        self.run(archive.options(note=True))
        archive.make(self.class_path)
        deadline = time.monotonic() + 300
        while (lock := locked(archive.file.parent / "ivy.lock")) is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        lock.close()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The program with its archive."""
    home = tmp_path_factory.mktemp("program")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLSTREAM_CACHE_DIR", str(home / "cache"))
        program = Program(home)
        program.make()
        yield program


def test_a_jvm_starts_from_its_archive(program: Program) -> None:
    options = program.archive.options()
    assert program.run(options) == program.run([])
    assert FROM_ARCHIVE in program.run([*options, "-Xlog:class+load"])


def test_a_missing_or_broken_archive_is_ignored_silently(program: Program, tmp_path: Path) -> None:
    output, archive = program.run([]), program.archive
    whole, broken = archive.file.read_bytes(), tmp_path / "broken.jsa"
    options = [option.replace(str(archive.file), str(broken)) for option in archive.options()]
    assert program.run(options) == output  # there is no archive
    for content in (whole[: len(whole) // 2], whole[:100], b"x" * len(whole), b"\0" * len(whole)):
        broken.write_bytes(content)
        assert program.run(options) == output


def test_an_archive_of_other_jars_is_ignored(program: Program) -> None:
    output, archive = program.run([]), program.archive
    [jar] = program.jars.iterdir()
    before = jar.stat().st_mtime_ns
    jar.touch()
    assert program.archive.file != archive.file
    assert program.run(archive.options()) == output
    os.utime(jar, ns=(before, before))
    assert program.run(archive.options(), class_path=f"{program.jars.parent}:{program.class_path}") == output


def test_options_of_the_user_take_precedence(program: Program) -> None:
    options = [*program.archive.options(), "-Xshare:off", "-Xlog:class+load"]
    assert FROM_ARCHIVE not in program.run(options)
