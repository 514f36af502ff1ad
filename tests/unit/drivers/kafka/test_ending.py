"""Programs and applications that end while clients are open, even if a client never closes."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import logging, threading
from millstream.drivers.kafka.clients import warm

logging.basicConfig(format="%(message)s")

class Client:
    def __init__(self, settings):
        self.settings = settings

    def __del__(self):
        print(self.settings["client.id"], flush=True)
        {destroy}

for name in "one", "two":
    warm(Client, {{"client.id": name}})
"""


def _run(destroy: str) -> subprocess.CompletedProcess[str]:
    program = _PROGRAM.format(destroy=destroy)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


def test_clients_are_closed_before_the_interpreter_ends() -> None:
    ended = _run("threading.Thread(target=print).ident")  # needs a working interpreter
    assert (ended.returncode, ended.stdout.split(), ended.stderr) == (0, ["one", "two"], "")


def test_a_client_with_a_thread_of_its_own_is_closed() -> None:
    program = (
        "from millstream.drivers.kafka.clients import ThreadedClient, hang_up, warm\n"
        "class Client(ThreadedClient):\n"
        "    def __init__(self, settings): self.name = settings['client.id']\n"
        "    def close(self, timeout): print(self.name, flush=True)\n"
        "for name in ('first', 'second'): warm(Client, {'client.id': name})\n"
        "hang_up({'client.id': 'second'})\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout.split(), ended.stderr) == (0, ["second", "first"], "")


def test_a_client_that_never_closes_does_not_block_the_end_of_the_process() -> None:
    ended = _run("threading.Event().wait()")
    assert (ended.returncode, ended.stdout.split()) == (0, ["one"])
    assert ended.stderr.splitlines() == [
        "Kafka clients did not close within 5 s; the process ends without waiting for them"
    ]


def test_a_program_without_clients_ends_normally() -> None:
    program = "import millstream.drivers.kafka.clients"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_client_can_be_created_while_the_process_ends() -> None:
    program = (
        "import atexit\n"
        "from millstream.drivers.kafka.clients import warm\n"
        "atexit.register(lambda: print(warm(dict, {'client.id': 'late'})['client.id']))\n"
        "warm(dict, {'client.id': 'early'})\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout.split(), ended.stderr) == (0, ["late"], "")


def test_a_client_that_never_closes_does_not_block_the_end_of_an_application() -> None:
    program = _PROGRAM.format(destroy="threading.Event().wait()") + (
        "from millstream.drivers.kafka.clients import hang_up, warmed\n"
        "hang_up({'client.id': 'one'})\n"
        "hang_up({'client.id': 'one'})\n"
        "print(warmed(Client, {'client.id': 'one'}))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout.split()[:2]) == (0, ["one", "None"])
    assert ended.stderr.splitlines()[0] == (
        "Kafka clients did not close within 5 s; the application ends without waiting for them"
    )
