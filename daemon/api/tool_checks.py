"""Checks of tools that every contract shares, whatever it calls its fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from daemon.api.schema_guard import check_schema, check_shown_schema
from daemon.serving.tools import Tool, ToolMode, ToolUse
from engine.errors import InvalidParameter

MAX_TOOLS = 512
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def read_tool(
    name: str, description: str | None, parameters: dict[str, Any] | None, *, strict: bool, where: str
) -> Tool:
    """where: the tool's place in the body. Raises: InvalidParameter naming it"""
    if not _NAME.fullmatch(name):
        raise InvalidParameter(
            f"{where} is named {name[:64]!r}; a name has 1 to 128 letters, digits, dots, colons, dashes and "
            "underscores.",
            param=where,
        )
    if parameters is not None:
        (check_schema if strict else check_shown_schema)(parameters, where)
    return Tool(name, description or "", parameters, strict)


def tool_use(
    tools: Sequence[Tool],
    mode: ToolMode,
    *,
    only: tuple[str, ...] = (),
    parallel: bool = True,
    tools_param: str = "tools",
    choice_param: str = "tool_choice",
) -> ToolUse | None:
    """None where there are no tools. Raises: InvalidParameter for what does not fit together"""
    if len(tools) > MAX_TOOLS:
        raise InvalidParameter(f"There are {len(tools):,} tools; at most {MAX_TOOLS} are allowed.", param=tools_param)
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise InvalidParameter(f"Two tools are named {name!r}.", "Name each once.", param=tools_param)
    for name in only:
        if name not in names:
            raise InvalidParameter(
                f"{choice_param} names the tool {name[:64]!r}, which is not among the tools.", param=choice_param
            )
    if not tools:
        if mode is ToolMode.REQUIRED:
            raise InvalidParameter(f"{choice_param} asks for a call, but there are no tools.", param=choice_param)
        return None
    return ToolUse(tuple(tools), mode, only, parallel)
