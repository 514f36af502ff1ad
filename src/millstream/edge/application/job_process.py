"""A program that runs one application, as a user would write it, from a pickled job. :mod:`millstream.testing.crash` starts it.

    python -m millstream.edge.application.job_process JOB

It runs until SIGTERM. Its exit code is 1 if the application fails.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import cloudpickle

from millstream.drivers.spark.clock import host_clock
from millstream.edge.application.application import Application
from millstream.testing.crash.app import Job


def main(path: str) -> None:
    """Run the job in a file until it is stopped.

    Args:
        path: A file with a ``Job`` as cloudpickle, from a trusted source: unpickling runs code.
    """
    job: Job = cloudpickle.loads(Path(path).read_bytes())
    clock = job.clock or host_clock
    application = Application(job.application_id, job.topology(job.topics), clock=clock, **job.settings)
    application.run(standby=job.standby)


if __name__ == "__main__":
    main(*sys.argv[1:])
