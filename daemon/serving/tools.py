"""The tools of a request and how freely the model may use them, whichever protocol they came by."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class ToolMode(StrEnum):
    NONE = "none"  # the tools are not shown to the model
    AUTO = "auto"  # text, calls, or both
    REQUIRED = "required"  # one call or more, and nothing else


@dataclass(frozen=True, slots=True)
class Tool:
    """parameters: a JSON schema of the arguments; None: no arguments. strict: they are kept to it while decoding."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """What the arguments must match."""
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return self.parameters

    def shown(self) -> dict[str, Any]:
        """OpenAI's form, which chat templates and the parsers of calls read."""
        function: dict[str, Any] = {"name": self.name, "description": self.description, "parameters": self.schema}
        if self.strict:
            function["strict"] = True
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """only: the names that may be called, where not all may. parallel False: at most one call a choice."""

    tools: tuple[Tool, ...]
    mode: ToolMode = ToolMode.AUTO
    only: tuple[str, ...] = ()
    parallel: bool = True

    @property
    def offered(self) -> bool:
        return bool(self.tools) and self.mode is not ToolMode.NONE

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """Those of the tools that may be called."""
        return tuple(tool for tool in self.tools if not self.only or tool.name in self.only)

    @property
    def bound(self) -> bool:
        """Whether decoding is kept to a grammar: a call is forced, some tool is strict, or not all may be called."""
        return self.offered and (
            self.mode is ToolMode.REQUIRED or bool(self.only) or any(tool.strict for tool in self.callable_tools)
        )
