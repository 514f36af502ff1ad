"""The table of methods in ``docs/how-to/query-a-store.md`` lists each method of each kind of store with its arguments."""

from __future__ import annotations

import re
from pathlib import Path

from millstream.core.queries.methods import METHODS
from millstream.core.topology.stores import KeyValueSpec, LruSpec, SessionSpec, VersionedSpec, WindowSpec

PAGE = Path(__file__).parents[4] / "docs/how-to/query-a-store.md"
KINDS = {
    "key-value, LRU": [KeyValueSpec, LruSpec],
    "window": [WindowSpec],
    "session": [SessionSpec],
    "versioned": [VersionedSpec],
    "all": list(METHODS),
}


def documented() -> set[tuple[type, str, str]]:
    rows, kind = set(), ""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[2].startswith("`("):
            kind = cells[0] or kind
            signature = cells[2].split("`")[1]
            names = re.findall(r"`(\w+)`", cells[1])
            rows.update((spec, name, signature) for spec in KINDS[kind] for name in names)
    return rows


def test_the_table_lists_every_method_with_its_arguments() -> None:
    assert documented() == {
        (spec, name, method.signature)
        for spec, methods in METHODS.items()
        for name, method in methods.items()
    }
