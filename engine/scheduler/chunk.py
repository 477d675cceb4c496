"""A request's part of one step."""

from __future__ import annotations

from dataclasses import dataclass

from engine.scheduler.request import Request


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """num_tokens of a request from num_computed on; the last one's logits are sampled if `samples`."""

    request: Request
    start: int
    num_tokens: int
    samples: bool
    preemptions: int  # the request's count when it was scheduled: if it has grown, these pages are no longer its own
    draft: tuple[int, ...] = ()  # guessed tokens after its one real token, to be checked

    @property
    def is_decode(self) -> bool:
        return self.samples and self.num_tokens == 1 + len(self.draft)

    def tokens(self) -> list[int]:
        end = self.start + self.num_tokens - len(self.draft)
        return [*self.request.token_ids[self.start : end], *self.draft]
