"""What is wanted now and through the day; for the admin API and the console."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from daemon.strategy.schedule import Override


@dataclass(frozen=True, slots=True)
class StrategyView:
    """What is wanted now; for the admin API and the console."""

    plan: str | None
    since_at: datetime | None
    until_at: datetime | None
    reason: str
    rule: str | None
    default: str | None
    override: Override | None
    timezone: str
    next_plan: str | None  # what follows at until_at
    converged: bool  # the workers are as the plan wants them
    problem: str | None  # what keeps them from it
    as_of: datetime


@dataclass(frozen=True, slots=True)
class Segment:
    begins_at: datetime
    ends_at: datetime
    plan: str | None
    reason: str
    rule: str | None
