"""Text in and out: tokenizers, chat templates, detokenizing, stop strings, tools, reasoning. Never imports torch."""

from engine.text.answer_grammar import answer_grammar
from engine.text.detokenizer import IncrementalDetokenizer
from engine.text.forced_calls import forced_tool_grammar
from engine.text.loading import load_text
from engine.text.offered_calls import offered_or_answer_grammar, offered_tool_grammar
from engine.text.output_forms import output_parser
from engine.text.output_parser import Content, OutputParser, Part, Reasoning
from engine.text.pipeline import TextPipeline
from engine.text.reasoning import ReasoningSplitter
from engine.text.stop_matcher import StopMatcher
from engine.text.tool_call import ToolCall, ToolParser

__all__ = [
    "Content",
    "IncrementalDetokenizer",
    "OutputParser",
    "Part",
    "Reasoning",
    "ReasoningSplitter",
    "StopMatcher",
    "TextPipeline",
    "ToolCall",
    "ToolParser",
    "answer_grammar",
    "forced_tool_grammar",
    "load_text",
    "offered_or_answer_grammar",
    "offered_tool_grammar",
    "output_parser",
]
