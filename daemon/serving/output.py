"""How one request's answers are read and bound: its parser of each choice's text, and the grammar each is kept to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from daemon.serving.closed_schema import closed_schema
from daemon.serving.request import ChatPrompt, GenerationRequest
from daemon.serving.tools import ToolMode
from engine.messages import Grammar, GrammarKind
from engine.text import (
    OutputParser,
    answer_grammar,
    forced_tool_grammar,
    offered_or_answer_grammar,
    offered_tool_grammar,
    output_parser,
)
from engine.text.tools import ToolFormat

if TYPE_CHECKING:
    from engine.text import TextPipeline


def choice_parser(request: GenerationRequest, text: TextPipeline, prompt_ids: Sequence[int]) -> OutputParser | None:
    """For one choice; None where its text is the answer as it stands."""
    if not isinstance(request.prompts[0], ChatPrompt):
        return None
    tools = shown_tools(request)
    if not tools and text.thinking_marks is None and text.tool_format is not ToolFormat.HARMONY:
        return None
    return output_parser(text, prompt_ids, tools=tools)


def choice_grammar(request: GenerationRequest, text: TextPipeline, prompt_ids: Sequence[int]) -> Grammar | None:
    """What a choice is kept to while it is decoded. Raises: InvalidParameter"""
    use, answer = request.tools, None if request.constraint is None else _closed(request.constraint.grammar)
    if use is None or not use.offered:
        return None if answer is None else answer_grammar(text, prompt_ids, answer)
    tools = [replace(tool, parameters=closed_schema(tool.schema)).shown() for tool in use.callable_tools]
    if use.mode is ToolMode.REQUIRED:
        return forced_tool_grammar(text, prompt_ids, tools, parallel=use.parallel)
    if answer is not None:
        return offered_or_answer_grammar(text, prompt_ids, tools, answer, parallel=use.parallel)
    return offered_tool_grammar(text, prompt_ids, tools, parallel=use.parallel) if use.bound else None


def _closed(grammar: Grammar) -> Grammar:
    if grammar.kind is not GrammarKind.JSON_SCHEMA:
        return grammar
    return Grammar(grammar.kind, json.dumps(closed_schema(json.loads(grammar.text)), ensure_ascii=False))


def shown_tools(request: GenerationRequest) -> list[dict[str, Any]]:
    """The tools as a template and a parser of calls read them."""
    return [] if request.tools is None or not request.tools.offered else [tool.shown() for tool in request.tools.tools]
