"""GrammarGate: requests wait here, outside the scheduler, until their grammar is compiled."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from engine.errors import BayardError, DeadlineExceeded, InvalidParameter
from engine.grammar.compiler import Compilation, GrammarCompiler
from engine.grammar.state import GrammarState
from engine.messages import Submit


@dataclass(frozen=True, slots=True)
class _Waiting:
    submit: Submit
    compilation: Compilation
    since_mono: float

    @property
    def is_late(self) -> bool:
        deadline_s = self.submit.deadline_s
        return deadline_s is not None and time.monotonic() - self.since_mono > deadline_s


@dataclass(frozen=True, slots=True)
class Released:
    """A request that waits no more: with the beginning of its grammar, or with the reason it cannot run."""

    submit: Submit
    outcome: GrammarState | BayardError


class GrammarGate:
    """Owner: the step loop."""

    def __init__(self, compiler: GrammarCompiler | None) -> None:
        """compiler None: every grammar is refused."""
        self._compiler = compiler
        self._waiting: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    @property
    def request_ids(self) -> list[str]:
        return list(self._waiting)

    @property
    def is_ready(self) -> bool:
        """Whether release() has something to give."""
        return any(waiting.compilation.is_done or waiting.is_late for waiting in self._waiting.values())

    def hold(self, submit: Submit) -> None:
        """Raises: InvalidParameter, QueueFull"""
        if submit.request_id in self._waiting:
            raise InvalidParameter(f"A request with id {submit.request_id} is already here.", "Use a fresh id.")
        if self._compiler is None or submit.sampling.grammar is None:
            raise InvalidParameter(
                "This worker does not constrain output: it was started without the model's vocabulary.",
                "Leave response_format out.",
                param="response_format",
            )
        compilation = self._compiler.start(submit.sampling.grammar)
        self._waiting[submit.request_id] = _Waiting(submit, compilation, time.monotonic())

    def drop(self, request_id: str) -> bool:
        """Forget a request. False: it does not wait here."""
        return self._waiting.pop(request_id, None) is not None

    def release(self) -> list[Released]:
        """Those whose grammar is compiled or refused, or whose time is up, in the order they came."""
        done = [one for one in self._waiting.values() if one.compilation.is_done or one.is_late]
        return [self._released(one) for one in done]

    def _released(self, waiting: _Waiting) -> Released:
        submit = waiting.submit
        del self._waiting[submit.request_id]
        compilation = waiting.compilation
        if waiting.is_late and not compilation.is_done:
            return Released(
                submit,
                DeadlineExceeded(
                    "The request's time was up while its grammar was compiled.", "Give it more time, or ask again."
                ),
            )
        if compilation.error is not None or compilation.matcher is None or self._compiler is None:
            assert compilation.error is not None
            return Released(submit, compilation.error)
        if submit.deadline_s is not None:
            waited_s = time.monotonic() - waiting.since_mono
            submit = msgspec.structs.replace(submit, deadline_s=max(0.0, submit.deadline_s - waited_s))
        sampling = submit.sampling
        stops = () if sampling.ignore_eos else sampling.stop_token_ids
        return Released(submit, self._compiler.state(compilation.matcher, stops))
