"""Record keys: the identity of the keys of in-flight records, in the task, in the async worker and in stores."""

from __future__ import annotations

import pickle
import reprlib
from collections.abc import Hashable
from io import BytesIO
from typing import Any, Final

from millstream.core.engine.asynchronous.in_flight_record import in_bytes
from millstream.core.model.serde_formats import with_former_names
from millstream.core.model.serdes import Serde

_BY_VALUE: Final = frozenset({str, bytes, int, type(None)})
"""Types of keys that are their own identity: equal values have equal bytes. float and bool are missing: 1 == 1.0 == True."""
_STORED_MODULE: Final = "millstream.core.engine.ledger"
"""The module of :class:`_Pickled` in stored bytes. Fixed, because new bytes are compared with those of older checkpoints."""
_FRAME: Final = slice(3, 11)
"""The position of the first frame's length in a pickle."""


def key_id(key: Any, serde: Serde[Any]) -> Hashable:
    """Return the identity of a key: the key itself or its pickle."""
    if type(key) in _BY_VALUE:
        return key  # type: ignore[no-any-return]
    try:
        return _Pickled.of(key)
    except Exception:  # storing the key fails as well, and reports the error
        return in_bytes(serde, key)


def key_text(identity: Hashable) -> str:
    return reprlib.repr(pickle.loads(identity) if isinstance(identity, _Pickled) else identity)


def group_bytes(group: Hashable) -> bytes:
    """Return the identity of a key, or a partition, as bytes for a store."""
    packed = pickle.dumps(group, protocol=5)
    if not isinstance(group, _Pickled):
        return packed
    now, stored = _short_text(__name__), _short_text(_STORED_MODULE)
    length = int.from_bytes(packed[_FRAME], "little") + len(stored) - len(now)
    framed = packed[: _FRAME.start] + length.to_bytes(8, "little")
    return framed + packed[_FRAME.stop :].replace(now, stored, 1)


def group_from(packed: bytes) -> Hashable:
    """Invert :func:`group_bytes`. Also reads bytes that were written under the project's former name."""
    group: Hashable = with_former_names(packed)
    return group


def _short_text(text: str) -> bytes:
    return pickle.SHORT_BINUNICODE + bytes([len(text)]) + text.encode()


class _Pickled(bytes):
    """The pickle of a key. Equal keys have equal bytes, even if parts of one key are the same object."""

    @classmethod
    def of(cls, key: object) -> _Pickled:
        out = BytesIO()
        pickler = pickle.Pickler(out, protocol=5)
        pickler.fast = True  # write repeated objects in full instead of references
        pickler.dump(key)
        return cls(out.getvalue())
