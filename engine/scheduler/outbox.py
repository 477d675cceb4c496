"""What requests are told. One function ends a request, so each gets one terminal TokenDelta, whatever ends it."""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import BayardError
from engine.grammar.state import Verdict
from engine.messages import ErrorInfo, FinishReason, TokenDelta, TokenLogprob, Usage
from engine.scheduler.request import Request
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.totals import Totals


class Outbox:
    """Owner: the engine. Deltas wait here for the next report."""

    def __init__(
        self, scheduler: Scheduler, totals: Totals, release: Callable[[Request], None], max_context_tokens: int
    ) -> None:
        """release: what the runner keeps of a request is given back."""
        self.deltas: list[TokenDelta] = []
        self._scheduler = scheduler
        self._totals = totals
        self._release = release
        self._max_context_tokens = max_context_tokens

    def take(self) -> list[TokenDelta]:
        deltas, self.deltas = self.deltas, []
        return deltas

    def refuse(self, request_id: str, error: BayardError) -> None:
        """It never was a request of the scheduler's."""
        self.deltas.append(TokenDelta(request_id, finish=FinishReason.ERROR, error=error_info(error)))

    def forget(self, request_id: str) -> None:
        """It was aborted before it was a request of the scheduler's."""
        self.deltas.append(TokenDelta(request_id, finish=FinishReason.ABORT, usage=Usage()))

    def fail(self, request: Request, error: BayardError) -> None:
        self.finish(request, FinishReason.ERROR, error_info(error))

    def deliver(self, request: Request, token: int, logprob: TokenLogprob | None) -> None:
        """The new token, and the end if it is one. A stop token ends the request and is not delivered itself."""
        self._totals.output_tokens += 1
        request.num_sampled += 1
        p = request.sampling
        verdict = None if request.grammar is None else request.grammar.accept(token)
        if request.grammar is not None and request.grammar.failure is not None:
            self.fail(request, request.grammar.failure)
            return
        stops = not p.ignore_eos and token in p.stop_token_ids and request.num_sampled > p.min_tokens
        if stops or verdict is Verdict.ENDED:
            self.finish(request, FinishReason.STOP)
            return
        logprobs = None if logprob is None else [logprob]
        length = request.num_prompt + request.num_sampled
        if verdict is Verdict.COMPLETE:
            self.finish(request, FinishReason.STOP, token_ids=[token], logprobs=logprobs)
        elif request.num_sampled >= p.max_tokens or length >= self._max_context_tokens:
            self.finish(request, FinishReason.LENGTH, token_ids=[token], logprobs=logprobs)
        else:
            self.deltas.append(TokenDelta(request.id, [token], logprobs))

    def finish(
        self,
        request: Request,
        reason: FinishReason,
        error: ErrorInfo | None = None,
        token_ids: list[int] | None = None,
        logprobs: list[TokenLogprob] | None = None,
        embedding: bytes | None = None,
    ) -> None:
        usage = request.usage()
        self._scheduler.finish(request, reason)
        self._release(request)
        self.deltas.append(TokenDelta(request.id, token_ids or [], logprobs, reason, error, usage, embedding))


def error_info(error: BayardError) -> ErrorInfo:
    return ErrorInfo(error.code, error.message, error.hint)
