"""Settings: Kafka's names with underscores, from keywords, the environment (``MILLSTREAM_...``) or a TOML file."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from millstream.core.engine.caching import DEFAULT_CACHE_BYTES
from millstream.core.engine.policy import STAGES, ErrorPolicies, Policy, needing_topic
from millstream.core.model.topics import checked_topic_config
from millstream.core.ports import DEFAULT_MEMORY_BYTES
from millstream.core.runtime.inputs import WaitSettings
from millstream.core.runtime.thread_counts import check_threads
from millstream.core.topology.analysis.ranges import is_automatic
from millstream.drivers.kafka.secret_references import Secret
from millstream.edge.settings.client_settings import SECRET, librdkafka_settings, revealed
from millstream.edge.settings.environment_variables import PREFIX, nested, settings_file, variables_of
from millstream.edge.settings.setting_sources import EntryByEntry
from millstream.edge.settings.setting_types import (
    Directory,
    FilledText,
    Master,
    Milliseconds,
    Port,
    Replicas,
    TopicName,
    checked_policy,
)
from millstream.edge.status.log_output import Output


class Settings(BaseSettings):
    """The settings of an application. Keywords take precedence over the environment, and the environment over the file.

    Durations are milliseconds, a ``timedelta``, or ISO 8601 text such as ``PT5M``. Settings of Kafka's clients (``consumer``, ``producer``,
    ``kafka``) have librdkafka's names; common security settings may also have Java's names.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, toml_file=None, validate_default=True
    )

    bootstrap_servers: FilledText = Field(
        description="host:port of brokers, separated by commas, or a list of them"
    )
    state_dir: Directory = Field(
        default_factory=lambda: (
            Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "millstream"
        ),
        description="directory of local copies and, unless checkpoint_location says otherwise, of checkpoints",
    )
    store_engine: Literal["lmdb", "rocksdb", "memory"] = Field(
        "lmdb", description="engine of the local copies of stores that do not set one"
    )
    worker_memory_bytes: int = Field(
        DEFAULT_MEMORY_BYTES,
        ge=16 << 20,
        description="memory that local copies may use in a Python worker: mapped pages, caches, buffers, "
        "content",
    )
    checkpoint_location: FilledText | None = Field(
        None, description="directory or URL of the Spark checkpoint, used by this application only"
    )
    checkpoint_is_shared: bool = Field(
        False,
        description="whether a checkpoint in a local directory is the same directory on all hosts of a "
        "cluster",
    )
    auto_offset_reset: Literal["earliest", "latest", "none"] = Field(
        "earliest", description="where to start reading a partition without an offset; none: raise an error"
    )
    processing_guarantee: Literal["at_least_once", "exactly_once"] = Field(
        "at_least_once", description="delivery guarantee"
    )
    transaction_timeout_ms: Milliseconds = Field(
        60_000, ge=1_000, description="time after which the broker aborts a transaction that is still open"
    )
    max_batch_records: int = Field(
        2_000_000, ge=1, description="records per micro-batch, over all partitions"
    )
    max_batch_bytes: int = Field(
        256 << 20,
        ge=1 << 20,
        description="bytes per micro-batch, by the average size of the records read so far",
    )
    max_records_per_second: dict[str, PositiveInt] = Field(
        default_factory=dict, description="maximum number of records per second, per topic to be throttled"
    )
    trigger_interval_ms: Milliseconds = Field(
        0,
        ge=0,
        description="minimum time between the starts of micro-batches, unless a processor requests a commit",
    )
    parallelism: PositiveInt | Literal["auto"] | dict[str, PositiveInt | Literal["auto"]] = Field(
        1, description="workers per partition; auto: adapted to the load"
    )
    shuffle_partitions: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Spark partitions for the tasks; None: a power of two up to the number of cores, at most "
        "8, and with parallelism at least that",
    )
    on_changed_shuffle_partitions: Literal["rescale", "keep", "fail"] = Field(
        "rescale", description="what to do if the checkpoint has another number of shuffle partitions"
    )
    master: Master | None = Field(
        None,
        description="Spark master, if no session is active; None: the master that spark-submit or "
        "spark-defaults.conf sets, else local[*]",
    )
    spark: dict[str, str] = Field(default_factory=dict, description="additional Spark settings", repr=False)
    py_modules: list[str] | None = Field(
        None,
        description="modules and packages of the program that are sent to Spark's workers; None: those that "
        "contain its functions, with their imports, if workers cannot import them",
    )
    kafka: dict[str, Any] = Field(
        default_factory=dict, description="client settings for all clients", repr=False
    )
    consumer: dict[str, Any] = Field(
        default_factory=dict, description="client settings for consumers", repr=False
    )
    producer: dict[str, Any] = Field(
        default_factory=dict, description="client settings for producers", repr=False
    )
    isolation_level: Literal["read_uncommitted", "read_committed"] | None = Field(
        None,
        description="whether records of open transactions are read; None: read_committed under exactly_once, "
        "else read_uncommitted",
    )
    max_task_idle_ms: Milliseconds = Field(
        0,
        ge=-1,
        description="how long a task waits for an empty input that has no more records on the broker; -1: "
        "never wait, not even for records that are still on the broker; 9223372036854775807: wait "
        "forever",
    )
    buffered_records_per_partition: int = Field(
        50_000,
        ge=1,
        description="maximum number of records buffered per partition while a task waits for another input",
    )
    buffered_bytes_per_partition: int = Field(
        16_000_000,
        ge=1,
        description="approximate maximum of bytes buffered per partition while a task waits for another input",
    )
    statestore_cache_max_bytes: int = Field(
        DEFAULT_CACHE_BYTES,
        ge=0,
        description="approximate maximum of bytes per task for table updates that wait until the end of the "
        "micro-batch, so that later updates of the same row can replace them; 0: every update is "
        "forwarded",
    )
    drain_timeout_ms: Milliseconds = Field(
        0,
        ge=0,
        description="how long a stop may take to finish in-flight records of asynchronous operators; 0: they "
        "are carried over to the next start",
    )
    num_threads_per_task: int = Field(
        1,
        ge=1,
        description="threads per task that call the functions of stateless operators; 1: the task uses one "
        "thread for everything",
    )
    num_stream_threads: int | None = Field(
        None,
        ge=1,
        description="maximum number of threads that call functions at the same time, over all tasks; None: no "
        "limit besides num_threads_per_task",
    )
    task_timeout_ms: Milliseconds = Field(
        300_000, ge=1_000, description="how long a micro-batch waits for a broker that does not respond"
    )
    request_timeout_ms: Milliseconds = Field(
        10_000, ge=100, description="time limit of a single request to the broker"
    )
    app_config: dict[str, Any] = Field(
        default_factory=dict,
        description="dictionary that processors can read as context.app_config",
        repr=False,
    )
    replication_factor: Replicas = Field(
        -1, description="replicas of internal topics; -1: the broker's default"
    )
    internal_topic_config: dict[str, str] = Field(
        default_factory=dict, description="additional configuration of internal topics, with Kafka's names"
    )
    repartition_purge_interval_ms: Milliseconds = Field(
        30_000,
        ge=100,
        description="minimum time between two deletions of processed records from repartition topics on the "
        "broker",
    )
    on_deserialize_error: Policy = Field("fail", description="fail, skip, dead_letter or an error handler")
    on_process_error: Policy = Field("fail", description="fail, skip, dead_letter or an error handler")
    on_produce_error: Policy = Field("fail", description="fail, skip, dead_letter or an error handler")
    on_operator_error: dict[str, Policy] = Field(
        default_factory=dict,
        description="policies by operator name; they take precedence over those of the stages",
    )
    dead_letter_topic: TopicName | None = Field(
        None,
        description="topic for records that fail under the policy dead_letter, and for the record that stops "
        "the application",
    )
    on_lost_offsets: Literal["fail", "skip"] = Field(
        "fail", description="what to do if the broker no longer has the next offset to be read"
    )
    on_other_checkpoint: Literal["fail", "take_over"] = Field(
        "fail",
        description="what a start under exactly_once without a checkpoint does if another checkpoint has "
        "already delivered results of this application",
    )
    on_removed_operator: Literal["fail", "drop"] = Field(
        "fail",
        description="what to do if an asynchronous operator that has in-flight records is no longer in the "
        "topology",
    )
    on_recreated_topic: Literal["fail", "restart_from_beginning"] = Field(
        "fail", description="what to do if a source topic was deleted and created again"
    )
    on_uneven_partitions: Literal["fail", "wait"] = Field(
        "fail", description="what to do if co-partitioned topics no longer have equal numbers of partitions"
    )
    on_unprotected_secrets: Literal["fail", "send"] = Field(
        "fail",
        description="what to do if kafka, consumer or producer contain a secret that Spark would send over a "
        "cluster without spark.authenticate",
    )
    metadata_max_age_ms: Milliseconds = Field(
        30_000, ge=100, description="maximum time until a change of a topic is detected"
    )
    output: Output = Field(
        "lines",
        description="what the terminal shows if the program has not configured logging: lines, json, quiet "
        "(only warnings and errors) or debug (also the output of Spark)",
    )
    metrics_port: Port = Field(
        None, description="port of /metrics, /healthz and /readyz; 0: any free port; None: no port"
    )
    page_port: Port = Field(
        None, description="port of the application's page; 0: any free port; None: no port"
    )
    http_host: FilledText = Field(
        "127.0.0.1", description="address on which metrics_port and page_port listen"
    )
    opentelemetry: bool = Field(
        False, description="whether metrics are reported to the program's OpenTelemetry SDK"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: keywords, environment, and the TOML file from MILLSTREAM_CONFIG."""
        entries, variables = InitSettingsSource(settings_cls, nested(os.environ)), variables_of(settings_cls)
        file = TomlConfigSettingsSource(settings_cls, settings_file())
        sources = (init_settings, entries, variables, file)
        return tuple(EntryByEntry(settings_cls, source) for source in sources)

    @field_validator("bootstrap_servers", mode="before")
    @classmethod
    def _servers(cls, servers: Any) -> Any:
        if isinstance(servers, str) and servers.lstrip().startswith("["):
            with suppress(ValueError):  # an address in brackets, such as [::1]:9092, is no JSON
                servers = json.loads(servers)
        listed = isinstance(servers, list | tuple) and all(isinstance(server, str) for server in servers)
        return ",".join(servers) if listed else servers

    _client_names = field_validator("kafka", "consumer", "producer")(librdkafka_settings)
    _internal_topics = field_validator("internal_topic_config")(checked_topic_config)
    _policy = field_validator("on_deserialize_error", "on_process_error", "on_produce_error", mode="plain")(
        checked_policy
    )

    @field_validator("on_operator_error", mode="plain")
    @classmethod
    def _policies_by_name(cls, policies: Any) -> Any:
        if not isinstance(policies, dict):
            raise PydanticCustomError(
                "policy", "Input should be a dictionary from names of operators to policies"
            )
        return {name: checked_policy(policy) for name, policy in policies.items()}

    @model_validator(mode="after")
    def _dead_letters_have_a_topic(self) -> Settings:
        given = {f"on_{stage}_error": getattr(self, f"on_{stage}_error") for stage in STAGES}
        given |= {f"on_operator_error {name!r}": policy for name, policy in self.on_operator_error.items()}
        wanting = needing_topic(given)
        if wanting is not None and self.dead_letter_topic is None:
            raise ValueError(f"{wanting} needs dead_letter_topic='...'")
        return self

    @model_validator(mode="after")
    def _automatic_workers_can_change(self) -> Settings:
        fixed = self.shuffle_partitions is not None or self.on_changed_shuffle_partitions != "rescale"
        if fixed and is_automatic(self.parallelism):
            raise ValueError(
                "parallelism='auto' needs shuffle_partitions=None, on_changed_shuffle_partitions='rescale'"
            )
        return self

    @model_validator(mode="after")
    def _exactly_once_reads_committed(self) -> Settings:
        if self.exactly_once and self.isolation_level == "read_uncommitted":
            raise ValueError(
                "processing_guarantee='exactly_once' cannot read uncommitted records, because they may be aborted; "
                "leave isolation_level out"
            )
        return self

    @model_validator(mode="after")
    def _tasks_have_their_threads(self) -> Settings:
        check_threads(self.num_threads_per_task, self.num_stream_threads)
        return self

    @property
    def policies(self) -> ErrorPolicies:
        return ErrorPolicies(
            self.on_deserialize_error,
            self.on_process_error,
            self.on_produce_error,
            self.dead_letter_topic,
            self.on_operator_error,
        )

    @property
    def read_committed(self) -> bool:
        """Whether only records of committed transactions are read."""
        level = self.isolation_level
        return self.exactly_once if level is None else level == "read_committed"

    @property
    def exactly_once(self) -> bool:
        """Whether outputs, changelogs and offsets are committed in transactions."""
        return self.processing_guarantee == "exactly_once"

    @property
    def waits(self) -> WaitSettings:
        return WaitSettings(
            self.max_task_idle_ms, self.buffered_records_per_partition, self.buffered_bytes_per_partition
        )

    @property
    def secrets_in_clients(self) -> tuple[str, ...]:
        """The settings that contain a secret itself, not a reference to one, for at least one kind of client."""
        given = (*self.kafka.items(), *self.consumer.items(), *self.producer.items())
        secrets = (
            name
            for name, value in given
            if (SECRET.search(name) or revealed(value) is not value) and not isinstance(value, Secret)
        )
        return tuple(dict.fromkeys(secrets))

    def home(self, application_id: str) -> Path:
        """Return the directory of an application: local copies, its lock and, by default, its checkpoint."""
        return self.state_dir / application_id

    def checkpoint(self, application_id: str) -> str:
        """Return the URL of an application's checkpoint."""
        return self.checkpoint_location or (self.home(application_id) / "checkpoint").absolute().as_uri()

    def client(self, kind: Literal["admin", "consumer", "producer"], application_id: str) -> dict[str, Any]:
        """Return librdkafka's settings for a kind of client."""
        more = {"consumer": self.consumer, "producer": self.producer, "admin": {}}[kind]
        settings = {"client.id": f"{application_id}-{kind}", **self.kafka, **more}
        return {
            "bootstrap.servers": self.bootstrap_servers,
            **{name: revealed(value) for name, value in settings.items()},
        }
