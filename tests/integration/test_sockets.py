"""Protection of a running application: another user tries its sockets, command lines and files."""

from __future__ import annotations

import json
import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from millstream.testing import EmbeddedKafka

from .helpers import Apps, eventually, written

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(os.getuid() != 0 or not Path("/proc/net/unix").exists(), reason="needs root on Linux"),
]

NOBODY = 65_534
SECRET = "S3CRET-of-a-client"

PROGRAM = """
import asyncio
import os
import sys

import millstream as ms

servers, app_id, source, sink, home = sys.argv[1:]


async def shout(value):
    await asyncio.sleep(0)
    return value.upper()


builder = ms.StreamsBuilder()
builder.stream(source).map_values_async(shout).to(sink)
app = ms.Application(
    app_id,
    builder.build(),
    bootstrap_servers=servers,
    state_dir=home,
    kafka={"ssl.key.password": os.environ["KEY_PASSWORD"]},
    page_port=0,
    metrics_port=0,
)
app.run()
"""

CONNECTION_ATTEMPTS = """
import json
import socket
import sys

ports, paths = json.loads(sys.argv[1])
heard = {}
for host, port in ports:
    heard[f"{host}:{port}"] = ""
    for hello in (b"GET / HTTP/1.0\\r\\n\\r\\n", b"\\0\\0\\0\\0\\0\\0\\0\\x15\\x03" + b"\\0" * 20):
        with socket.socket() as line:
            line.settimeout(1)
            try:
                line.connect((host, port))
                line.sendall(hello)
                while more := line.recv(65_536):
                    heard[f"{host}:{port}"] += more.decode("latin-1")
            except OSError:
                pass
for path in paths:
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(1)
        try:
            line.connect(path)
            heard[path] = "connected"
        except OSError as error:
            heard[path] = type(error).__name__
print(json.dumps(heard))
"""


COMMAND_LINES = """
import json
import sys

lines = []
for process in sys.argv[1:]:
    try:
        with open(f"/proc/{process}/cmdline", encoding="latin-1") as file:
            lines.append(file.read())
    except OSError:  # it has ended
        continue
print(json.dumps(lines))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sockets")


@pytest.fixture(scope="module")
def running(kafka: EmbeddedKafka, home: Path) -> Iterator[psutil.Process]:
    apps = Apps(kafka, f"sockets-{secrets.token_hex(3)}", home)
    source, sink = apps.topic("in"), apps.topic("out")
    apps.kafka.produce(source, [("a", "x")])
    program = apps.home / "program.py"
    program.write_text(PROGRAM)
    arguments = [apps.kafka.bootstrap_servers, apps.id, source, sink, str(apps.home / "state")]
    previous_umask = os.umask(0)  # access by other users must not depend on the umask
    try:
        process = subprocess.Popen(
            [sys.executable, str(program), *arguments],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "KEY_PASSWORD": SECRET,
            },
            stdout=(apps.home / "printed").open("wb"),
            stderr=subprocess.STDOUT,
        )
    finally:
        os.umask(previous_umask)
    try:
        eventually(
            lambda: process.poll() is not None or written(apps.kafka, sink) == 1, "a result", within_s=200
        )
        assert process.poll() is None, (apps.home / "printed").read_text()
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(60)


def family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def listening_ports(process: psutil.Process) -> set[tuple[str, int]]:
    return {
        (each.laddr.ip, each.laddr.port)
        for member in family(process)
        for each in member.net_connections("inet")
        if each.status == psutil.CONN_LISTEN
    }


def listening_paths(process: psutil.Process) -> set[str]:
    """Return the paths of the Unix sockets that processes listen on."""
    listening = {}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, _, _, inode, *path = line.split()
        if int(flags, 16) & 0x10000 and path and path[0].startswith("/"):
            listening[f"socket:[{inode}]"] = path[0]
    found = set()
    for member in family(process):
        for descriptor in Path(f"/proc/{member.pid}/fd").iterdir():
            try:
                target = os.readlink(descriptor)
            except FileNotFoundError:
                continue
            if target in listening:
                found.add(listening[target])
    return found


def application_directory(home: Path) -> Path:
    (directory,) = (home / "state").iterdir()
    return directory


def secrets_of(home: Path) -> set[str]:
    """Return all secrets: the client's password, the key of the control socket, and the token of the page."""
    directory = application_directory(home)
    key = json.loads((directory / "control.json").read_text())["key"]
    token = (directory / "page.url").read_text().strip().partition("#")[2]
    assert key
    assert token
    return {SECRET, key, token}


def as_nobody(program: str, *arguments: str) -> str:
    """Run a Python program as another user; return what it printed."""
    ended = subprocess.run(
        ["/usr/bin/python3", "-c", program, *arguments],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout


def test_sockets_are_local_and_reveal_no_secret_to_another_user(running: psutil.Process, home: Path) -> None:
    ports = listening_ports(running)
    paths = listening_paths(running)
    assert ports
    assert paths
    assert {host.removeprefix("::ffff:") for host, _ in ports} == {"127.0.0.1"}
    heard = json.loads(as_nobody(CONNECTION_ATTEMPTS, json.dumps([sorted(ports), sorted(paths)])))
    assert {heard[path] for path in paths} == {"PermissionError"}
    hidden = secrets_of(home)
    assert not [where for where, answer in heard.items() if any(secret in answer for secret in hidden)]


def test_no_command_line_contains_a_secret(running: psutil.Process, home: Path) -> None:
    """Every user can read the command lines of all processes."""
    lines = json.loads(as_nobody(COMMAND_LINES, *(str(member.pid) for member in family(running))))
    assert any("SparkSubmit" in line for line in lines)
    assert not [line for line in lines if any(secret in line for secret in secrets_of(home))]


def test_another_user_cannot_read_the_files_of_the_application(running: psutil.Process, home: Path) -> None:
    directory = application_directory(home)
    assert [stat.S_IMODE((directory / name).stat().st_mode) for name in ("control.json", "page.url")] == [
        0o600,
        0o600,
    ]
    homes = {str(directory)}
    homes |= {str(Path(path).parent) for path in listening_paths(running)}
    program = "import os, sys; print([d for d in sys.argv[1:] if os.access(d, os.R_OK | os.X_OK)])"
    assert as_nobody(program, *homes).strip() == "[]"
    assert any(list(Path(home).glob("spark/blockmgr-*")) for home in homes)
