"""A request inside the engine: its tokens, how far they are computed, and the pages it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from engine.kv.manager import SequencePages
from engine.messages import FinishReason, SamplingParams, Usage

if TYPE_CHECKING:
    from engine.grammar import GrammarState
    from engine.kv.swap import SavedPages

PENDING = -1  # stands for a token that was sampled but has not come to the host yet


class RequestState(StrEnum):
    WAITING = "waiting"  # in the queue; holds no pages
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """Owner: the scheduler. The runner appends sampled tokens through Scheduler.advance only."""

    id: str
    token_ids: list[int]  # prompt, then output
    num_prompt: int
    sampling: SamplingParams
    seed: int
    standing: int  # its priority, or a better one that ageing gave it
    order: int  # arrival
    pages: SequencePages
    tenant: str = ""
    weight: float = 1.0
    group: str = ""
    adapter: str = ""
    deadline_mono: float | None = None
    state: RequestState = RequestState.WAITING
    queued: bool = False  # in the waiting queue
    num_computed: int = 0  # tokens whose KV is in the pages, or will be when what is launched has run
    num_written: int = 0  # ... of steps that have been read
    saved: SavedPages | None = None  # what a preempted request's pages held
    turn: int = -1  # its place among all that were ever admitted
    rank: tuple[int, float, int] = (0, 0.0, 0)  # smaller is served first and preempted last; see Scheduler
    cached_tokens: int = 0  # of the prompt, at first admission
    preemptions: int = 0
    device_s: float = 0.0
    num_sampled: int = 0  # output tokens that came to the host
    admitted: bool = False  # has ever run
    finish: FinishReason | None = None
    embeds: bool = False  # its last hidden state is wanted, not a token after it
    grammar: GrammarState | None = None  # what its output is kept to
    scratch: dict[str, object] = field(default_factory=dict)  # the sampler's per-request state

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed

    @property
    def newest_pending(self) -> bool:
        return self.token_ids[-1] == PENDING

    @property
    def needs_own_tokens(self) -> bool:
        """Whether choosing its next token takes its earlier ones, or more than the token is wanted."""
        p = self.sampling
        return p.top_logprobs is not None or bool(p.logit_bias) or self.has_penalties or self.masks_stops

    @property
    def takes_guesses(self) -> bool:
        """Whether tokens after its next one may be chosen before that is known to be right."""
        return not (self.embeds or self.has_penalties) and self.sampling.top_logprobs is None

    @property
    def is_plain_greedy(self) -> bool:
        """The largest logit, and nothing to know on the host to find it."""
        return self.sampling.temperature == 0.0 and not self.needs_own_tokens

    @property
    def has_penalties(self) -> bool:
        p = self.sampling
        return p.repetition_penalty != 1.0 or p.presence_penalty != 0.0 or p.frequency_penalty != 0.0

    @property
    def masks_stops(self) -> bool:
        return self.masks_stops_after(0)

    def masks_stops_after(self, ahead: int) -> bool:
        """Whether stop tokens may not come yet, that many tokens from now."""
        p = self.sampling
        return bool(p.stop_token_ids) and not p.ignore_eos and self.num_output + ahead < p.min_tokens

    @property
    def place(self) -> tuple[int, int]:
        """Among its tenant's waiting: who ran before comes first."""
        return (0, self.turn) if self.admitted else (1, self.order)

    def usage(self) -> Usage:
        return Usage(self.num_prompt, self.cached_tokens, self.num_sampled, self.preemptions, self.device_s)
