"""What was measured on this machine, kept to correct later predictions. Owner of table measurements."""

from __future__ import annotations

import json
from datetime import datetime
from statistics import median

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from daemon.planning.budget import DeviceBudget
from daemon.planning.datasheet import shipped_rates
from daemon.planning.pace import FURTHEST, Pace
from daemon.planning.quality import quality_line
from daemon.planning.rates import DeviceRates
from daemon.store.base import utc_now
from daemon.store.schema import Measurement
from daemon.store.session import Store

RATES = "rates"
LOADED_MEMORY = "loaded_memory"
PACE = "decode_pace"
QUALITY = "quality"
_KEPT = 5  # newest of one subject


class Measurements:
    """Blocks: every method waits for the store. Call from threads, never from the event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def save_rates(self, rates: DeviceRates) -> None:
        self._add(
            RATES, _device_key(rates.device, rates.name), rates.read_bytes_per_s, None, "bytes/s", rates.to_json()
        )
        self._forget_paces(rates.device)  # they are beside what the old rates predicted

    def rates(self, budget: DeviceBudget) -> DeviceRates:
        """Measured rates of the device, else the shipped ones."""
        found = self._newest(RATES, _device_key(budget.device, budget.name))
        return shipped_rates(budget) if not found else DeviceRates.from_json(json.loads(found[0][2]))

    def save_memory(self, model: str, device: str, weights: str, predicted_bytes: int, measured_bytes: int) -> None:
        """Of a worker at the moment that was predicted."""
        subject = _worker_key(model, device, weights)
        self._add(LOADED_MEMORY, subject, float(measured_bytes), float(predicted_bytes), "bytes", {})

    def memory_correction(self, model: str, device: str, weights: str) -> int:
        """Bytes to add to a prediction for this model so on this device; 0 where nothing was measured."""
        found = self._newest(LOADED_MEMORY, _worker_key(model, device, weights))
        errors = [measured - predicted for measured, predicted, *_ in found if predicted is not None]
        return int(median(errors)) if errors else 0

    def save_pace(
        self, model: str, device: str, weights: str, kind: str, predicted_s: float, measured_s: float
    ) -> None:
        """Of decode steps of a kind, "alone" or "together", by the rates that are known now."""
        if 1 / FURTHEST < measured_s / predicted_s < FURTHEST:
            subject = f"{_worker_key(model, device, weights)}|{kind}"
            self._add(PACE, subject, measured_s, predicted_s, "s", {})

    def pace(self, model: str, device: str, weights: str) -> Pace | None:
        """How a model was seen to run here since the device was last calibrated; None where it was not."""
        ratios: dict[str, float] = {}
        newest: datetime | None = None
        for kind in ("alone", "together"):
            found = self._newest(PACE, f"{_worker_key(model, device, weights)}|{kind}")
            known = [measured / predicted for measured, predicted, *_ in found if predicted]
            if known:
                ratios[kind] = median(known)
                newest = max(found[0][3], newest or found[0][3])
        if newest is None:
            return None
        return Pace(ratios.get("alone"), ratios.get("together"), newest.date())

    def save_quality(self, model: str, found: dict[str, object]) -> None:
        """A comparison of two precisions, as engine.quantize.quality prints it."""
        change = found["perplexity_change"]
        assert isinstance(change, float), change
        self._add(QUALITY, model, change, None, "share of perplexity", found)

    def quality(self, model: str) -> list[dict[str, object]]:
        """The newest of each pair of forms."""
        newest: dict[tuple[object, object], dict[str, object]] = {}
        for _, _, text, _ in self._newest(QUALITY, model):
            found = json.loads(text)
            newest.setdefault((found["first"], found["second"]), found)
        return list(newest.values())

    def price(self, model: str, weights: str) -> str | None:
        """What rounding this model so was measured to cost; None where it was not."""
        for found in self.quality(model):
            if found["second"] == weights:
                return quality_line(found)
        return None

    def _add(
        self, kind: str, subject: str, measured: float, predicted: float | None, unit: str, data: dict[str, object]
    ) -> None:
        def write(session: Session) -> None:
            session.add(
                Measurement(
                    at=utc_now(),
                    kind=kind,
                    subject=subject,
                    profile_json=json.dumps(data),
                    predicted=predicted,
                    measured=measured,
                    unit=unit,
                )
            )
            session.flush()
            mine = select(Measurement.id).where(Measurement.kind == kind, Measurement.subject == subject)
            old = session.scalars(mine.order_by(Measurement.id.desc()).offset(_KEPT)).all()
            session.execute(delete(Measurement).where(Measurement.id.in_(old)))

        self._store.write_sync(write)

    def _forget_paces(self, device: str) -> None:
        def write(session: Session) -> None:
            mine = Measurement.subject.contains(f"|{device}|", autoescape=True)
            session.execute(delete(Measurement).where(Measurement.kind == PACE, mine))

        self._store.write_sync(write)

    def _newest(self, kind: str, subject: str) -> list[tuple[float, float | None, str, datetime]]:
        def read(session: Session) -> list[tuple[float, float | None, str, datetime]]:
            rows = session.scalars(
                select(Measurement)
                .where(Measurement.kind == kind, Measurement.subject == subject)
                .order_by(Measurement.id.desc())
                .limit(_KEPT)
            )
            return [(row.measured, row.predicted, row.profile_json, row.at) for row in rows]

        return self._store.read_sync(read)


def _worker_key(model: str, device: str, weights: str) -> str:
    return f"{model}|{device}|{weights}"


def _device_key(device: str, name: str) -> str:
    return f"{device}|{name}"
