"""Text in and out: tokenizers, chat templates, detokenizing, stop strings, tools, reasoning. Never imports torch."""

from engine.text.detokenizer import IncrementalDetokenizer
from engine.text.loading import load_text
from engine.text.pipeline import TextPipeline
from engine.text.reasoning import ReasoningSplitter
from engine.text.stop_matcher import StopMatcher
from engine.text.tools import ToolCall, ToolParser

__all__ = [
    "IncrementalDetokenizer",
    "ReasoningSplitter",
    "StopMatcher",
    "TextPipeline",
    "ToolCall",
    "ToolParser",
    "load_text",
]
