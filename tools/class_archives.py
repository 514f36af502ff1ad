"""Make the class archives of Kafka's and Spark's JVMs, unless they exist: `make test` does so before it starts hundreds of JVMs.

Archives are made with the lowest priority. Beside the tests, which keep all cores busy, they would be ready only when the tests are.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from millstream.drivers.class_archive import ClassArchive
from millstream.drivers.private import locked
from millstream.testing._jars import kafka_jars
from millstream.testing._java import find_java

_PATIENCE_S = 600


def is_being_made(program: str, archive: ClassArchive) -> bool:
    """Return whether a process makes the archive. It holds a lock until it is done."""
    if not archive.file.parent.is_dir():  # the cache cannot be written
        return False
    lock = locked(archive.file.parent / f"{program}.lock")
    if lock is not None:
        lock.close()
    return lock is None


def main() -> None:
    jars = {"kafka": kafka_jars(), "spark": Path(_find_spark_home(), "jars")}
    archives = {program: ClassArchive(program, find_java(), path) for program, path in jars.items()}
    if not any(archive.options(note=True) and archive.noted for archive in archives.values()):
        return  # they exist, or are switched off
    print("class archives: a first start of a broker and of Spark records the classes they load", flush=True)
    subprocess.run([sys.executable, "-m", "millstream", "demo", "--lines", "100"], check=True)
    deadline = time.monotonic() + _PATIENCE_S
    while any(is_being_made(*each) for each in archives.items()) and time.monotonic() < deadline:
        time.sleep(0.2)
    for archive in archives.values():
        print(f"class archives: {archive.file.name} {'made' if archive.file.exists() else 'missing'}")


if __name__ == "__main__":
    main()
