"""Error policies: what happens to a record that fails, per stage.

* ``fail`` (default): the application stops with an error that names the record.
* ``skip``: the record is dropped, counted and logged.
* ``dead_letter``: the original record goes to the dead-letter topic, with headers that say where and why it failed.

Source: Kafka Streams' deserialization, processing and production exception handlers; KIP-1034 (dead-letter queue).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Policy = Literal["fail", "skip", "dead_letter"]
Stage = Literal["deserialize", "process", "produce"]


@dataclass(frozen=True)
class ErrorPolicies:
    """The policy of each stage.

    Attributes:
        deserialize: For records whose bytes do not fit the serdes, or without a valid timestamp.
        process: For records on which a function or processor raises.
        produce: For results that do not fit the serdes of a sink.
        dead_letter_topic: Where failed records go.
    """

    deserialize: Policy = "fail"
    process: Policy = "fail"
    produce: Policy = "fail"
    dead_letter_topic: str | None = None

    def without_dead_letters(self) -> ErrorPolicies:
        """Give the same policies with "skip" in place of "dead_letter"."""
        return ErrorPolicies(
            *(_skipping(policy) for policy in (self.deserialize, self.process, self.produce))
        )

    def of(self, stage: Stage) -> Policy:
        """Give the policy of a stage."""
        return {"deserialize": self.deserialize, "process": self.process, "produce": self.produce}[stage]


def _skipping(policy: Policy) -> Policy:
    return "skip" if policy == "dead_letter" else policy
