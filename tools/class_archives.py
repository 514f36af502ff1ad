"""Make the class archives of Kafka's and Spark's JVMs, unless they exist: `make test` does so before it starts hundreds of JVMs.

Archives are made with the lowest priority. Beside the tests, which keep all cores busy, they would be ready only when the tests are.
"""

from __future__ import annotations

import subprocess
import sys
import time

from millstream.drivers.class_archive import ClassArchive
from millstream.drivers.private import locked
from millstream.drivers.spark.driver.launch import _archive
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


def is_missing(archive: ClassArchive) -> bool:
    """Return whether the next JVM would record its classes: there is no archive, and archives are not switched off."""
    archive.options(note=True)
    return archive.is_recording


def main() -> None:
    kafka, spark = ClassArchive("kafka", find_java(), kafka_jars()), _archive()
    archives = {"kafka": kafka} if spark is None else {"kafka": kafka, "spark": spark}
    if not any(is_missing(archive) for archive in archives.values()):
        return
    print("class archives: a first start of a broker and of Spark records the classes they load", flush=True)
    subprocess.run([sys.executable, "-m", "millstream", "demo", "--lines", "100"], check=True)
    deadline = time.monotonic() + _PATIENCE_S
    while any(is_being_made(*each) for each in archives.items()) and time.monotonic() < deadline:
        time.sleep(0.2)  # the maker is no child of this process, and waiting for its lock has no time limit
    for archive in archives.values():
        print(f"class archives: {archive.file.name} {'made' if archive.file.exists() else 'missing'}")


if __name__ == "__main__":
    main()
