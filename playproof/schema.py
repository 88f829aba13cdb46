"""The JSON Schema of a configuration, for editors. Combinations are not in it: those the reader checks."""

from __future__ import annotations

from typing import Any

import msgspec

from playproof.config import LATER, WORDS, ConfigurationFile, sections

__all__ = ["configuration_schema"]

SCHEMA_ID = "https://playproof.example/configuration.schema.json"


def configuration_schema() -> dict[str, Any]:
    """Return the JSON Schema of a configuration.

    Examples
    --------
    >>> schema = configuration_schema()
    >>> schema["$defs"]["Traffic"]["additionalProperties"]
    False
    """
    (reference,), defs = msgspec.json.schema_components([ConfigurationFile], ref_template="#/$defs/{name}")
    defs = {name.lstrip("_"): definition for name, definition in defs.items()}
    words = _by_section(WORDS)
    later = _by_section(LATER)
    for name, definition in defs.items():
        definition["title"] = definition["title"].lstrip("_")
        definition["additionalProperties"] = False
        # Notes on the class are for who reads its source.
        definition.pop("description", None)
        properties = definition["properties"]
        for field, (taken, _) in words.get(name, {}).items():
            properties[field] = {**properties[field], "enum": list(taken)}
        for field in later.get(name, {}):
            properties[field] = {"enum": [None, False]}
        for field, value in properties.items():
            properties[field] = _switched_off(value)
    document = _renamed({"$defs": defs, **reference})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "A configuration of playproof",
        **document,
    }


def _by_section(table: Any) -> dict[str, dict[str, Any]]:
    """Return a table by dotted fields as one by sections and their fields."""
    found: dict[str, dict[str, Any]] = {}
    kinds = sections()
    for path, value in table.items():
        parent, _, field = path.rpartition(".")
        found.setdefault(kinds[parent].__name__.lstrip("_"), {})[field] = value
    return found


def _switched_off(value: dict[str, Any]) -> dict[str, Any]:
    """Return a section that may be absent as one that may be `false`, too."""
    arms = value.get("anyOf", [])
    if {"type": "null"} in arms and any("$ref" in arm for arm in arms):
        return {**value, "anyOf": [*arms, {"const": False}]}
    return value


def _renamed(value: Any) -> Any:
    """Return a schema whose references name the sections without their underscore."""
    if isinstance(value, dict):
        return {
            name: inner.replace("#/$defs/_", "#/$defs/") if name == "$ref" else _renamed(inner)
            for name, inner in value.items()
        }
    return [_renamed(inner) for inner in value] if isinstance(value, list) else value
