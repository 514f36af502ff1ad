from __future__ import annotations

import penstock as ps


def test_the_fingerprint_tells_what_must_not_change() -> None:
    plain = ps.stores.key_value("s", ps.serdes.string, ps.serdes.int64)
    stamped = ps.stores.key_value("s", ps.serdes.string, ps.serdes.int64, timestamped=True)
    assert plain.fingerprint == "key-value string -> int64"
    assert stamped.fingerprint == "timestamped-key-value string -> int64"
    assert ps.stores.key_value("other", ps.serdes.string, ps.serdes.int64).fingerprint == plain.fingerprint
