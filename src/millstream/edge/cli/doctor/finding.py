"""What a check asks and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        name: What was checked.
        ok: Whether it is as it should be.
        detail: What was found.
        fix: What to do about it, if it is not.
    """

    name: str
    ok: bool
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class Inquiry:
    """What the checks are asked about.

    Attributes:
        bootstrap_servers: Brokers to reach, None to leave them out.
        topics: Topics that must exist.
        state_dir: Where applications keep their state.
        client: librdkafka's settings for reaching the brokers.
        timeout_s: How long a network question may take.
        master: Spark master whose executors are looked at, None to leave them out.
        spark: Spark settings for that.
    """

    bootstrap_servers: str | None
    topics: tuple[str, ...]
    state_dir: Path
    client: Mapping[str, Any]
    timeout_s: float = 5.0
    master: str | None = None
    spark: Mapping[str, str] = field(default_factory=dict)


Findings = Finding | list[Finding]
Check = Callable[[Inquiry], Findings]
