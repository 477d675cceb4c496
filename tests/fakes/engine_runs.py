"""Driving an EngineCore to its end, and what tests ask of what came out."""

from __future__ import annotations

from engine.core import EngineCore
from engine.messages import SamplingParams, Submit, TokenDelta
from engine.scheduler.chunk import ScheduledChunk
from engine.spec.model_spec import AttentionKind
from tests.fakes.engine_models import attention, spec_of

PLAIN = spec_of(attention(), attention())
HYBRID = spec_of(
    attention(),
    attention(AttentionKind.SLIDING, window=10),
    attention(AttentionKind.SLIDING, window=10),
    attention(AttentionKind.SLIDING, heads=2, window=6),
)


def greedy(count: int, **more: object) -> SamplingParams:
    return SamplingParams(max_tokens=count, temperature=0.0, **more)  # type: ignore[arg-type]


def run(core: EngineCore, *submits: Submit) -> dict[str, list[TokenDelta]]:
    """Drive to the end, checking after each step that pages and states agree."""
    seen: dict[str, list[TokenDelta]] = {submit.request_id: [] for submit in submits}
    for submit in submits:
        core.add(submit)
    for _ in range(20_000):
        if not core.has_work():
            break
        for delta in core.step().deltas:
            seen[delta.request_id].append(delta)
        core.scheduler.check_integrity()
    assert not core.has_work(), "no progress"
    return seen


def tokens(deltas: list[TokenDelta]) -> list[int]:
    assert [d.finish is not None for d in deltas].count(True) == 1, "exactly one terminal message"
    assert deltas[-1].finish is not None
    return [token for delta in deltas for token in delta.token_ids]


def prompt(length: int, seed: int = 1) -> list[int]:
    return [(seed * 7919 + i * 31) % 90 for i in range(length)]


def preempt_often(core: EngineCore, every: int = 3) -> None:
    """Every third step takes the lowest-ranked request's pages, whatever room there is."""
    schedule, steps = core.scheduler.schedule, [0]

    def preempting() -> list[ScheduledChunk]:
        steps[0] += 1
        if steps[0] % every == 0 and len(core.scheduler.running) > 1:
            core.scheduler._preempt(core.scheduler.running[-1])
        return schedule()

    core.scheduler.schedule = preempting  # type: ignore[method-assign]
