"""Settings of Kafka's clients: which settings ``kafka``, ``consumer`` and ``producer`` accept, and what each means.

Millstream's guarantees depend on a few settings of librdkafka. ``RULES`` lists each setting that affects a guarantee, with its aliases
and allowed values; a value that would break a guarantee is refused when the settings are read. All other settings (connections, security,
buffers, logs) are passed to the client unchanged. ``docs/reference/settings.md`` shows the same table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from millstream.drivers.kafka import secret_references
from millstream.drivers.kafka.secret_references import Callback, Secret


@dataclass(frozen=True)
class Rule:
    """The rule for a client setting.

    Attributes:
        allowed: Allowed values in lower case; None for any, empty for none.
        advice: What to use instead, or why there is nothing, if no value is allowed.
    """

    names: tuple[str, ...]
    meaning: str
    allowed: tuple[str, ...] | None = None
    advice: str = ""

    def check(self, name: str, value: object) -> None:
        """Refuse a value that is not allowed.

        Args:
            name: The setting's name, as the user wrote it.
            value: Its value; text from the environment may stand for a number or a bool.

        Raises:
            ValueError: If the value would break a guarantee; the message names the alternative.
        """
        if self.allowed is None or str(revealed(value)).strip().lower() in self.allowed:
            return
        if not self.allowed:
            raise ValueError(f"{name!r} cannot be set here: {self.advice}")
        raise ValueError(f"{name!r} can only be {' or '.join(self.allowed)}: {self.meaning}")


def _any(meaning: str, *names: str) -> Rule:
    return Rule(names, meaning)


def _only(values: tuple[str, ...], meaning: str, *names: str) -> Rule:
    return Rule(names, meaning, values)


def _refused(advice: str, meaning: str, *names: str) -> Rule:
    return Rule(names, meaning, (), advice)


_COMMITTED = "offsets are committed after their records are processed"
_NO_MEMBER = "Spark assigns partitions to tasks, and the application does not join the group"

RULES: Final[tuple[Rule, ...]] = (
    # Connection and identity.
    _refused(
        "use bootstrap_servers",
        "all clients must use one cluster: a transaction covers records and offsets",
        "bootstrap.servers",
        "metadata.broker.list",
    ),
    _any("the name in logs and quotas of the brokers", "client.id"),
    # Groups and offsets.
    _refused(
        "use the application id, which is the group", "the group whose offsets are committed", "group.id"
    ),
    _refused(
        _NO_MEMBER,
        "the assignment of partitions",
        "group.instance.id",
        "group.protocol",
        "group.protocol.type",
        "group.remote.assignor",
        "partition.assignment.strategy",
    ),
    _any(
        "no effect: the application does not join the group",
        "session.timeout.ms",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
    ),
    _refused(
        _COMMITTED,
        "a record that was read but not processed would count as processed",
        "enable.auto.commit",
        "auto.commit.enable",
        "auto.commit.interval.ms",
        "enable.auto.offset.store",
        "offset.store.method",
        "offset.store.path",
        "offset.store.sync.interval.ms",
        "on_commit",
    ),
    # Reading.
    _refused(
        "use isolation_level",
        "planner, readers and changelogs must agree on what can be read: records of aborted transactions would be "
        "processed, or an open one would stop the application",
        "isolation.level",
    ),
    _refused(
        "use auto_offset_reset, or offset_reset=... at the source",
        "the planner decides where reading begins",
        "auto.offset.reset",
    ),
    _refused(
        "Millstream needs these events",
        "the last offsets of a range may contain no records (compaction, transaction markers)",
        "enable.partition.eof",
    ),
    _any("whether checksums of records are verified; false is the default", "check.crcs"),
    _any("a nearby replica is read, which may lag slightly", "client.rack"),
    _any(
        "how long a reader waits for the broker",
        "fetch.wait.max.ms",
        "fetch.min.bytes",
        "fetch.error.backoff.ms",
        "fetch.queue.backoff.ms",
    ),
    _any(
        "memory of a reader; the size of a micro-batch is max_batch_records and max_batch_bytes",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "max.partition.fetch.bytes",
        "queued.min.messages",
        "queued.max.messages.kbytes",
        "receive.message.max.bytes",
    ),
    _refused("use max_batch_records", "maximum number of records per read", "max.poll.records"),
    _only(
        ("false",),
        "a deleted source topic would be created again, empty, and the loss would not be "
        "detected; in kafka={...}, false also keeps brokers from creating output topics",
        "allow.auto.create.topics",
    ),
    # Writing.
    _only(
        ("true",), "retries of the client must neither duplicate nor reorder records", "enable.idempotence"
    ),
    _only(
        ("all", "-1"),
        "a record that only one broker has stored is lost if that broker fails",
        "acks",
        "request.required.acks",
    ),
    _only(
        ("1", "2", "3", "4", "5"),
        "with more requests in flight, a retry could change the order of records",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
    ),
    _only(("fifo",), "records of a key keep their order", "queuing.strategy"),
    _only(
        ("murmur2_random", "murmur2"),
        "keys go to the same partitions as with Java producers, also in repartition topics; to "
        "choose partitions yourself, pass partitioner=... to the sink",
        "partitioner",
    ),
    _refused("use partitioner=... at the sink", "the partition of a key", "partitioner.class"),
    _refused(
        "use processing_guarantee='exactly_once'",
        "each Spark partition has its own id, which fences zombies",
        "transactional.id",
    ),
    _refused(
        "use transaction_timeout_ms",
        "time after which the broker aborts a transaction that is still open",
        "transaction.timeout.ms",
    ),
    _any(
        "a record that is not delivered by then stops the application, and the micro-batch is "
        "repeated at the next start; set at least 1 retry, and under exactly_once at most "
        "transaction_timeout_ms",
        "retries",
        "message.send.max.retries",
        "message.timeout.ms",
        "delivery.timeout.ms",
        "request.timeout.ms",
    ),
    _any("on_produce_error applies to larger results", "message.max.bytes"),
    _refused("use message.max.bytes", "maximum size of a record", "max.request.size"),
    _any(
        "size of requests; a micro-batch ends when all records are acknowledged",
        "linger.ms",
        "queue.buffering.max.ms",
        "batch.size",
        "batch.num.messages",
        "sticky.partitioning.linger.ms",
    ),
    _any(
        "buffer for records that wait to be sent; if it is full, the sink waits",
        "queue.buffering.max.messages",
        "queue.buffering.max.kbytes",
    ),
    _refused("use queue.buffering.max.kbytes", "size of the send buffer", "buffer.memory"),
    _any(
        "how records are compressed",
        "compression.type",
        "compression.codec",
        "compression.level",
    ),
    _refused(
        "a record that is not delivered ends the application",
        "whether all records were delivered",
        "on_delivery",
        "delivery.report.only.error",
    ),
    # Callbacks and the rest.
    _any(
        "called in every process that has such a client, so they must be picklable; they do not "
        "affect the guarantees",
        "error_cb",
        "throttle_cb",
        "stats_cb",
        "oauth_cb",
        "logger",
    ),
    _only(("true",), "needed for headers and timestamps", "api.version.request"),
    _refused(
        "use its settings one by one", "topic settings in it would not be checked", "default.topic.config"
    ),
    _refused(
        "use key=ms.serdes... at the source",
        "how keys are read",
        "key.deserializer",
    ),
    _refused("use value=ms.serdes... at the source", "how values are read", "value.deserializer"),
    _refused("use key=ms.serdes... at the sink", "how keys are written", "key.serializer"),
    _refused("use value=ms.serdes... at the sink", "how values are written", "value.serializer"),
    _refused(
        "use ssl.ca.location with a PEM file (keytool -exportcert -rfc)",
        "only Java's clients read such files",
        "ssl.truststore.location",
    ),
    _refused(
        "use ssl.certificate.location and ssl.key.location with PEM files",
        "only Java's clients read such files",
        "ssl.keystore.location",
    ),
)

_RULE_OF: Final[Mapping[str, Rule]] = {name: rule for rule in RULES for name in rule.names}
_JAAS = re.compile(r"""(\w+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([^\s;]+))""")
_ESCAPED = re.compile(r"\\(.)")


def revealed(value: Any) -> Any:
    """Return the text of a ``SecretStr``, and any other value unchanged."""
    reveal = getattr(value, "get_secret_value", None)
    return value if reveal is None else reveal()


def _reference(name: str, written: Mapping[str, Any]) -> Secret:
    """Return the reference to a secret that a settings file writes as ``{"env": "NAME"}`` or ``{"file": "/path"}``."""
    kinds = {"env": secret_references.env, "file": secret_references.file}
    if len(written) == 1 and (kind := next(iter(written))) in kinds and isinstance(written[kind], str):
        return kinds[kind](written[kind])
    raise ValueError(
        f"{name!r} is text, or names a secret: {{'env': 'NAME'}} or {{'file': '/path'}}{_quoting(name, written)}"
    )


def _quoting(name: str, written: Mapping[str, Any]) -> str:
    """Return what to do about a name of a settings file that TOML divides at its dots."""
    inner: Any = written
    while isinstance(inner, dict) and len(inner) == 1:
        (part, inner), *_ = inner.items()
        name = f"{name}.{part}"
    return "" if isinstance(inner, dict) else f'. In TOML, quote the name: "{name}" = ...'


def _of_jaas(name: str, config: Any) -> dict[str, Any]:
    """Return user name and password of a login configuration of Java's clients. The password of one that is hidden is hidden too."""
    if isinstance(config, Secret):
        raise ValueError(f"{name!r} cannot be {config!r}; use 'sasl.username' and 'sasl.password'")
    text = revealed(config)
    if not isinstance(text, str):
        raise ValueError(f"{name!r} is text, not {type(text).__name__}")
    facts = {fact: _ESCAPED.sub(r"\1", "".join(parts)) for fact, *parts in _JAAS.findall(text)}
    try:
        password = facts["password"] if text is config else type(config)(facts["password"])
        return {"sasl.username": facts["username"], "sasl.password": password}
    except KeyError:
        raise ValueError(
            f"{name!r} has no username and password; write librdkafka's settings instead, such as 'sasl.oauthbearer.client.id'"
        ) from None


