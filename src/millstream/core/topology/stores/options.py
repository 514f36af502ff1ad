"""The storage of the stores that operators of the DSL create."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TypeAlias

from millstream.core.model.arguments import checked_constructor
from millstream.core.model.durations import Duration
from millstream.core.topology.stores.specs import Changelog, Engine, Storage


@checked_constructor
@dataclass(frozen=True)
class StoreOptions:
    """The storage of the result of a DSL operator, if a name alone is not enough: ``ms.stores.options``.

    Args:
        name: Name of the store. For this option and ``engine``, ``changelog`` and ``changelog_config``, see :class:`StoreSpec`.
        history_retention: How long earlier versions of each row can be read, in the time of the table. None keeps only the newest
            value by offset. Only for ``table`` and ``to_table``.
        retention: How long after their start windows can be read, in stream time. None is the minimum: size plus grace period.
            Only for windowed aggregations.
        cache: Whether to merge updates of a row within a micro-batch before they are forwarded, within the limit of the setting
            ``statestore_cache_max_bytes``. False forwards every update (``withCachingDisabled``).

    Source: ``org.apache.kafka.streams.kstream.Materialized``.

    Example:
        >>> import millstream as ms
        >>> builder = ms.StreamsBuilder()
        >>> kept = ms.stores.options("counts", changelog="kafka")
        >>> counts = builder.stream("words").group_by_key().count(store=kept)
        >>> builder.build().plan("shop").changelogs
        {'counts': 'shop-counts-changelog'}
    """

    name: str
    _: KW_ONLY
    engine: Engine | None = None
    changelog: Changelog = "spark"
    changelog_config: Mapping[str, str] = field(default_factory=dict, compare=False)
    history_retention: Duration | None = None
    retention: Duration | None = None
    cache: bool = True

    @property
    def storage(self) -> Storage:
        """The storage options, as arguments of a specification."""
        return Storage(engine=self.engine, changelog=self.changelog, changelog_config=self.changelog_config)


StoreLike: TypeAlias = "str | StoreOptions"
"""The argument ``store`` of operators of the DSL: a name, or a name with options."""
