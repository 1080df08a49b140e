#!/usr/bin/env python3
"""Writes python/headrace/_loader_options.py, to stdout, from the JSON schema of a recipe, on stdin: the keys of [data], which are
keywords of headrace.Loader, with types for editors and type checkers, and defaults, ranges and sentences for help().

usage: loader_options.py <docs/recipe.schema.json
"""

import json
import sys
import textwrap

WIDTH = 130
HEAD = '''"""Keywords of headrace.Loader that are keys of a recipe's [data]. `make docs` writes this file; they are declared in
include/headrace/options/data.h and transform.h."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

if TYPE_CHECKING:
    import torch

    from ._operation import Operation


class Option(NamedTuple):
    """What is said of a key."""

    default: Any
    range: str  # Empty: any value of its type.
    sentence: str


'''
SCALARS = {"boolean": "bool", "integer": "int", "number": "float", "string": "str"}
OPERATIONS = "Sequence[Operation | Mapping[str, Any]]"
OF_LOADER = ("source", "sampler")  # Parameters of its own: the first, and one that takes objects, too.


def type_of(key: str, schema: dict) -> str:
    if key in ("transforms", "eval_transforms"):
        return OPERATIONS
    if key == "transform":
        return "TransformOptions"
    kind = schema.get("type", "string")  # A choice has the texts alone.
    if isinstance(kind, list):
        return " | ".join(SCALARS[one] for one in kind)
    if kind == "array":
        return f"Sequence[{SCALARS[schema['items']['type']]}]"
    return "str | torch.dtype" if key == "dtype" else SCALARS[kind]


def range_of(schema: dict) -> str:
    if "enum" in schema:
        return " | ".join(schema["enum"])
    of_number = schema.get("items", schema)
    if "minimum" not in of_number:
        return ""
    bounds = f"{of_number['minimum']:g} to {of_number['maximum']:.15g}"
    return f"each {bounds}" if "items" in schema else f"{bounds}, or auto" if "pattern" in schema else bounds


def literal(text: str, indent: int, end: str) -> str:
    """A text as adjacent string literals, one a line."""
    *lines, last = textwrap.wrap(text, WIDTH - indent - 4)
    return ("\n" + " " * indent).join(json.dumps(line, ensure_ascii=False) for line in [*(f"{line} " for line in lines), last]) + end


def value(default: object) -> str:
    return json.dumps(default) if isinstance(default, str) else repr(default)


def class_of(name: str, sentence: str, properties: dict) -> str:
    fields = [f"    {key}: {type_of(key, schema)}" for key, schema in properties.items() if key not in OF_LOADER]
    return "\n".join([f"class {name}(TypedDict, total=False):", f'    """{sentence}"""', "", *fields]) + "\n"


def table_of(name: str, properties: dict) -> str:
    rows = []
    for key, schema in properties.items():
        if "description" in schema:
            rows.append(f"    {json.dumps(key)}: Option({value(schema['default'])}, {json.dumps(range_of(schema))},\n"
                        f"        {literal(schema['description'], 8, '),')}")
    return "\n".join([f"{name} = {{", *rows, "}"]) + "\n"


def main() -> int:
    data = json.load(sys.stdin)["properties"]["data"]["properties"]
    transform = data["transform"]["properties"]
    source = data.pop("source")
    sys.stdout.write(HEAD + class_of("TransformOptions", "The dict that `transform` is.", transform) + "\n\n"
                     + class_of("DataOptions", "Keys of [data] that are keywords as they are.", data) + "\n\n"
                     + f"SOURCE = (\n    {literal(source['description'], 4, ')')}\n"
                     + table_of("DATA", data) + table_of("TRANSFORM", transform))
    return 0


if __name__ == "__main__":
    sys.exit(main())
