"""``millstream describe``: shows a topology as text or as a picture, without a broker, Spark or Java."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from millstream.core.topology import describe, drawing
from millstream.core.topology.plan import Plan
from millstream.edge.cli.program_targets import plan_of


class DescribeFormat(StrEnum):
    text = "text"
    mermaid = "mermaid"
    dot = "dot"
    svg = "svg"
    plan = "plan"


_WRITERS: Final[Mapping[DescribeFormat, Callable[[Plan], str]]] = {
    DescribeFormat.text: describe.text,
    DescribeFormat.mermaid: drawing.mermaid,
    DescribeFormat.dot: drawing.dot,
    DescribeFormat.svg: drawing.svg,
    DescribeFormat.plan: str,
}


def described(target: str, form: DescribeFormat) -> str:
    """Return the description of a target.

    Raises:
        TargetError: If the module or the attribute does not exist, or the attribute is not a topology.
        TopologyError: If the topology is not valid.
    """
    return _WRITERS[form](plan_of(target))
