"""Spark's errors about a checkpoint are reported with its path and a solution."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError, escape_new_line
from pyspark.errors import IllegalArgumentException

from millstream.core.model.errors import CheckpointError, SparkRuntimeError, StoreError
from millstream.drivers.spark.crossing import crossing
from millstream.edge.spark.spark_errors import explained, is_transient, start_error, translated

FULL_DISK = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT] Error writing state "
    "store files for provider RocksDBStateStore[...]. Cannot perform commit during state checkpoint. SQLSTATE: 58030\n"
    "=== Streaming Query ===\nplans and offsets"
)
UNREADABLE = "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state."


def disk_space(path: str) -> tuple[int, int, int]:
    return (1 << 20, 1 << 20, 0) if path == "/" else (4 << 20, 1 << 20, 3 << 20)


@pytest.mark.parametrize(
    "text",
    [
        FULL_DISK,
        "[STREAMING_CHECKPOINT_LOG_WRITE_FAILURE.OFFSET_LOG] Failed to write",
        "java.io.IOException: No space left on device",
        "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 5.",
    ],
)
def test_a_full_disk_and_a_second_driver_are_named_as_possible_causes(text: str) -> None:
    error = translated(text, "file:///nowhere/at/all", disk_space)
    assert type(error) is SparkRuntimeError
    assert "Spark cannot write the checkpoint file:///nowhere/at/all" in error.message
    assert (
        "the disk of the checkpoint, /nowhere/at/all, has 0.0 of 1.0 MiB free; the disk of Spark's local files"
        in error.message
    )
    assert "Or another program writes to the checkpoint" in error.message
    assert "start the application again" in error.message
    assert "plans and offsets" not in error.message


def test_the_free_space_of_a_remote_checkpoint_is_not_reported() -> None:
    error = translated(FULL_DISK, "s3a://bucket/checkpoint", disk_space)
    assert "check s3a://bucket/checkpoint, and here the disk of Spark's local files" in error.message


def test_state_that_cannot_be_loaded_is_a_damaged_checkpoint() -> None:
    error = translated(UNREADABLE, "s3a://bucket/checkpoint", disk_space)
    assert isinstance(error, CheckpointError)
    assert "millstream reset" in error.message
    assert error.message.endswith(UNREADABLE)


@pytest.mark.parametrize(
    "text", ["[CANNOT_LOAD_STATE_STORE.UNRELEASED_THREAD_ERROR] held", "[OTHER] anything"]
)
def test_an_error_that_is_not_damage_keeps_the_text_of_spark(text: str) -> None:
    error = translated(text, "file:///here", disk_space)
    assert type(error) is SparkRuntimeError
    assert error.message == (
        "the Spark query ended with an error that is not Millstream's. Correct its cause, and start the application again: the "
        f"micro-batch was not committed and will be repeated. Spark reports: {text}"
    )


def test_an_error_of_millstream_is_recovered_from_the_text_of_spark() -> None:
    with pytest.raises(SparkRuntimeError) as crossed, crossing():
        raise StoreError("the disk is full: No space left on device")
    error = translated(f"{FULL_DISK}\n{crossed.value}", "file:///here", disk_space)
    assert type(error) is StoreError


@pytest.mark.parametrize(
    ("text", "transient"),
    [
        ("Broken pipe", True),
        ("[STREAM_FAILED] Query terminated with exception: \nSQLSTATE: XXKST", True),
        ("[CANNOT_LOAD_STATE_STORE.UNRELEASED_THREAD_ERROR] not released by a thread", True),
        ("[CANNOT_LOAD_STATE_STORE.ROCKSDB_STORE_PROVIDER_OUT_OF_MEMORY] not enough memory", True),
        ("Broken pipe\n=== Streaming Query ===\nNo space left on device", True),
        (FULL_DISK, False),
        (UNREADABLE, False),
    ],
)
def test_a_lost_process_is_transient_and_a_disk_error_is_not(text: str, transient: bool) -> None:
    assert is_transient(text) is transient


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connection refused"),  # a query is started again after its JVM has ended
        ConnectionResetError(104, "Connection reset by peer"),
        TimeoutError("timed out"),
        Py4JNetworkError("Answer from Java side is empty"),
        Py4JError("An error occurred while calling o1.isActive"),
    ],
)
def test_every_error_of_an_ended_jvm_says_that_spark_has_ended(error: Exception) -> None:
    explanation = explained(error, "file:///nowhere")
    assert type(explanation) is SparkRuntimeError
    assert "Spark has ended: its JVM does not answer" in explanation.message


class JavaException:
    """An exception of a Hadoop file system."""

    _target_id = "o41"

    def __str__(self) -> str:
        return "java.lang.RuntimeException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found\n\tat org.apache..."


@pytest.mark.parametrize(
    "error",
    [
        Py4JJavaError("An error occurred while calling o40.getFileSystem.\n", JavaException()),
        IllegalArgumentException(str(JavaException())),
    ],
)
def test_a_failed_start_names_the_checkpoint_that_spark_cannot_reach(error: Exception) -> None:
    """Spark's own error has a hundred lines of Java."""
    explanation = start_error(error, "s3a://bucket/shop")
    assert type(explanation) is SparkRuntimeError
    assert "on the checkpoint s3a://bucket/shop: java.lang.RuntimeException: Class " in explanation.message
    assert "\n" not in explanation.message


