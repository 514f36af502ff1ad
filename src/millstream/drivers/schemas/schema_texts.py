"""Schemas as text: their names, and checks that a serde could write and read with them."""

from __future__ import annotations

import json
from typing import Any

from fastavro.schema import SchemaParseException, UnknownType, parse_schema
from jsonschema import SchemaError
from jsonschema.validators import validator_for

from millstream.core.model.errors import SettingsError


def name_of(schema: str) -> str:
    parsed = json.loads(schema)
    return str(parsed.get("name", parsed.get("type"))) if isinstance(parsed, dict) else str(parsed)


def check_avro(schema: str, of: type[Any] | None) -> None:
    """Refuse a schema with which Avro's library could not write.

    Raises:
        SettingsError: If it is not a schema, or two types in it have one name.
    """
    try:
        parse_schema(json.loads(schema))
    except (SchemaParseException, UnknownType, TypeError, ValueError, KeyError) as error:
        given = "the schema" if of is None else f"the schema of {of!r}"
        advice = (
            "Rename one of the two types, or give the schema as text"
            if "redefined" in str(error)
            else "Correct the schema"
        )
        raise SettingsError(f"{given} is not valid in Avro: {_problem(error)}. {advice}") from None


def _problem(error: Exception) -> str:
    if isinstance(error, UnknownType):
        return f"it does not define the type {error.args[0]!r}; a schema that is written cannot refer to other subjects"
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def check_json_schema(schema: str) -> None:
    """Refuse a schema that is no JSON Schema: with it, every record would fail.

    Raises:
        SettingsError: If it is none; the message names the part that is wrong.
    """
    parsed = json.loads(schema)
    try:
        validator_for(parsed).check_schema(parsed)
    except SchemaError as error:
        raise SettingsError(
            f"the schema is not valid as a JSON Schema: {error.message}, at {error.json_path}. Correct the schema"
        ) from None
