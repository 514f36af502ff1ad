"""Drawings of a plan: Mermaid, Graphviz DOT and SVG (``millstream.core.topology.pictures``).

Topics are drawn outside the parts, because a repartition topic connects two sub-topologies. Names of stores and topics contain only
letters, digits and ``._-``. Names of nodes of the Processor API may contain any character and are escaped.
"""

from __future__ import annotations

from millstream.core.topology.describe import lines_of, parts_of, topics_of
from millstream.core.topology.pictures.svg import svg
from millstream.core.topology.plan import Plan

__all__ = ["dot", "mermaid", "svg"]


def mermaid(plan: Plan) -> str:
    parts = parts_of(plan)
    ids: dict[tuple[str, str], str] = {}

    def id_of(vertex: tuple[str, str]) -> str:
        return ids.setdefault(vertex, f"n{len(ids)}")

    lines = ["flowchart TB"]
    lines.extend(f'  {id_of(("topic", topic))}(["{topic}"])' for topic in topics_of(parts))
    for part in parts:
        lines.append(f"  subgraph sub{part.number}[Sub-topology {part.number}]")
        lines.extend(f'    {id_of(("node", shape.name))}["{_mermaid(shape.name)}"]' for shape in part.shapes)
        lines.extend(f'    {id_of(("store", store))}[("{store}")]' for store in part.stores)
        lines.append("  end")
    for line in lines_of(parts):
        lines.append(f"  {id_of(line.start)} {'-->' if line.carries_records else '-.-'} {id_of(line.end)}")
    return "\n".join(lines)


def dot(plan: Plan) -> str:
    parts = parts_of(plan)
    lines = ["digraph topology {", "  node [shape=box];"]
    lines.extend(f'  "topic:{topic}" [shape=oval, label="{topic}"];' for topic in topics_of(parts))
    for part in parts:
        lines.append(f'  subgraph cluster_{part.number} {{ label="Sub-topology {part.number}";')
        lines.extend(f'    "{_dot(shape.name)}";' for shape in part.shapes)
        lines.extend(f'    "store:{store}" [shape=cylinder, label="{store}"];' for store in part.stores)
        lines.append("  }")
    for line in lines_of(parts):
        style = "" if line.carries_records else " [style=dashed]"
        lines.append(f'  "{_dot_id(line.start)}" -> "{_dot_id(line.end)}"{style};')
    return "\n".join([*lines, "}"])


def _dot_id(vertex: tuple[str, str]) -> str:
    kind, name = vertex
    return _dot(name) if kind == "node" else f"{kind}:{name}"


def _dot(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')


def _mermaid(name: str) -> str:
    return name.replace("#", "#35;").replace('"', "#quot;")
