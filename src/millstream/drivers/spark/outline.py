"""The outline of a topology: its plan without the user's code, for processes that plan but do not run it.

Spark plans a source in its own Python process in the driver. This process does not receive the files of ``spark-submit --py-files`` and
does not need the libraries that the user's functions import. It therefore receives only what planning needs: nodes, tasks, partitions. A
:class:`LeftOut` replaces each function, class and object that belongs neither to Millstream nor to Python.
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
    """Placeholder for one of the user's objects, which ``what`` describes."""

    what: str

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(f"{self.what} is not known while a topology is only planned")


def outline(value: object) -> bytes:
    """Return a value without the user's code, as a pickle for :func:`from_outline`.

    Example:
        >>> import pyarrow
        >>> from_outline(outline((str.upper, pyarrow.Table)))
        (<method 'upper' of 'str' objects>, LeftOut(what='pyarrow.lib.Table'))
    """
    written = io.BytesIO()
    _Outliner(written, pickle.HIGHEST_PROTOCOL).dump(value)
    return written.getvalue()


def from_outline(data: bytes) -> Any:
    return _Reader(io.BytesIO(data)).load()


class _Outliner(cloudpickle.Pickler):
    """Pickles a value without the user's code."""

    def persistent_id(self, value: object) -> str | None:
        """Return a description of an object to leave out, or None for an object to pickle."""
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
    def persistent_load(self, what: Any) -> LeftOut:
        return LeftOut(what)
