"""What was measured on this machine, kept to correct later predictions. Owner of table measurements."""

from __future__ import annotations

import json
from statistics import median

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from daemon.planning.budget import DeviceBudget
from daemon.planning.datasheet import shipped_rates
from daemon.planning.quality import quality_line
from daemon.planning.rates import DeviceRates
from daemon.store.base import utc_now
from daemon.store.schema import Measurement
from daemon.store.session import Store

RATES = "rates"
LOADED_MEMORY = "loaded_memory"
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

    def rates(self, budget: DeviceBudget) -> DeviceRates:
        """Measured rates of the device, else the shipped ones."""
        found = self._newest(RATES, _device_key(budget.device, budget.name))
        return shipped_rates(budget) if not found else DeviceRates.from_json(json.loads(found[0][2]))

    def save_loaded_memory(self, model: str, device: str, predicted_bytes: int, measured_bytes: int) -> None:
        """Memory of a worker that has loaded a model and computed nothing yet."""
        self._add(LOADED_MEMORY, f"{model}|{device}", float(measured_bytes), float(predicted_bytes), "bytes", {})

    def memory_correction(self, model: str, device: str) -> int:
        """Bytes to add to a prediction for this model and device; 0 where nothing was measured."""
        found = self._newest(LOADED_MEMORY, f"{model}|{device}")
        errors = [measured - predicted for measured, predicted, _ in found if predicted is not None]
        return int(median(errors)) if errors else 0

    def save_quality(self, model: str, found: dict[str, object]) -> None:
        """A comparison of two precisions, as engine.quantize.quality prints it."""
        change = found["perplexity_change"]
        assert isinstance(change, float), change
        self._add(QUALITY, model, change, None, "share of perplexity", found)

    def quality(self, model: str) -> list[dict[str, object]]:
        """The newest of each pair of forms."""
        newest: dict[tuple[object, object], dict[str, object]] = {}
        for _, _, text in self._newest(QUALITY, model):
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

    def _newest(self, kind: str, subject: str) -> list[tuple[float, float | None, str]]:
        def read(session: Session) -> list[tuple[float, float | None, str]]:
            rows = session.scalars(
                select(Measurement)
                .where(Measurement.kind == kind, Measurement.subject == subject)
                .order_by(Measurement.id.desc())
                .limit(_KEPT)
            )
            return [(row.measured, row.predicted, row.profile_json) for row in rows]

        return self._store.read_sync(read)


def _device_key(device: str, name: str) -> str:
    return f"{device}|{name}"
