#!/usr/bin/env python3
"""Writes python/headrace/_operation_classes.py, to stdout, from the JSON schema of a recipe, on stdin: a class for each operation
that [[data.transforms]] may have, with its parameters, their defaults and sentences.

usage: operation_classes.py <docs/recipe.schema.json
"""

import json
import sys
import textwrap

WIDTH = 120
HEAD = '''"""The operations of headrace.transforms, a class each. `make docs` writes this file; they are declared in
include/headrace/options/transforms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._operation import Operation

__all__ = [
'''
TAIL = '''
if TYPE_CHECKING:
    import torch
'''
SCALARS = {"boolean": "bool", "integer": "int", "number": "float", "string": "str"}


def type_of(key: str, schema: dict) -> str:
    kind = schema.get("type", "string")  # A choice has the texts alone.
    if isinstance(kind, list):
        return " | ".join(type_of(key, {**schema, "type": one}) for one in kind)
    if kind == "array":
        return f"Sequence[{SCALARS[schema['items']['type']]}]"
    return "str | torch.dtype" if key == "dtype" else SCALARS[kind]


def default_of(schema: dict) -> str:
    if "default" not in schema:
        return ""
    value = schema["default"]
    return f" = {json.dumps(value) if isinstance(value, str) else repr(tuple(value) if isinstance(value, list) else value)}"


def class_of(operation: dict) -> str:
    properties = dict(operation["properties"])
    name = properties.pop("name")
    sentence = "\n    ".join(textwrap.wrap(name["description"], WIDTH - 4))
    paragraphs = [textwrap.wrap(f"{key}: {schema['description']}", WIDTH - 4, subsequent_indent="    ")
                  for key, schema in properties.items()]
    lines = ["@dataclass(frozen=True)", f"class {name['const']}(Operation):", f'    """{sentence}', "",
             *(f"    {line}" for paragraph in paragraphs for line in paragraph), '    """', "",
             *(f"    {key}: {type_of(key, schema)}{default_of(schema)}" for key, schema in properties.items())]
    return "\n".join(lines) + "\n"


def main() -> int:
    schema = json.load(sys.stdin)
    operations = schema["properties"]["data"]["properties"]["transforms"]["items"]["oneOf"]
    names = [operation["properties"]["name"]["const"] for operation in operations]
    sys.stdout.write(HEAD + "".join(f'    "{name}",\n' for name in names) + "]\n" + TAIL)
    for operation in operations:
        sys.stdout.write("\n\n" + class_of(operation))
    return 0


if __name__ == "__main__":
    sys.exit(main())
