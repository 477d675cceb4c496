"""What an engine has done since it began, and how that is told."""

from __future__ import annotations

from dataclasses import dataclass

from engine.messages import WorkerStats
from engine.scheduler.chunk import ScheduledChunk
from engine.scheduler.scheduler import Scheduler


@dataclass(slots=True)
class Totals:
    """Owner: the engine."""

    steps: int = 0
    last_step_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    aborts: int = 0
    drafted: int = 0
    accepted: int = 0
    late: int = 0  # ended by their deadline
    shed: int = 0  # ended for want of memory

    def count_prompt(self, chunk: ScheduledChunk) -> None:
        """Tokens of a prompt, the first time they are computed."""
        request = chunk.request
        if chunk.preemptions == 0 and chunk.start < request.num_prompt:
            self.prompt_tokens += chunk.num_tokens
            if chunk.start == request.cached_tokens:
                self.cached_tokens += request.cached_tokens

    def stats(self, scheduler: Scheduler, *, waiting_elsewhere: int = 0) -> WorkerStats:
        """The engine's own figures; a process adds its beat and its memory."""
        kv, places = scheduler.kv, scheduler.places
        return WorkerStats(
            step=self.steps,
            running=len(scheduler.running),
            waiting=scheduler.num_waiting + waiting_elsewhere,
            kv_pages_total=kv.num_pages,
            kv_pages_active=kv.num_active,
            kv_pages_cached=kv.num_idle,
            page_tokens=kv.page_tokens,
            prompt_tokens_total=self.prompt_tokens,
            cached_tokens_total=self.cached_tokens,
            output_tokens_total=self.output_tokens,
            preemptions_total=scheduler.preemptions_total,
            swapped_pages=0 if places.host is None else places.host.num_saved,
            swap_outs_total=places.swap_outs_total,
            swap_ins_total=places.swap_ins_total,
            deadlines_total=self.late,
            shed_total=self.shed,
            aborts_total=self.aborts,
            draft_tokens_total=self.drafted,
            draft_accepted_total=self.accepted,
            last_step_s=self.last_step_s,
            knobs=scheduler.knobs,
        )
