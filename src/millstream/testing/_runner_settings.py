"""How the test driver runs tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millstream.core.engine.policy import STAGES, ErrorPolicies, Policy, needing_topic
from millstream.core.model.errors import SettingsError
from millstream.core.ports import Threads


@dataclass(frozen=True)
class RunnerSettings:
    """How to run tasks; see ``TopologyTestDriver``."""

    policies: ErrorPolicies
    cache_bytes: int
    app_config: Mapping[str, Any]
    threads: Threads | None
    keep_processors: bool
    one_by_one: bool
    max_task_idle_ms: int | None

    def __post_init__(self) -> None:
        if not isinstance(self.cache_bytes, int) or self.cache_bytes < 0:
            raise SettingsError(
                f"statestore_cache_max_bytes={self.cache_bytes!r}: it must be a whole number of bytes, at least 0"
            )
        given: dict[str, Policy] = {stage: getattr(self.policies, stage) for stage in STAGES}
        given |= {f"operators[{name!r}]": policy for name, policy in self.policies.operators.items()}
        wanting = needing_topic(given)
        if wanting is not None and self.policies.dead_letter_topic is None:  # an application refuses it too
            raise SettingsError(f"{wanting} of the error policies needs dead_letter_topic='...'")
