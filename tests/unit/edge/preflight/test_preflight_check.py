"""What the preflight check reports about checkpoints that it cannot read and about missing topics."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.edge.preflight.preflight_check import preflight


class FakeClients:
    """Clients of a broker that has only the given topics."""

    def __init__(self, topics: Mapping[str, int], *, creates: bool | None = None) -> None:
        self._topics = topics
        self._creates = creates

    def check(self) -> None:
        pass

    def broker(self) -> FakeClients:
        return self

    def partition_counts(self) -> dict[str, int]:
        return dict(self._topics)

    def creates_topics(self) -> bool | None:
        return self._creates

    def disconnect(self) -> None:
        pass


ALL_TOPICS = {"in": 2, "out": 1}


def application(clients: FakeClients | None = None, **settings: Any) -> ms.Application:
    builder = ms.StreamsBuilder()
    builder.stream("in").group_by_key().count(store="counts").to_stream().to("out", value=ms.serdes.int64)
    app = ms.Application("shop", builder.build(), bootstrap_servers="nowhere:1", **settings)
    app._clients = clients or FakeClients(ALL_TOPICS)  # type: ignore[assignment]  # only what the check uses
    return app


@pytest.mark.parametrize("location", ["s3a://bucket/shop", "hdfs://cluster/shop"])
def test_a_checkpoint_that_only_spark_can_read_is_not_a_problem(location: str) -> None:
    report = preflight(application(checkpoint_location=location, processing_guarantee="exactly_once"))
    assert report.problems == ()
    (found,) = report.checkpoint
    assert found.startswith(f"{location} is not read, because it is not on a local disk")
    assert "counts" in "\n".join(report.plan)
    assert "shop-commits: one partition per Spark partition, compacted" in report.creates
    assert "Read on group shop-commits" in report.permissions


def test_a_local_checkpoint_is_checked(tmp_path: Any) -> None:
    assert preflight(application(state_dir=tmp_path)).checkpoint == ("none: this is the first start",)


@pytest.mark.parametrize("below", ["", "/shop"])
def test_a_checkpoint_location_that_is_a_file_is_a_problem(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    location = (tmp_path / "file").as_uri() + below
    (problem,) = preflight(application(checkpoint_location=location)).problems
    assert problem.startswith(f"the checkpoint '{tmp_path}/file{below}' cannot be read: Not a directory")


def test_a_state_directory_that_is_a_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (problem,) = preflight(application(state_dir=tmp_path / "file")).problems
    assert problem.startswith(
        f"the checkpoint '{tmp_path}/file/shop/checkpoint' cannot be read: Not a directory"
    )


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_checkpoint_without_read_permission_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir(mode=0)
    (problem,) = preflight(application(checkpoint_location=(tmp_path / "shop").as_uri())).problems
    assert problem.startswith(f"the checkpoint '{tmp_path}/shop' cannot be read: Permission denied")


def test_a_path_without_a_scheme_is_reported_as_on_sparks_default_file_system(tmp_path: Path) -> None:
    (found,) = preflight(application(checkpoint_location=str(tmp_path))).checkpoint
    assert found.startswith(
        f"{tmp_path} is not read, because it is on Spark's default file system: for a local disk, write file://{tmp_path}; what follows"
    )


def test_a_missing_output_topic_that_no_broker_creates_is_a_problem(tmp_path: Path) -> None:
    report = preflight(application(FakeClients({"in": 2}, creates=False), state_dir=tmp_path))
    assert report.problems == (
        "topic 'out' is written, but does not exist, and the brokers do not create topics automatically",
    )
    assert report.topics == ("in: read, 2 partitions",)
    assert "counts" in "\n".join(report.plan)


@pytest.mark.parametrize("creates", [True, None])
def test_a_missing_output_topic_that_a_broker_may_create_is_not_a_problem(
    tmp_path: Path, creates: bool | None
) -> None:
    report = preflight(application(FakeClients({"in": 2}, creates=creates), state_dir=tmp_path))
    assert report.problems == ()
    assert report.topics == ("in: read, 2 partitions", "out: does not exist; the broker may create it")


def test_missing_topics_are_reported_together(tmp_path: Path) -> None:
    settings = {"dead_letter_topic": "letters", "state_dir": tmp_path}
    report = preflight(
        application(FakeClients({}, creates=False), on_process_error="dead_letter", **settings)
    )
    assert [problem.split(",")[0] for problem in report.problems] == [
        "topic 'in' is read",
        "topic 'out' is written",
        "topic 'letters' is written",
    ]