def _spelled_as_librdkafka(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {name: _reference(name, value)}
    if name == "sasl.jaas.config":
        return _of_jaas(name, value)
    return {"sasl.mechanisms" if name == "sasl.mechanism" else name: value}


def in_one_spelling(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return client settings with one name for each, so that they override those of another source. What cannot be read is unchanged."""
    result: dict[str, Any] = {}
    for name, value in settings.items():
        try:
            spelled = _spelled_as_librdkafka(name, value)
        except ValueError:
            spelled = {name: value}
        if _in_conflict(result, spelled):
            return dict(settings)  # to be refused with these names
        result.update(spelled)
    return result


def _in_conflict(settings: Mapping[str, Any], more: Mapping[str, Any]) -> str | None:
    """Return the name of a setting that has another value already."""
    return next((name for name in more if name in settings and settings[name] != more[name]), None)


def librdkafka_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return client settings under librdkafka's names, from librdkafka's or Java's names.

    Secrets stay hidden, and functions become ``Callback`` objects.

    Args:
        settings: The user's ``kafka``, ``consumer`` or ``producer``.

    Raises:
        ValueError: If a setting would break a guarantee or exists only in Java's clients; the message names the alternative. Also if two
            names of one setting have different values.

    Example:
        >>> sorted(librdkafka_settings({"sasl.jaas.config": 'x required username="u" password="p";'}))
        ['sasl.password', 'sasl.username']
        >>> librdkafka_settings({"isolation.level": "read_committed"})
        Traceback (most recent call last):
        ValueError: 'isolation.level' cannot be set here: use isolation_level
    """
    result: dict[str, Any] = {}
    for name, value in settings.items():
        if name in _RULE_OF:
            _RULE_OF[name].check(name, value)
        if callable(value) and not isinstance(value, Callback):
            result[name] = Callback(value)
            continue
        spelled = _spelled_as_librdkafka(name, value)
        if known := _in_conflict(result, spelled):
            raise ValueError(f"{known!r} has two values, because {name!r} sets it, too; give one of them")
        result.update(spelled)
    return result


SECRET: Final = re.compile(
    r"password|passphrase|secret|token|sasl\.jaas|key\.pem|oauthbearer\.config", re.IGNORECASE
)
"""Matches names of settings whose values are not shown."""
