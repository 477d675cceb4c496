"""Whether guesses pay: what steps with and without them took, against what the guesses are likely to bring."""

from __future__ import annotations

from dataclasses import dataclass

WEIGHT = 0.2  # of the newest measurement
ENOUGH = 3  # measurements before a figure is believed
MARGIN = 1.03  # a gain must be larger than this


@dataclass(slots=True)
class Mean:
    """Of the latest measurements, the newest counting most."""

    value: float = 0.0
    count: int = 0

    def note(self, fresh: float) -> None:
        self.value = fresh if self.count == 0 else self.value + WEIGHT * (fresh - self.value)
        self.count += 1


class Line:
    """Seconds as base + tokens * each, fitted to the latest measurements."""

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        self.count = 0

    def note(self, x: float, y: float) -> None:
        keep = 1.0 - WEIGHT / 4  # a slope needs more of the past than a mean
        self._n, self._x, self._y = keep * self._n + 1, keep * self._x + x, keep * self._y + y
        self._xx, self._xy = keep * self._xx + x * x, keep * self._xy + x * y
        self.count += 1

    def at(self, x: float) -> float:
        mean_x, mean_y = self._x / self._n, self._y / self._n
        spread = self._xx / self._n - mean_x * mean_x
        slope = (self._xy / self._n - mean_x * mean_y) / spread if spread > 1e-6 else 0.0
        return max(1e-9, mean_y + max(0.0, slope) * (x - mean_x))


@dataclass(slots=True)
class _Load:
    """What was measured with about this many sequences in a step."""

    plain: Mean
    guessed: Line
    drafting: Mean  # what costly guesses took to make


class GuessPace:
    """Step times by load. Units: seconds."""

    def __init__(self) -> None:
        self._loads: dict[int, _Load] = {}

    def note(self, rows: int, guesses: int, step_s: float) -> None:
        """A step of decodes alone."""
        load = self._load(rows)
        if guesses:
            load.guessed.note(rows + guesses, step_s)
        else:
            load.plain.note(step_s)

    def note_drafting(self, rows: int, draft_s: float) -> None:
        self._load(rows).drafting.note(draft_s)

    def knows_plain(self, rows: int) -> bool:
        return self._load(rows).plain.count >= ENOUGH

    def gain(self, rows: int, guesses: float, right: float) -> float | None:
        """Tokens a second with guesses, of which about so many are right, over those without. None: not known yet."""
        load = self._load(rows)
        if load.plain.count < ENOUGH or load.guessed.count < ENOUGH:
            return None
        cost_s = load.guessed.at(rows + guesses) + load.drafting.value
        return (rows + right) / rows * load.plain.value / cost_s

    def _load(self, rows: int) -> _Load:
        return self._loads.setdefault(rows.bit_length(), _Load(Mean(), Line(), Mean()))