def test_a_failed_start_does_not_explain_errors_that_are_not_of_spark() -> None:
    assert start_error(StoreError("no such store"), "/nowhere") is None
    assert start_error(KeyboardInterrupt(), "/nowhere") is None
    assert "Spark has ended" in str(start_error(ConnectionRefusedError(111, "refused"), "/nowhere"))


def test_errors_that_are_explained_already_are_not_explained_again() -> None:
    error = StoreError("no such store")
    assert explained(error, "file:///nowhere") is error


def test_other_errors_keep_the_text_of_spark() -> None:
    assert "Spark reports: something else" in explained(RuntimeError("something else"), "/nowhere").message


class FakeJvm:
    """The connection to a JVM that has thrown an exception."""

    def __init__(self, text: str | None) -> None:
        self._gateway_client = self
        self._target_id = "o42"
        self._text = text

    def send_command(self, command: str) -> str:
        if self._text is None:
            raise ConnectionRefusedError(111, "Connection refused")
        return f"ys{escape_new_line(self._text)}"


def java_error(text: str | None) -> Py4JJavaError:
    """Return an exception whose text is in the JVM; ``None`` if the JVM has ended."""
    return Py4JJavaError("An error occurred while calling o40.start.\n", FakeJvm(text))


STACK = (
    "\n\tat org.apache.spark.sql.X.start(X.scala:1)\n\tat java.base/java.lang.Thread.run(Thread.java:840)\n"
)


def test_a_restart_that_fails_in_java_is_explained_in_one_line() -> None:
    """A restart follows a change of the number of workers. Py4J's own error has a hundred lines of Java."""
    text = f"java.lang.IllegalStateException: SparkContext was stopped{STACK}Caused by: java.io.IOException: no route{STACK}\t... 9 more\n"
    assert explained(java_error(text), "/nowhere").message.endswith(
        "Spark reports: java.lang.IllegalStateException: SparkContext was stopped (java.io.IOException: no route)"
    )
    assert explained(java_error(f"java.lang.RuntimeException: no query{STACK}"), "/nowhere").message.endswith(
        "Spark reports: java.lang.RuntimeException: no query"
    )


def test_the_cause_of_a_java_exception_is_examined() -> None:
    text = f"java.lang.RuntimeException: no query{STACK}Caused by: java.io.IOException: No space left on device{STACK}"
    error = explained(java_error(text), "file:///here")
    assert "Spark cannot write the checkpoint file:///here" in error.message
    assert "\tat" not in error.message
    with pytest.raises(SparkRuntimeError) as crossed, crossing():
        raise StoreError("no such store")
    assert type(explained(java_error(f"{text}Caused by: {crossed.value}"), "/nowhere")) is StoreError


def test_an_exception_whose_jvm_has_since_ended_is_explained() -> None:
    """Only the JVM has the text of the exception, so that Py4J raises another error."""
    assert "Spark has ended: its JVM does not answer" in explained(java_error(None), "/nowhere").message
