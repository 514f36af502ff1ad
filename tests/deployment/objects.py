"""An object store with the interface of S3: the server of moto, and the Spark settings to use it."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pytest

from .hadoop import VERSION

_SDK: Final = "2.35.4"
"""The AWS SDK with which this version of Hadoop is built."""
_GROUP: Final = "software.amazon.awssdk"
MODULES: Final = [
    f"org.apache.hadoop:hadoop-aws:{VERSION}",
    *(f"{_GROUP}:{module}:{_SDK}" for module in ("s3", "s3-transfer-manager", "sts", "apache-client")),
]
WITHOUT: Final = [f"{_GROUP}:bundle"]
"""All clients of AWS, more than 600 MB, on which ``hadoop-aws`` depends."""
_SERVER: Final = Path(__file__).parents[2] / "build/deployment/bin/moto_server"
_BUCKET: Final = "checkpoints"
_WITHIN_S: Final = 60.0


@contextmanager
def object_store(home: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Run an object store on the loopback interface, with one bucket.

    Yields:
        The URL of the bucket, and Spark's settings.
    """
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    with (home / "moto.log").open("wb") as log:
        server = subprocess.Popen(
            [_SERVER, "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        _create_bucket(endpoint, server)
        yield f"s3a://{_BUCKET}", _settings(endpoint)
    finally:
        server.kill()
        server.wait()


def _create_bucket(endpoint: str, server: subprocess.Popen[bytes]) -> None:
    request = urllib.request.Request(f"{endpoint}/{_BUCKET}", method="PUT")
    deadline = time.monotonic() + _WITHIN_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10):
                return
        except urllib.error.URLError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the object store does not answer: {error}")
            time.sleep(0.1)


def _settings(endpoint: str) -> dict[str, str]:
    return {
        "spark.jars.packages": ",".join(MODULES),
        "spark.jars.excludes": ",".join(WITHOUT),
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.access.key": "key",
        "spark.hadoop.fs.s3a.secret.key": "secret",
        "spark.hadoop.fs.s3a.optimized.copy.from.local.enabled": "false",
    }
