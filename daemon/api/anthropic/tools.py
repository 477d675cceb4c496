"""tools and tool_choice of the Messages contract, read into a ToolUse."""

from __future__ import annotations

from typing import Any

import msgspec

from daemon.api.tool_checks import read_tool, tool_use
from daemon.serving.tools import ToolMode, ToolUse
from engine.errors import InvalidParameter


class ToolField(msgspec.Struct, frozen=True):
    """Unknown keys (cache_control, input_examples, ...) are passed over."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoiceField(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def read_tools(tools: list[ToolField] | None, choice: ToolChoiceField | None) -> ToolUse | None:
    """None where the model is shown no tools. Raises: InvalidParameter"""
    read = []
    for at, tool in enumerate(tools or ()):
        where = f"tools[{at}]"
        if tool.type not in (None, "custom"):
            raise InvalidParameter(
                f"{where} is of type {tool.type[:64] if tool.type else ''!r}, which only its maker's servers run.",
                "Leave it out.",
                param=where,
            )
        if tool.input_schema is None:
            raise InvalidParameter(f"{where}.input_schema is missing.", param=where)
        read.append(read_tool(tool.name, tool.description, tool.input_schema, strict=bool(tool.strict), where=where))
    mode, only = _read_choice(choice)
    parallel = not (choice is not None and choice.disable_parallel_tool_use) and not only
    return tool_use(read, mode, only=only, parallel=parallel)


def _read_choice(choice: ToolChoiceField | None) -> tuple[ToolMode, tuple[str, ...]]:
    if choice is None or choice.type == "auto":
        return ToolMode.AUTO, ()
    match choice.type:
        case "any":
            return ToolMode.REQUIRED, ()
        case "none":
            return ToolMode.NONE, ()
        case "tool" if choice.name:
            return ToolMode.REQUIRED, (choice.name,)
    raise InvalidParameter(
        f"tool_choice is of type {choice.type[:32]!r}; use auto, any, none, or tool with a name.", param="tool_choice"
    )
