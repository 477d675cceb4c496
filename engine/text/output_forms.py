"""output_parser: the parser of what one model writes after one prompt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine.text.harmony import HarmonyParser
from engine.text.output_parser import MarkedOutputParser, OutputParser
from engine.text.pipeline import TextPipeline
from engine.text.tools import ToolFormat, marks_of, tool_parser


def output_parser(
    pipeline: TextPipeline,
    prompt_ids: Sequence[int],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    reasoning: bool = True,
) -> OutputParser:
    """A parser for one stream. Without tools, calls stay text; without reasoning, so do marks around thinking.

    A model whose template knows no format of calls is taken to write those of HERMES, as forced_tool_grammar makes it.
    Channels (HARMONY) are always told apart: what stands on them is no answer.
    """
    form = tool_format(pipeline)
    if form is ToolFormat.HARMONY:
        return HarmonyParser(_control_ids(pipeline, marks_of(form)), tools=bool(tools))
    splitter = pipeline.reasoning_splitter(prompt_ids) if reasoning else None
    marks: list[str] = []
    if splitter is not None:
        marks += pipeline.thinking_marks or ()
    if tools:
        marks += marks_of(form)
    return MarkedOutputParser(splitter, tool_parser(form, tools) if tools else None, _control_ids(pipeline, marks))


def tool_format(pipeline: TextPipeline) -> ToolFormat:
    """The format of calls that this model writes, or is made to write."""
    return pipeline.tool_format or ToolFormat.HERMES


def _control_ids(pipeline: TextPipeline, marks: Iterable[str]) -> frozenset[int]:
    found = (pipeline.special_id(mark) for mark in marks)
    return frozenset(token_id for token_id in found if token_id in pipeline.special_token_ids)
