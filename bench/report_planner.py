"""Prediction beside measurement, a row a precision and number of streams."""

from __future__ import annotations

from typing import Any

HEADS = [
    "weights",
    "streams",
    "a step predicted",
    "measured",
    "speed predicted / measured",
    "memory predicted / measured",
]


def planner_rows(runs: list[dict[str, Any]]) -> list[list[str]]:
    """Memory is one figure a run, beside its first row."""
    rows = []
    for run in runs:
        memory = f"{run['memory']['predicted_over_measured']:.3f}"
        for kind in ("alone", "together"):
            found = run[kind]
            rows.append(
                [
                    run["weights"],
                    str(found["streams"]),
                    f"{found['predicted_step_ms']:.2f} ms",
                    f"{found['step_ms']:.2f} ms",
                    f"{found['predicted_over_measured_speed']:.2f}",
                    memory,
                ]
            )
            memory = ""
    return rows
