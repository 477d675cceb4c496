"""GrammarCompiler: grammars to matchers, in threads beside the step loop, within limits of time and size.

The library lets go of the interpreter's lock while it compiles, and gives up by itself when its fuel is spent, so a
hostile grammar holds a thread for a moment and nobody else.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.errors import BayardError, InvalidParameter, QueueFull
from engine.grammar.state import GrammarState
from engine.grammar.vocabulary import vocabulary_of
from engine.messages import Grammar
from engine.text import TextPipeline
from engine.text.answer_grammar import lark_or_schema

COMPILE_LIMIT_S = 2.0  # from when a thread takes it
THREADS = 2
STACK_BYTES = 512 << 20  # the library goes down a chain of rules by recursion; only what is used takes memory
MOST_WAITING = 256  # grammars that wait for a thread
MOST_KEPT = 48  # compiled or refused, the latest used
_SIMPLER = "Make it smaller: fewer alternatives, counts and nested parts."


class Compilation:
    """One grammar's way to a matcher. Written by a compiler thread once; read by the step loop."""

    def __init__(self, matcher: LLMatcher | None = None) -> None:
        self.began_mono: float | None = None
        self.matcher = matcher
        self.error: BayardError | None = None

    @property
    def is_done(self) -> bool:
        if self.matcher is not None or self.error is not None:
            return True
        if self.began_mono is not None and time.monotonic() - self.began_mono > COMPILE_LIMIT_S:
            self.error = InvalidParameter(
                f"The grammar takes more than {COMPILE_LIMIT_S:g} s to compile.", _SIMPLER, param="response_format"
            )
            return True
        return False


class GrammarCompiler:
    """start() and its result belong to the step loop; the rest runs in threads of its own."""

    def __init__(self, text: Callable[[], TextPipeline], vocab_size: int) -> None:
        """text is called once, in a compiler's thread, when the first grammar comes."""
        self._text = text
        self._vocab_size = vocab_size
        self._vocabulary: LLTokenizer | None = None
        self._vocabulary_lock = threading.Lock()
        self._jobs: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._start_threads()
        self._waiting = 0
        self._count_lock = threading.Lock()
        self._kept: OrderedDict[Grammar, Compilation] = OrderedDict()
        self._limits = LLParserLimits(
            initial_lexer_fuel=1_000_000,
            step_lexer_fuel=200_000,
            step_max_items=50_000,
            max_lexer_states=50_000,
            max_grammar_size=200_000,
            verbose_errors=False,
        )

    def start(self, grammar: Grammar) -> Compilation:
        """The compilation of a grammar: begun now, or one that ran before.

        Raises: QueueFull when too many wait
        """
        known = self._kept.get(grammar)
        if known is not None:
            self._kept.move_to_end(grammar)
            if known.error is not None and known.matcher is not None:  # it came too late, but it came
                known = self._kept[grammar] = Compilation(known.matcher)
            return known
        if self._waiting >= MOST_WAITING:
            raise QueueFull(
                f"{self._waiting} grammars wait to be compiled; {MOST_WAITING} may.", "Try again in a few seconds."
            )
        compilation = self._kept[grammar] = Compilation()
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        with self._count_lock:
            self._waiting += 1
        self._jobs.put(lambda: self._run(grammar, compilation))
        return compilation

    def state(self, matcher: LLMatcher, stop_token_ids: Sequence[int]) -> GrammarState:
        """The beginning of a compiled grammar, for one request."""
        assert self._vocabulary is not None, "a matcher is made with the vocabulary"
        return GrammarState(
            matcher.deep_copy(), self._vocabulary.vocab_size, stop_token_ids, self._vocabulary.eos_tokens
        )

    def _start_threads(self) -> None:
        before = threading.stack_size(STACK_BYTES)
        try:
            for number in range(THREADS):
                threading.Thread(target=self._work, name=f"grammar-{number}", daemon=True).start()
        finally:
            threading.stack_size(before)

    def _work(self) -> None:
        while True:
            self._jobs.get()()

    def _run(self, grammar: Grammar, compilation: Compilation) -> None:
        with self._count_lock:
            self._waiting -= 1
        try:
            source = _source(lark_or_schema(grammar))  # what is refused here need not wait for the vocabulary
            vocabulary = self._ready_vocabulary()
            compilation.began_mono = time.monotonic()
            matcher = self._compile(source, vocabulary)
        except BayardError as error:
            compilation.error = error
        except Exception as error:  # noqa: BLE001 - the thread's border: the requests that wait are told
            compilation.error = InvalidParameter(f"The grammar cannot be compiled: {type(error).__name__}: {error}")
        else:
            compilation.matcher = matcher

    def _compile(self, source: str, vocabulary: LLTokenizer) -> LLMatcher:
        matcher = LLMatcher(vocabulary, source, log_level=0, limits=self._limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # a grammar that costs too much to begin is refused too
        if matcher.is_error():
            said = " ".join(matcher.get_error().split())[:400]
            raise InvalidParameter(f"The grammar cannot be compiled: {said}.", _SIMPLER, param="response_format")
        return matcher

    def _ready_vocabulary(self) -> LLTokenizer:
        with self._vocabulary_lock:
            if self._vocabulary is None:
                self._vocabulary = vocabulary_of(self._text(), self._vocab_size)
            return self._vocabulary


def _source(read: dict[str, object]) -> str:
    lark = read.get("lark_grammar")
    if isinstance(lark, str) and lark.lstrip().startswith("{"):
        return lark  # several grammars that refer to one another, see answer_grammar
    return json.dumps({"grammars": [read]}, ensure_ascii=False)
