"""JSON that every program can read."""

from __future__ import annotations

import json


def json_text(data: object) -> str:
    """Return data as JSON. NaN and infinite numbers, which JSON lacks, become text.

    Example:
        >>> json_text({"value": float("nan")})
        '{"value": "NaN"}'
    """
    try:
        return json.dumps(data, allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(data), parse_constant=str))
