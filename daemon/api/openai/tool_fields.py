"""tools, tool_choice and parallel_tool_calls of a chat request, read into a ToolUse."""

from __future__ import annotations

from typing import Any

import msgspec

from daemon.api.tool_checks import read_tool, tool_use
from daemon.serving.tools import ToolMode, ToolUse
from engine.errors import InvalidParameter


class FunctionField(msgspec.Struct, frozen=True):
    """Unknown keys in a function are passed over, as in a message."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolField(msgspec.Struct, frozen=True):
    type: str
    function: FunctionField | None = None


class NamedFunction(msgspec.Struct, frozen=True):
    name: str


class AllowedTool(msgspec.Struct, frozen=True):
    type: str
    function: NamedFunction | None = None


class AllowedTools(msgspec.Struct, frozen=True):
    mode: str
    tools: list[AllowedTool]


class ToolChoiceField(msgspec.Struct, frozen=True):
    type: str
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


def read_tools(
    tools: list[ToolField] | None, choice: str | ToolChoiceField | None, parallel: bool | None
) -> ToolUse | None:
    """None where the model is shown no tools. Raises: InvalidParameter"""
    read = []
    for at, tool in enumerate(tools or ()):
        where = f"tools[{at}]"
        if tool.type != "function" or tool.function is None:
            raise InvalidParameter(
                f"{where} is of type {tool.type[:32]!r}; only functions are served.", "Leave it out.", param=where
            )
        function = tool.function
        read.append(
            read_tool(
                function.name, function.description, function.parameters, strict=bool(function.strict), where=where
            )
        )
    mode, only, named = read_choice(choice)
    return tool_use(read, mode, only=only, parallel=parallel is not False and not named)


def read_choice(choice: str | ToolChoiceField | None) -> tuple[ToolMode, tuple[str, ...], bool]:
    """The mode, the names it is restricted to, and whether it names the one call to make. Raises: InvalidParameter"""
    if choice is None:
        return ToolMode.AUTO, (), False
    if isinstance(choice, str):
        return read_mode(choice), (), False
    if choice.type == "function" and choice.function is not None:
        return ToolMode.REQUIRED, (choice.function.name,), True
    if choice.type == "allowed_tools" and choice.allowed_tools is not None:
        names = tuple(tool.function.name for tool in choice.allowed_tools.tools if tool.function is not None)
        if not names or len(names) != len(choice.allowed_tools.tools):
            raise InvalidParameter("tool_choice.allowed_tools must name functions.", param="tool_choice")
        return read_mode(choice.allowed_tools.mode), names, False
    raise InvalidParameter(
        f"tool_choice is of type {choice.type[:32]!r}; use none, auto, required, a function or allowed_tools.",
        param="tool_choice",
    )


def read_mode(mode: str) -> ToolMode:
    """Raises: InvalidParameter"""
    if mode not in tuple(ToolMode):
        raise InvalidParameter(
            f"tool_choice is {mode[:32]!r}; use none, auto, required, or name a function.", param="tool_choice"
        )
    return ToolMode(mode)
