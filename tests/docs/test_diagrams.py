"""Diagrams of the documentation match the data in the code."""

from __future__ import annotations

from millstream.core.runtime.lifecycle import FINAL, INITIAL, TRANSITIONS

from .markdown import ROOT, blocks_of

EDGE = "[*]"


def test_the_life_cycle_diagram_shows_the_transition_table() -> None:
    (drawn,) = (
        block.text
        for block in blocks_of(ROOT / "docs/concepts/architecture.md")
        if block.info == ("mermaid",) and block.text.startswith("stateDiagram-v2")
    )
    lines = [line.strip() for line in drawn.splitlines()[1:]]
    table = [f"{state} --> {after}: {event}" for (state, event), after in TRANSITIONS.items()]
    assert sorted(lines) == sorted(
        [f"{EDGE} --> {INITIAL}", *table, *(f"{state} --> {EDGE}" for state in FINAL)]
    )
