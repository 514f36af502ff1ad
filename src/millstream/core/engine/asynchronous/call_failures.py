"""Failed calls: what happens to their records, and what is logged."""

from __future__ import annotations

from typing import Final

from millstream.core.asynchronous.call import Failed, Waits
from millstream.core.engine.asynchronous.in_flight_record import InFlightRecord
from millstream.core.engine.failures import Letter, outcome_of, where
from millstream.core.engine.runtime import Runtime
from millstream.core.model.answers import DeadLetter
from millstream.core.model.calls import OnFailure
from millstream.core.model.errors import ProcessingError

_LOGGED_AFTER: Final = frozenset({5, 50, 500, 5_000, 50_000})
"""Numbers of failed attempts after which the cause is logged, because retries may never end."""


class CallFailures:
    """The failed calls of one operator. Owned by the operator's in-flight records."""

    def __init__(self, operator: str, policy: OnFailure, runtime: Runtime) -> None:
        self._operator = operator
        self._policy = policy
        self._runtime = runtime

    def note_retry(self, record: InFlightRecord, settled: Waits) -> None:
        """Log the cause of a retry after 5, 50, 500, ... failed attempts."""
        failed = settled.attempt - 1
        if failed in _LOGGED_AFTER:
            self._runtime.notice(
                f"{self._call_of(record)} has failed {failed} times and will be retried; the last failure was "
                f"{settled.cause}"
            )

    def stop_if_final(self, record: InFlightRecord, failed: Failed) -> None:
        """Raise if the policy stops the application.

        Raises:
            ProcessingError: The policy is "fail".
        """
        if self._policy == "fail" and not failed.to_dead_letters:
            stops = ProcessingError(self._message(record, failed))
            raise self._runtime.with_letter(stops, self._letter(record, failed)) from failed.error

    def drop(self, record: InFlightRecord, failed: Failed) -> bool:
        """Drop a record. Return True if a dead letter is sent."""
        runtime, policy = self._runtime, self._policy
        runtime.drop("failed call")
        topic = policy.text if isinstance(policy, DeadLetter) else runtime.policies.dead_letter_topic
        is_dead = failed.to_dead_letters or isinstance(policy, DeadLetter)
        runtime.notice(self._message(record, failed, outcome_of("dead_letter" if is_dead else "skip", topic)))
        if not is_dead:
            return False
        runtime.dead_letter(topic, self._letter(record, failed))
        return True

    def _letter(self, record: InFlightRecord, failed: Failed) -> Letter:
        facts = {"error": failed.cause, "attempts": failed.attempts}
        return Letter("call", self._operator, record.raw, facts, failed.kind, failed.trace)

    def _message(self, record: InFlightRecord, failed: Failed, outcome: str = "") -> str:
        attempts = "1 attempt" if failed.attempts == 1 else f"{failed.attempts} attempts"
        advice = outcome or (
            "Correct the function, set retry=ms.Retry(...) to retry such failures, or set on_failure='skip' or "
            "on_failure=ms.dead_letter('topic')"
        )
        return f"{self._call_of(record)} failed for good after {attempts}: {failed.cause}. {advice}"

    def _call_of(self, record: InFlightRecord) -> str:
        return f"the call of {self._operator} in task {self._runtime.task_id} {where(record.raw)}"
