"""Forward declarations: the names of the handles, for annotations. Only type checkers read them, in ``forward.pyi``.

A stream has methods that return tables, and a table has methods that return streams, so the types of the handles are mutually
recursive. Their modules are not: each creates handles of another kind with ``Graph.stream`` and ``Graph.table``.
"""
