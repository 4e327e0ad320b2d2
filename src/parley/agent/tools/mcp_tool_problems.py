"""Why tools of MCP are unusable: a list that the package rejects, a name, a schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from jsonschema import Draft7Validator, Draft202012Validator, SchemaError  # type: ignore[import-untyped]
from mcp import types
from mcp_types import methods
from pydantic import ValidationError

NAME_LENGTH = 128
"""How long the name of a tool may be, as MCP has it."""


def list_problem(version: str, listed: Mapping[str, Any]) -> str:
    """Return the reason why the package rejects a list of tools, empty if it accepts it."""
    try:
        methods.parse_server_result("tools/list", version, listed)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"][2:])) or "it"
        return f"{where}: {first['msg']}"[:500]
    return ""


def tool_problems(tools: Iterable[types.Tool], max_schema_bytes: int) -> list[str]:
    """Return the reason for each tool why it is unusable, empty if it is usable."""
    return [_problem(tool, max_schema_bytes) for tool in tools]


def _problem(tool: types.Tool, most: int) -> str:
    if not 0 < len(tool.name.strip()) <= NAME_LENGTH:
        return f"its name has {len(tool.name):,} characters, not 1 to {NAME_LENGTH}"
    if tool.execution is not None and tool.execution.task_support == "required":
        return "it is called as a task of MCP, which is not offered"
    schemas = [each for each in (tool.input_schema, tool.output_schema) if each is not None]
    if (size := sum(len(msgspec.json.encode(schema)) for schema in schemas)) > most:
        return f"its schemas have {size:,} bytes, more than {most:,}: raise max_schema_bytes"
    return schema_problem(tool)


def schema_problem(tool: types.Tool) -> str:
    """Return the reason why the schemas of a tool are unusable, empty if they are usable."""
    for which, schema in (("input", tool.input_schema), ("output", tool.output_schema)):
        if schema is None:
            continue
        is_old = "draft-0" in str(schema.get("$schema"))
        validator = Draft7Validator if is_old else Draft202012Validator
        try:  # patterns are of another language than Python's, so formats are not checked
            validator.check_schema(schema, format_checker=None)
        except (SchemaError, RecursionError) as error:
            return f"its {which} schema is no JSON Schema: {str(error).partition(chr(10))[0]}"[:500]
    return ""
