"""How families write tool calls: the formats, which one a model's template asks for, and their parsers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any

from engine.text import call_bodies as bodies
from engine.text.call_marks import AfterJson, AfterValues, CallMarks, JsonItself, MarkedCallParser
from engine.text.tool_call import ToolCall, ToolParser, numbered

__all__ = ["ToolCall", "ToolFormat", "ToolParser", "tool_format_of", "tool_parser"]


class ToolFormat(StrEnum):
    """How a family writes its calls."""

    HERMES = "hermes"  # <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen, SmolLM
    LLAMA3_JSON = "llama3_json"  # the whole answer is {"name": ..., "parameters": {...}}, several joined by ";"
    MISTRAL = "mistral"  # [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]
    MISTRAL_ARGS = "mistral_args"  # [TOOL_CALLS]name[ARGS]{...}, one mark a call
    DEEPSEEK = "deepseek"  # marks around function, name and fenced JSON: V3, R1
    DEEPSEEK_V31 = "deepseek_v31"  # marks around name and JSON
    GLM = "glm"  # <tool_call>name, then <arg_key>, <arg_value> pairs: GLM-4.5 and later
    QWEN3_CODER = "qwen3_coder"  # <tool_call><function=name><parameter=key>...
    HARMONY = "harmony"  # a message to functions.name on the channel "commentary": gpt-oss


# format -> (families that write it, what the chat template holds that says so); docs/models.md has it as a table
WRITTEN_BY: Mapping[ToolFormat, tuple[str, str]] = {
    ToolFormat.HERMES: ("Hermes, Qwen2.5, Qwen3, SmolLM3", "`<tool_call>`"),
    ToolFormat.LLAMA3_JSON: ("Llama 3.1, 3.2, 3.3", '`"name"` and `"parameters"`'),
    ToolFormat.MISTRAL: ("Mistral to 2024, Mixtral", "`[TOOL_CALLS]`"),
    ToolFormat.MISTRAL_ARGS: ("Mistral from 2025, Devstral, Magistral", "`[TOOL_CALLS]` and `[ARGS]`"),
    ToolFormat.DEEPSEEK: ("DeepSeek V3, R1", "`<｜tool▁calls▁begin｜>` and a code fence"),
    ToolFormat.DEEPSEEK_V31: ("DeepSeek V3.1", "`<｜tool▁calls▁begin｜>`"),
    ToolFormat.GLM: ("GLM-4.5, 4.6, 4.7", "`<tool_call>` and `<arg_key>`"),
    ToolFormat.QWEN3_CODER: ("Qwen3-Coder", "`<tool_call>` and `<function=`"),
    ToolFormat.HARMONY: ("gpt-oss", "`<|channel|>` and `<|message|>`"),
}


def tool_parser(form: ToolFormat, tools: Sequence[Mapping[str, Any]] = ()) -> ToolParser:
    """A parser of one stream. tools are those of the request: formats without quotes need the declared types.

    HARMONY has none: its calls are a part of its channels, see HarmonyParser.
    """
    if form is ToolFormat.LLAMA3_JSON:
        return Llama3JsonParser()
    return MarkedCallParser(_marks(form, tools))


def tool_format_of(template_text: str) -> ToolFormat | None:
    """The format a chat template asks its model for; None when it does not speak of tools in one that is known."""
    text = template_text
    if "<|channel|>" in text and "<|message|>" in text:
        return ToolFormat.HARMONY
    if "<｜tool▁calls▁begin｜>" in text:
        return ToolFormat.DEEPSEEK if "```" in text else ToolFormat.DEEPSEEK_V31
    if "<tool_call>" in text and "<arg_key>" in text:
        return ToolFormat.GLM
    if "<tool_call>" in text and "<function=" in text:
        return ToolFormat.QWEN3_CODER
    if "<tool_call>" in text:
        return ToolFormat.HERMES
    if "[TOOL_CALLS]" in text:
        return ToolFormat.MISTRAL_ARGS if "[ARGS]" in text else ToolFormat.MISTRAL
    if '"parameters"' in text and '"name"' in text:
        return ToolFormat.LLAMA3_JSON
    return None


def marks_of(form: ToolFormat) -> tuple[str, ...]:
    """The marks a format's parser looks for: where they are control tokens, they must stay in the text."""
    match form:
        case ToolFormat.HERMES | ToolFormat.QWEN3_CODER:
            return ("<tool_call>", "</tool_call>")
        case ToolFormat.GLM:
            names = ("tool_call", "arg_key", "arg_value")
            return tuple(mark for name in names for mark in (f"<{name}>", f"</{name}>"))
        case ToolFormat.MISTRAL | ToolFormat.MISTRAL_ARGS:
            return ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
        case ToolFormat.DEEPSEEK | ToolFormat.DEEPSEEK_V31:
            return ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", *bodies.DEEPSEEK_CALL)
        case ToolFormat.HARMONY:
            channels = ("start", "end", "message", "channel", "constrain", "return", "call")
            return tuple(f"<|{name}|>" for name in channels)
        case ToolFormat.LLAMA3_JSON:
            return ()


def _marks(form: ToolFormat, tools: Sequence[Mapping[str, Any]]) -> CallMarks:
    closing = "</tool_call>"
    match form:
        case ToolFormat.HERMES:
            return CallMarks("<tool_call>", partial(AfterJson, closing), bodies.hermes_body)
        case ToolFormat.MISTRAL | ToolFormat.MISTRAL_ARGS:
            return CallMarks("[TOOL_CALLS]", JsonItself, bodies.mistral_body)
        case ToolFormat.DEEPSEEK | ToolFormat.DEEPSEEK_V31:
            opening, end = "<｜tool▁calls▁begin｜>", partial(AfterJson, "<｜tool▁calls▁end｜>")
            return CallMarks(opening, end, bodies.deepseek_body)
        case ToolFormat.GLM:
            glm_end = partial(AfterValues, closing, bodies.GLM_VALUE, "</arg_value>")
            return CallMarks("<tool_call>", glm_end, lambda body: bodies.glm_body(body, tools))
        case ToolFormat.QWEN3_CODER:
            coder_end = partial(AfterValues, closing, bodies.CODER_VALUE, "</parameter>")
            return CallMarks("<tool_call>", coder_end, lambda body: bodies.coder_body(body, tools))
        case ToolFormat.LLAMA3_JSON | ToolFormat.HARMONY:
            raise AssertionError(f"{form} has no marks around a call")


class Llama3JsonParser:
    """The whole answer is calls, or none of it is."""

    def __init__(self) -> None:
        self._held = ""
        self._plain = False  # the answer does not begin as a call

    def feed(self, text: str) -> list[str | ToolCall]:
        if self._plain:
            return [text] if text else []
        self._held += text
        begun = self._held.lstrip()
        if not begun or begun.startswith("{"):
            return []
        self._plain = True
        held, self._held = self._held, ""
        return [held]

    def flush(self) -> list[str | ToolCall]:
        held, self._held = self._held, ""
        calls = bodies.llama3_body(held)
        if calls is None:
            return [held] if held else []
        return [numbered(index, call) for index, call in enumerate(calls)]
