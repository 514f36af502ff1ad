"""The class archive of Spark's JVM."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from millstream.drivers.private import make_private
from millstream.drivers.spark.driver import launch


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java that can use archives, and an empty cache."""
    command = tmp_path / "java" / "bin" / "java"
    command.parent.mkdir(parents=True)
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17.0.15"\n')
    monkeypatch.setattr(launch, "look_for_java", lambda: (str(command), ""))
    monkeypatch.setenv("MILLSTREAM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("MILLSTREAM_CLASS_ARCHIVES", raising=False)


def options_under(home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SPARK_HOME", str(home))
    launch._archive.cache_clear()
    try:
        return launch._archive_options()
    finally:
        launch._archive.cache_clear()


@pytest.mark.usefixtures("java")
def test_an_archive_is_used_only_for_the_path_it_was_created_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, link = Path(pyspark.__file__).parent, tmp_path / "spark"
    link.symlink_to(installed)
    monkeypatch.setenv("SPARK_HOME", str(link))
    archive_file = launch.ClassArchive("spark", launch.look_for_java()[0] or "", link / "jars").file
    make_private(archive_file.parent)
    archive_file.write_text("an archive")
    assert f"-XX:SharedArchiveFile={archive_file}" in options_under(link, monkeypatch)
    assert "-XX:DumpLoadedClassList=" in options_under(installed, monkeypatch)
