"""What a start does about the number of shuffle partitions."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.core.model.errors import SettingsError
from millstream.drivers.spark.driver.checkpoint import CheckpointProgress
from millstream.edge.checkpoint.shuffle_rescaling import decided


def progress(**changed: Any) -> CheckpointProgress:
    return CheckpointProgress(
        **{
            "batch": 7,
            "committed": True,
            "rescaling": False,
            "shuffle_partitions": 4,
            "planned": {},
            "processed": {},
            **changed,
        }
    )


@pytest.mark.parametrize(
    ("before", "configured", "policy", "expected"),
    [
        (None, 8, "fail", "nothing"),
        (progress(), None, "fail", "nothing"),
        (progress(), 4, "fail", "nothing"),
        (progress(), 8, "keep", "nothing"),
        (progress(), 8, "rescale", "rescale"),
        (progress(committed=False), 8, "rescale", "later"),
        (progress(committed=False, rescaling=True), None, "keep", "rescale"),
    ],
)
def test_rescaling_follows_the_setting(
    before: CheckpointProgress | None, configured: int | None, policy: Any, expected: str
) -> None:
    assert decided(before, configured, policy) == expected


def test_another_number_of_shuffle_partitions_can_be_refused() -> None:
    with pytest.raises(SettingsError, match=r"has 4 shuffle partitions, but shuffle_partitions=8 is set"):
        decided(progress(), 8, "fail")
