"""``python -m bench.stacks JOB``: where a job spends its time, as stacks under ``build/``.

``JOB-python.svg`` is a flame graph of all Python processes, by py-spy. ``JOB-jvm.collapsed`` has the stacks of Spark's JVM, by Java Flight
Recorder, one line per stack with its number of samples; https://speedscope.app shows it. The JVM runs without its class
archive here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

import psutil

from bench.jobs import JOBS
from bench.processes import ROOT, child_environment
from bench.race import WITH_ROWS, fill, fill_rows
from bench.stage import Stage
from millstream.testing import EmbeddedKafka
from millstream.testing._java import find_java

_RATE_HZ: Final = 50
_DEPTH: Final = 64
_WRITTEN_S: Final = 120.0


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.stacks")
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--records", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    flames, stacks = build / f"{options.job}-python.svg", build / f"{options.job}-jvm.collapsed"
    with tempfile.TemporaryDirectory(prefix="stacks-") as scratch, EmbeddedKafka() as kafka:
        stage = Stage(kafka, Path(scratch), options.records)
        recording = Path(scratch, "jvm.jfr")
        _run(stage, options.job, flames, recording)
        stacks.write_text(_collapsed(recording))
    print(f"written to {flames} and {stacks}")
    return 0


def _run(stage: Stage, job: str, flames: Path, recording: Path) -> None:
    source, workload = fill(stage)
    if job in WITH_ROWS:
        fill_rows(stage, source, workload)
    arguments = {
        "job": job,
        "servers": stage.kafka.bootstrap_servers,
        "source": source,
        "sink": stage.topic(job),
        "records": workload.records + (workload.keys if job in WITH_ROWS else 0),
    }
    spy = [
        str(Path(sys.executable).with_name("py-spy")),
        "record",
        "--subprocesses",
        "--rate",
        str(_RATE_HZ),
        "--output",
        str(flames),
        "--",
    ]
    # Java's temporary directory is removed when the program ends, before the JVM has written the recording.
    recorder = (
        f"-Xshare:off -XX:FlightRecorderOptions=repository={recording.parent}/chunks "
        f"-XX:StartFlightRecording=filename={recording},settings=profile,dumponexit=true"
    )
    home = stage.directory("run")
    completed = subprocess.run(
        [*spy, sys.executable, "-m", "bench.ours", "race", json.dumps(arguments)],
        cwd=home,
        env={**child_environment(home), "SPARK_SUBMIT_OPTS": recorder},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    # py-spy succeeds even if the program that it ran has failed.
    if not any(line.startswith("{") for line in completed.stdout.splitlines()):
        raise SystemExit(f"{job} did not come to its end; what it wrote is above")
    _await_written(recording)


def _await_written(recording: Path) -> None:
    """Wait for the end of the JVM, which writes the recording when the program has already ended."""
    recorders = [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(recording) in argument for argument in process.info["cmdline"] or ())
    ]
    _, left = psutil.wait_procs(recorders, timeout=_WRITTEN_S)
    if left:
        raise SystemExit(f"the JVM has not ended within {_WRITTEN_S:.0f} s")


def _collapsed(recording: Path) -> str:
    """Return the stacks of a recording with their numbers of samples, the outermost method first."""
    reader = Path(find_java()).resolve().parent / "jfr"
    command = [str(reader), "print", "--json", "--stack-depth", str(_DEPTH)]
    completed = subprocess.run(
        [*command, "--events", "jdk.ExecutionSample", str(recording)],
        capture_output=True,
        check=True,
    )
    events: list[dict[str, Any]] = json.loads(completed.stdout)["recording"]["events"]
    found = Counter(_stack(event["values"]) for event in events)
    return "".join(f"{stack} {count}\n" for stack, count in found.most_common())


def _stack(sample: dict[str, Any]) -> str:
    methods = [frame["method"] for frame in reversed(sample["stackTrace"]["frames"])]
    names = [f"{method['type']['name']}.{method['name']}".replace("/", ".") for method in methods]
    return ";".join([sample["sampledThread"]["javaName"] or "?", *names])


if __name__ == "__main__":
    sys.exit(main())
