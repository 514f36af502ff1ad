"""The setup of a run, and what it determines: settings, topics and possible targets."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from millstream.core.topology.plan import Plan
from millstream.testing.crash.app import App, Guarantee, Topics
from millstream.testing.crash.faults import FaultTargets, JumpingClock, Space
from millstream.testing.crash.kill_plan import ON_REQUEST, Target, possible_targets
from millstream.testing.crash.network import Network
from millstream.testing.crash.processes import CrashTestError
from millstream.testing.kafka import EmbeddedKafka

Engine = Literal["lmdb", "rocksdb"]
"""The values of the setting ``store_engine`` whose stores survive a crash."""

PARTITIONS = 2
_BATCH_RECORDS = 250

_AS_USERS_RUN = "local[*]"
_WITH_EXECUTORS = "local-cluster[2,1,1024]"


@dataclass(frozen=True)
class Setup:
    """The parameters of a run.

    Attributes:
        seed: Determines workload, kill points and victims.
        disk: A directory for checkpoint and state, on a small file system; None uses a directory next to the logs.
    """

    app: App
    guarantee: Guarantee
    seed: int
    records: int
    targets: tuple[Target, ...]
    engine: Engine = "lmdb"
    brokers: int = 1
    disk: Path | None = None

    @property
    def master(self) -> str:
        """The Spark master: the default for users, or a master with executors if they are a target."""
        return _WITH_EXECUTORS if "executor" in self.targets else _AS_USERS_RUN

    def state(self, home: Path) -> Path:
        """Return the directory of checkpoint and state. On a shared disk, each run has its own subdirectory."""
        return home / "state" if self.disk is None else self.disk / f"{self.app.name}-{self.seed}"

    @property
    def lead(self) -> int:
        """The number of records that the workload stays ahead of the application: four micro-batches."""
        batch: int = self.app.settings.get("max_batch_records", _BATCH_RECORDS)
        return 4 * batch

    def settings(self, servers: str, state_dir: str) -> dict[str, Any]:
        settings = {
            "bootstrap_servers": servers,
            "state_dir": state_dir,
            "processing_guarantee": self.guarantee,
            "master": self.master,
            "store_engine": self.engine,
            "max_batch_records": _BATCH_RECORDS,
            # The loss of the disk includes the checkpoint.
            **({"on_other_checkpoint": "take_over"} if "disk" in self.targets else {}),
            **({"isolation_level": "read_committed"} if self.app.splits else {}),
            **self.app.settings,
        }
        settings["spark"] = {"spark.ui.enabled": "false", **settings.get("spark", {})}
        return settings


def default_records(kills: int) -> int:
    """Return a number of records that leaves several micro-batches between two kills."""
    return 3_000 + 1_500 * kills


def home_of(keep_logs: str | Path | None) -> Path:
    """Create and return the directory of a run.

    Raises:
        CrashTestError: If the directory is not empty.
    """
    if keep_logs is None:
        return Path(tempfile.mkdtemp(prefix="millstream-crash-"))
    home = Path(keep_logs).absolute()
    home.mkdir(parents=True, exist_ok=True)
    if any(home.iterdir()):
        raise CrashTestError(f"{home} is not empty: a run needs a separate directory for its logs")
    return home


def surroundings(setup: Setup, home: Path, stack: ExitStack) -> FaultTargets:
    """Start the brokers and the other surroundings that faults affect. The stack ends all of them."""
    targets, state = setup.targets, setup.state(home)
    if state.exists():
        raise CrashTestError(f"{state} exists already: a run needs a separate directory for its state")
    network = stack.enter_context(Network(setup.brokers)) if "network" in targets else None
    kafka = EmbeddedKafka(
        partitions=PARTITIONS,
        directory=home / "kafka",
        brokers=setup.brokers,
        relayed=() if network is None else network.ports,
    )
    return FaultTargets(
        stack.enter_context(kafka),
        state,
        JumpingClock(home / "clock") if "clock" in targets else None,
        network,
        Space(setup.disk) if setup.disk is not None else None,
        setup.brokers,
    )


def checked_targets(
    app: App, guarantee: Guarantee, targets: Sequence[Target] | None, *, small: bool = False
) -> tuple[Target, ...]:
    """Return the targets of a run; by default all possible ones except those on request.

    Raises:
        ValueError: If a given target is not possible for the application and the guarantee.
    """
    plan = plan_of(app)
    rebuilds = set(plan.changelogs) == set(plan.store_fingerprints())
    possible = possible_targets(guarantee, rebuilds=rebuilds, calls=plan.makes_calls, small=small)
    for target in targets or ():
        if target not in possible:
            raise ValueError(
                f"the target {target!r} is not for {app.name!r} with {guarantee!r}; its targets are {', '.join(possible)}"
            )
    if targets is not None:
        return tuple(targets)
    return tuple(target for target in possible if target not in ON_REQUEST)


def create_topics(kafka: EmbeddedKafka, name: str, output: Mapping[str, str]) -> Topics:
    topics = topics_of(name)
    for topic in (topics.input, topics.ask, topics.contents, topics.history):
        kafka.create_topic(topic)
    kafka.create_topic(topics.output, config=output)
    return topics


def topics_of(name: str) -> Topics:
    return Topics(*(f"{name}-{part}" for part in ("input", "output", "ask", "contents", "history")))


def plan_of(app: App) -> Plan:
    return app.topology(topics_of(app.name)).plan(app.name)
