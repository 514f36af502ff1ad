"""Class archives, with a Java that only writes the file: which process creates one, when, and which are kept. Tests with a real JVM
are in `tests/integration/test_class_archives.py`."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millstream.drivers import class_archive
from millstream.drivers.class_archive import ClassArchive
from millstream.drivers.private import locked

_JAVA = """#!/bin/sh
[ -e "{home}/fails" ] && exit 1
for argument do
  case $argument in
    -XX:SharedArchiveFile=*) archive=${{argument#*=}};;
    -XX:SharedClassListFile=*) notes=${{argument#*=}};;
  esac
done
cp "$notes" "$archive"
"""


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("MILLSTREAM_CLASS_ARCHIVES", raising=False)


@pytest.fixture
def java(tmp_path: Path) -> str:
    command = tmp_path / "runtime" / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(_JAVA.format(home=tmp_path))
    command.chmod(0o755)
    (tmp_path / "runtime" / "release").write_text('JAVA_VERSION="17.0.15"\n')
    return str(command)


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    directory = tmp_path / "jars"
    directory.mkdir()
    (directory / "one.jar").write_text("one")
    return directory


def archive_of(java: str, jars: Path) -> ClassArchive:
    return ClassArchive("program", java, jars)


def note(archive: ClassArchive, classes: str = "java/lang/Object\ncut off in the mid") -> None:
    """Record loaded classes like a JVM that is killed while it writes them."""
    (option,) = archive.options(note=True)
    Path(option.removeprefix("-XX:DumpLoadedClassList=")).write_text(classes)


def create_and_wait(archive: ClassArchive) -> Path:
    """Create the archive and wait until the lock is free again."""
    archive.make("the/class/path")
    return wait_for_archive(archive)


def wait_for_archive(archive: ClassArchive) -> Path:
    deadline = time.monotonic() + 60
    while (lock := locked(archive.file.parent / "program.lock")) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    lock.close()
    return archive.file


def test_the_next_jvm_uses_an_archive_of_the_classes_that_the_first_one_loaded(java: str, jars: Path) -> None:
    archive = archive_of(java, jars)
    assert archive.options() == []
    note(archive)
    file = create_and_wait(archive)
    assert file.read_text() == "java/lang/Object\n"
    options = archive_of(java, jars).options(note=True)
    assert {f"-XX:SharedArchiveFile={file}", "-XX:+VerifySharedSpaces"} <= set(options)
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert sorted(each.name for each in file.parent.iterdir()) == sorted([file.name, "program.lock"])


def test_each_java_version_and_each_state_of_the_jars_has_its_own_archive(java: str, jars: Path) -> None:
    files = [archive_of(java, jars).file]
    (jars / "two.jar").write_text("two")
    files.append(archive_of(java, jars).file)
    (jars / "two.jar").write_text("another")
    files.append(archive_of(java, jars).file)
    os.utime(jars / "two.jar", (1, 1))
    files.append(archive_of(java, jars).file)
    Path(java).parents[1].joinpath("release").write_text('JAVA_VERSION="17.0.16"\n')
    class_archive._release.cache_clear()
    files.append(archive_of(java, jars).file)
    assert len(set(files)) == len(files)
    assert archive_of(java, jars).file == files[-1]


def test_an_archive_that_cannot_be_created_is_not_tried_again(java: str, jars: Path, tmp_path: Path) -> None:
    (tmp_path / "fails").touch()
    archive = archive_of(java, jars)
    note(archive)
    assert create_and_wait(archive).stat().st_size == 0
    assert archive_of(java, jars).options(note=True) == []


def test_two_concurrent_programs_create_one_archive(java: str, jars: Path) -> None:
    first, second = archive_of(java, jars), archive_of(java, jars)
    note(first, "first\n")
    note(second, "second\n")
    first.make("")
    second.make("")
    assert wait_for_archive(first).read_text() == "first\n"
    second.make("")
    assert wait_for_archive(second).read_text() == "first\n"


def test_partial_files_of_a_killed_process_are_removed(java: str, jars: Path) -> None:
    archive = archive_of(java, jars)
    note(archive)
    archive.file.parent.mkdir(parents=True)
    for name in ("program-0.partial", "program-0.classes"):
        (archive.file.parent / name).touch()
    file = create_and_wait(archive)
    assert {each.suffix for each in file.parent.iterdir()} == {".jsa", ".lock"}


def test_the_three_most_recently_used_archives_are_kept(java: str, jars: Path) -> None:
    archive = archive_of(java, jars)
    note(archive)
    archive.file.parent.mkdir(parents=True)
    for age in range(5):
        old = archive.file.parent / f"program-{age}.jsa"
        old.touch()
        os.utime(old, (1_000_000 - age, 1_000_000 - age))
    (archive.file.parent / "other-0.jsa").touch()
    file = create_and_wait(archive)
    assert sorted(each.name for each in file.parent.glob("*.jsa")) == sorted(
        ["other-0.jsa", "program-0.jsa", "program-1.jsa", file.name]
    )


def test_using_an_archive_updates_its_modification_time(java: str, jars: Path) -> None:
    archive = archive_of(java, jars)
    note(archive)
    os.utime(create_and_wait(archive), (1, 1))
    assert archive.options()
    assert archive.file.stat().st_mtime > 1


def test_a_directory_that_others_can_write_to_is_not_trusted(java: str, jars: Path) -> None:
    archive = archive_of(java, jars)
    note(archive)
    create_and_wait(archive).parent.chmod(0o777)
    assert archive.options(note=True) == []


def test_a_cache_that_cannot_be_written_is_ignored(
    java: str, jars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MILLSTREAM_CACHE_DIR", str(tmp_path / "file"))
    archive = archive_of(java, jars)
    note(archive)
    archive.make("")
    assert archive.options() == []


@pytest.mark.parametrize("word", ["off", "FALSE", "0", "no"])
def test_class_archives_can_be_switched_off(
    java: str, jars: Path, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = archive_of(java, jars)
    note(archive)
    create_and_wait(archive)
    monkeypatch.setenv("MILLSTREAM_CLASS_ARCHIVES", word)
    assert archive_of(java, jars).options(note=True) == []


@pytest.mark.parametrize("release", [None, 'JVM_VARIANT="Openj9"\n'])
def test_other_java_runtimes_run_without_a_class_archive(java: str, jars: Path, release: str | None) -> None:
    about = Path(java).parents[1] / "release"
    about.unlink() if release is None else about.write_text(release)
    assert archive_of(java, jars).options(note=True) == []


def test_an_archive_is_created_even_if_the_program_has_ended(java: str, jars: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from millstream.drivers.class_archive import ClassArchive\n"
        "archive = ClassArchive('program', sys.argv[1], Path(sys.argv[2]))\n"
        "(option,) = archive.options(note=True)\n"
        "Path(option.split('=')[1]).write_text('noted\\n')\n"
        "archive.make('')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, java, str(jars)], capture_output=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
    assert wait_for_archive(archive_of(java, jars)).read_text() == "noted\n"
