"""The outline of a topology: its plan without what users have written, for processes that plan and run nothing of it.

Spark plans a source in a Python process of its own in the driver, which neither has the files that were handed to
``spark-submit --py-files`` nor has any use for the libraries that a user's functions import. So it gets what is needed to plan: nodes,
tasks, partitions; in place of each function, class and object of others than Millstream and Python stands a :class:`LeftOut`.
"""

from __future__ import annotations

import io
import pickle
import sys
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final, NoReturn

from pyspark import cloudpickle

_KNOWN: Final = {"millstream", "pyspark", *sys.stdlib_module_names} - {"__main__"}
_PLAIN: Final = frozenset({str, int, bytes, bool, float, tuple, dict, list, type(None)})
_FUNCTIONS: Final = (FunctionType, BuiltinFunctionType, MethodType, type)


@dataclass(frozen=True)
class LeftOut:
    """Takes the place of something of the user's; ``what`` describes it."""

    what: str

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(f"{self.what} is not known where a topology is only planned")


def outline(value: object) -> bytes:
    """Return a value without what users have written, as a pickle for :func:`from_outline`.

    Example:
        >>> import pyarrow
        >>> from_outline(outline((str.upper, pyarrow.Table)))
        (<method 'upper' of 'str' objects>, LeftOut(what='pyarrow.lib.Table'))
    """
    written = io.BytesIO()
    _Outliner(written, pickle.HIGHEST_PROTOCOL).dump(value)
    return written.getvalue()


def from_outline(data: bytes) -> Any:
    """Read what :func:`outline` returned."""
    return _Reader(io.BytesIO(data)).load()


class _Outliner(cloudpickle.Pickler):
    """Pickles a value, and leaves out what users have written."""

    def persistent_id(self, value: object) -> str | None:
        """Return a description of what is left out; None for what is pickled."""
        kind = type(value)
        if kind in _PLAIN:
            return None
        owner = value if isinstance(value, _FUNCTIONS) else kind
        module = getattr(owner, "__module__", None) or "builtins"
        return (
            None
            if module.partition(".")[0] in _KNOWN
            else f"{module}.{getattr(owner, '__qualname__', owner)}"
        )


class _Reader(pickle.Unpickler):
    """Unpickles, with a :class:`LeftOut` for what was left out."""

    def persistent_load(self, what: Any) -> LeftOut:
        return LeftOut(what)
