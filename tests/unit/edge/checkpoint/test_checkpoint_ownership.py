"""Whether a start under exactly once may deliver, according to the marks in Kafka."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream.core.model.errors import OtherCheckpointError
from millstream.drivers.kafka.marks import Mark
from millstream.drivers.spark.driver.checkpoint import CheckpointProgress
from millstream.edge.checkpoint.checkpoint_ownership import StartFacts, checkpoint_id


def never() -> bool:
    raise AssertionError("not asked before it matters")


def start(
    *,
    begun: str = "",
    take_over: bool = False,
    was_reset: Callable[[], bool] = never,
    goes_on: Callable[[], bool] = never,
    shuffled: tuple[str, ...] = (),
) -> StartFacts:
    return StartFacts("app", "file:/here", begun, take_over, was_reset, goes_on, shuffled)


def progress(checkpoint: str, number: int, run: str = "") -> CheckpointProgress:
    planned: dict[str, Any] = {"checkpoint": checkpoint, "batch": number, "run": run}
    return CheckpointProgress(number, True, False, 2, planned, planned, number)


def marks(*found: tuple[str, int] | tuple[str, int, str]) -> dict[int, Mark]:
    return {partition: Mark(*mark) for partition, mark in enumerate(found)}


class TestAStartWithACheckpoint:
    @pytest.mark.parametrize("found", [(), (("c", 4), ("c", -1)), (("c", 7), ("c", 7))])
    def test_continues_under_its_id(self, found: Any) -> None:
        assert checkpoint_id(start(), progress("c", 7), marks(*found)) == "c"

    @pytest.mark.parametrize("take_over", [False, True])
    def test_is_refused_when_another_checkpoint_has_taken_over(self, take_over: bool) -> None:
        message = r"taken over from the checkpoint at file:/here \(c, micro-batch 7\) .* \(other, delivered up to micro-batch 9\)"
        with pytest.raises(OtherCheckpointError, match=message):
            checkpoint_id(start(take_over=take_over), progress("c", 7), marks(("c", 7), ("other", 9)))

    def test_is_refused_when_the_checkpoint_is_an_old_copy(self) -> None:
        message = r"ends with micro-batch 7, but micro-batch 8 has been delivered"
        with pytest.raises(OtherCheckpointError, match=message):
            checkpoint_id(start(), progress("c", 7), marks(("c", 8), ("c", 3)))

    def test_continues_with_a_micro_batch_that_a_later_run_has_delivered(self) -> None:
        found = {0: Mark("c", 7, "run that planned it", "run that delivered it")}
        assert checkpoint_id(start(), progress("c", 7, "run that planned it"), found) == "c"

    def test_is_refused_when_a_copy_has_delivered_a_micro_batch_of_that_number(self) -> None:
        message = (
            r"micro-batch 7, but a micro-batch of that number that it has not planned has been delivered"
        )
        with pytest.raises(OtherCheckpointError, match=message):
            checkpoint_id(start(), progress("c", 7, "mine"), marks(("c", 6, "mine"), ("c", 7, "the copy's")))


class TestAStartWithoutACheckpoint:
    def test_gets_a_new_id_if_there_are_no_marks(self) -> None:
        ids = {checkpoint_id(start(), None, {}) for _ in range(3)}
        assert len(ids) == 3

    def test_continues_a_first_start_that_was_interrupted(self) -> None:
        assert checkpoint_id(start(begun="c"), None, marks(("c", -1))) == "c"

    def test_is_refused_if_the_lost_checkpoint_has_delivered(self) -> None:
        found = marks(("c", -1), ("c", 0))
        with pytest.raises(OtherCheckpointError, match="its checkpoint is lost"):
            checkpoint_id(start(begun="c", was_reset=lambda: False), None, found)

    @pytest.mark.parametrize("number", [-1, 5])
    def test_is_refused_if_there_is_another_checkpoint(self, number: int) -> None:
        with pytest.raises(OtherCheckpointError, match=r"belongs to another checkpoint \(other, .*take_over"):
            checkpoint_id(start(was_reset=lambda: False), None, marks(("other", number)))

    def test_gets_a_new_id_after_a_reset(self) -> None:
        assert checkpoint_id(start(was_reset=lambda: True), None, marks(("other", 5))) not in ("", "other")

    def test_takes_over_from_a_checkpoint_that_it_can_continue(self) -> None:
        taking = start(take_over=True, was_reset=lambda: False, goes_on=lambda: True)
        assert checkpoint_id(taking, None, marks(("other", 5))) not in ("", "other")

    def test_takes_over_from_a_checkpoint_that_has_delivered_nothing(self) -> None:
        taking = start(take_over=True, was_reset=lambda: False)
        assert checkpoint_id(taking, None, marks(("other", -1))) not in ("", "other")

    def test_does_not_take_over_records_whose_offsets_are_committed_by_another_transaction(self) -> None:
        taking = start(take_over=True, was_reset=lambda: False, goes_on=lambda: True, shuffled=("again",))
        message = r"cannot be taken over from checkpoint other .* repartition 'again' .*millstream reset app"
        with pytest.raises(OtherCheckpointError, match=message):
            checkpoint_id(taking, None, marks(("other", 5), ("other", 5)))

    @pytest.mark.parametrize("found", [(("other", 5),), (("other", -1), ("other", -1))])
    def test_takes_over_a_shuffle_with_a_single_transaction_or_without_deliveries(self, found: Any) -> None:
        taking = start(take_over=True, was_reset=lambda: False, goes_on=lambda: True, shuffled=("again",))
        assert checkpoint_id(taking, None, marks(*found)) not in ("", "other")

    def test_does_not_take_over_stores_that_only_the_other_checkpoint_has(self) -> None:
        taking = start(take_over=True, was_reset=lambda: False, goes_on=lambda: False)
        with pytest.raises(OtherCheckpointError, match=r"content of its stores.*millstream reset app"):
            checkpoint_id(taking, None, marks(("other", 5)))
