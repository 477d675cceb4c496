"""Structured output: grammars compiled beside the step loop, and which tokens they allow next. No torch."""

from engine.grammar.compiler import GrammarCompiler
from engine.grammar.gate import GrammarGate
from engine.grammar.state import GrammarState

__all__ = ["GrammarCompiler", "GrammarGate", "GrammarState"]
