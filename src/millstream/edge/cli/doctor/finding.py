"""The input and the output of checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Finding:
    name: str
    ok: bool
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class Inquiry:
    """What to check.

    Attributes:
        bootstrap_servers: Brokers to check; None to skip them.
        timeout_s: Timeout of a network request, seconds.
        master: Spark master whose executors are checked; None to skip them.
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
