"""The id of an executor: where Kubernetes, YARN and standalone workers provide it, and which errors contain it."""

from __future__ import annotations

import socket

import pytest
from pyspark import TaskContext

from millstream.core.model.errors import ProcessingError
from millstream.drivers.spark.crossing import crossing, find_error
from millstream.drivers.spark.executor_id import executor_in, this_executor, where_it_runs

STANDALONE = "http://10.0.0.7:8081/logPage/?appId=app-20260101000000-0000&executorId=3&logType=stdout"


@pytest.mark.parametrize(
    ("environment", "executor"),
    [
        ({"SPARK_EXECUTOR_ID": "7"}, "7"),
        ({"CONTAINER_ID": "container_1_0001_01_000002"}, "container_1_0001_01_000002"),
        ({"SPARK_LOG_URL_STDOUT": STANDALONE}, "3"),
        ({"SPARK_LOG_URL_STDOUT": "http://node:8042/node/containerlogs/c/u/stdout"}, "local"),
        ({}, "local"),
    ],
)
def test_the_executor_id_comes_from_the_environment_of_the_cluster(
    environment: dict[str, str], executor: str
) -> None:
    assert executor_in(environment) == executor


class TestErrors:
    @pytest.fixture(autouse=True)
    def in_an_executor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SPARK_EXECUTOR_ID", "7")

    def crossed(self) -> str:
        with pytest.raises(Exception, match="millstream-error") as caught, crossing():
            raise ProcessingError("function f failed")
        found = find_error(str(caught.value))
        assert isinstance(found, ProcessingError)
        return found.message

    def test_of_a_task_name_its_executor_and_host(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(TaskContext, "_taskContext", None)  # so that it is None again afterwards
        TaskContext._setTaskContext(TaskContext())
        assert this_executor() == f"{socket.gethostname()}/7"
        assert self.crossed() == f"function f failed (executor 7 on host {socket.gethostname()})"

    def test_of_the_driver_name_no_executor(self) -> None:
        assert where_it_runs() == ""
        assert self.crossed() == "function f failed"
