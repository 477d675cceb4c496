"""What an engine has done since it began, and how that is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.messages import DecodePace, WorkerStats
from engine.scheduler.chunk import ScheduledChunk
from engine.scheduler.scheduler import Scheduler

SMOOTHING = 1 / 32
LEFT_OUT = 4  # steps of each kind: the first pay for what is made lazily


@dataclass(slots=True)
class Pace:
    """Owner: Totals."""

    steps: int = -LEFT_OUT
    step_s: float = 0.0
    rows: float = 0.0
    context_tokens: float = 0.0

    def note(self, step_s: float, rows: int, context_tokens: float) -> None:
        self.steps += 1
        weight = max(SMOOTHING, 1.0 / max(1, self.steps))
        self.step_s += weight * (step_s - self.step_s)
        self.rows += weight * (rows - self.rows)
        self.context_tokens += weight * (context_tokens - self.context_tokens)

    def told(self) -> DecodePace:
        if self.steps <= 0:
            return DecodePace()
        return DecodePace(self.steps, self.step_s, self.rows, self.context_tokens)


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
    alone: Pace = field(default_factory=Pace)
    together: Pace = field(default_factory=Pace)

    def note_step(self, chunks: Sequence[ScheduledChunk], step_s: float) -> None:
        """A step has ended."""
        self.last_step_s = step_s
        if all(chunk.num_tokens == 1 and chunk.samples for chunk in chunks):
            context = sum(chunk.start for chunk in chunks) / len(chunks)
            (self.alone if len(chunks) == 1 else self.together).note(step_s, len(chunks), context)

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
            alone=self.alone.told(),
            together=self.together.told(),
        )
