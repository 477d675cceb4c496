"""The dashboard asks only for metrics and labels that the daemon has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from daemon.telemetry.catalogue import EVERY

FILE = Path(__file__).resolve().parents[3] / "packaging" / "grafana" / "bayard.json"
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
LABELS = {spec.name + suffix: {*spec.labels, "le"} for spec in EVERY for suffix in SUFFIXES[spec.kind]}


def queries() -> list[str]:
    panels: list[dict[str, Any]] = json.loads(FILE.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_every_query_names_metrics_and_labels_that_exist() -> None:
    for query in queries():
        names = re.findall(r"bayard_\w+", query)
        assert names, query
        for name in names:
            assert name in LABELS, query
        known = set().union(*(LABELS[name] for name in names))
        used = set(re.findall(r"(\w+)\s*=~?", re.sub(r"==\s*1", "", query)))
        used |= {label for group in re.findall(r"(?:by|on)\s*\(([^)]*)\)", query) for label in re.split(r",\s*", group)}
        assert used <= known, query


def test_what_an_operator_looks_for_is_on_the_dashboard() -> None:
    text = " ".join(queries())
    for name in (
        "bayard_requests_total", "bayard_engine_waiting", "bayard_time_to_first_token_seconds_bucket",
        "bayard_inter_token_seconds_bucket", "bayard_kv_pages", "bayard_engine_preemptions_total",
        "bayard_engine_draft_tokens_total", "bayard_worker_restarts_total", "bayard_accelerator_temperature_celsius",
        "bayard_accelerator_power_watts", "bayard_usage_unrecorded_total",
    ):  # fmt: skip
        assert name in text
