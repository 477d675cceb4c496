"""Pace: how much slower or faster than the roofline a model was seen to run here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date

from daemon.planning.profile import Choice, Profile, SpeedEstimate

FURTHEST = 3.0  # a worker that ran so much slower than predicted was disturbed


@dataclass(frozen=True, slots=True)
class Pace:
    """Measured seconds of a decode step over predicted ones; None: not measured."""

    alone: float | None
    together: float | None
    at: date

    def corrected(self, speed: SpeedEstimate) -> SpeedEstimate:
        alone = self.alone or 1.0
        together = self.together or alone
        return replace(
            speed,
            decode_tok_s=speed.decode_tok_s / alone,
            decode_ms=speed.decode_ms * alone,
            batch_tok_s=speed.batch_tok_s / together,
        )

    def __str__(self) -> str:
        told = [
            f"{name} {ratio:.2f} times the step that was predicted"
            for name, ratio in (("one stream took", self.alone), ("several took", self.together))
            if ratio is not None
        ]
        return f"measured here on {self.at.isoformat()}: {', '.join(told)}"


def as_measured(pace: Pace | None, profile: Profile, explain: Callable[[Profile], Profile]) -> Profile:
    """The profile with its speed as it was seen here, explained."""
    if pace is None:
        return explain(profile)
    explained = explain(replace(profile, speed=pace.corrected(profile.speed)))
    choice = Choice("speed", f"{explained.speed.decode_tok_s:,.1f} tok/s alone", str(pace))
    return replace(explained, choices=(*explained.choices, choice))
