"""What a check asks and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Finding:
    """The finding of a check."""

    name: str
    ok: bool
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class Inquiry:
    """What to check.

    Attributes:
        bootstrap_servers: Brokers to reach; None skips them.
        timeout_s: Timeout of a network request, seconds.
        master: Spark master whose executors are checked; None skips them.
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
