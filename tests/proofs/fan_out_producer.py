"""One producer of the proof of fan-out: sends until SIGTERM, and writes the numbers of delivered records to a file.

The last line of its output is the number of records sent, and the longest restriction in seconds.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from threading import Event
from time import monotonic

from millstream.drivers.kafka.fanout.key_range_producer import KeyRangeProducer

KEYS = 200


def main(servers: str, topic: str, name: str, rate: int, delivered_path: Path) -> None:
    stopped = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with delivered_path.open("w", buffering=1) as delivered_file:
        producer = KeyRangeProducer({"bootstrap.servers": servers}, topic)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        start, count = monotonic(), 0
        while not stopped.is_set():
            due = int((monotonic() - start) * rate)
            for number in range(count, min(due, count + 2000)):
                try:
                    send(producer, topic, name, number, delivered_file.write)
                except BufferError:
                    break
                count = number + 1
            producer.poll()
            stopped.wait(0.01)
        producer.close()
        assert len(producer) == 0
    sys.stdout.write(f"{count} {producer.longest_restriction_s:.3f}\n")


def send(producer: KeyRangeProducer, topic: str, name: str, number: int, write: object) -> None:
    def acknowledged(error: object, _message: object) -> None:
        assert error is None
        assert callable(write)
        write(f"{number}\n")

    producer.produce(topic, f"{name}:{number}", f"key-{number % KEYS}", on_delivery=acknowledged)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), Path(sys.argv[5]))
