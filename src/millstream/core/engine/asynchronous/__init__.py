"""Asynchronous operators in a task: their in-flight records, from arrival until the effects are applied.

Importing this package registers the compilers of their nodes with ``compile_node``.
"""

from __future__ import annotations

from millstream.core.engine.asynchronous import operators

__all__ = ["operators"]
