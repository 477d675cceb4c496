"""What a worker is told of packed weights, and that a model's go with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from daemon.settings import WorkerSettings
from daemon.workers.incarnation import Incarnation, Launch
from engine.messages import WorkerConfig


@pytest.mark.parametrize(
    ("device", "limit", "told"), [("cpu", 1 << 30, True), ("cpu", 0, False), ("cuda:0", 1 << 30, False)]
)
def test_cpu_workers_alone_keep_packed_weights(device: str, limit: int, told: bool, tmp_path: Path) -> None:
    unused: Any = None
    launch = Launch((), {}, tmp_path, tmp_path, unused, unused_client, packed_dir=tmp_path / "packed")
    template = WorkerConfig("w", "m", "/m", "", device=device)
    config = Incarnation(launch, WorkerSettings(packed_bytes=limit), template, "w-1").config
    assert (config.packed_dir, config.packed_bytes) == ((str(tmp_path / "packed"), limit) if told else ("", 0))


@pytest.mark.parametrize("scales", ["auto", "dynamic", "calibrated"])
def test_workers_are_told_what_multiplies_a_cache_of_bytes(scales: Any, tmp_path: Path) -> None:
    unused: Any = None
    launch = Launch((), {}, tmp_path, tmp_path, unused, unused_client)
    template = WorkerConfig("w", "m", "/m", "", kv_dtype="fp8")
    incarnation = Incarnation(launch, WorkerSettings(kv_scales=scales), template, "w-1")
    assert incarnation.config.kv_scales == scales
    assert incarnation.template.kv_scales == "auto"


def unused_client(endpoint: str) -> Any:
    class Client:
        pass

    return Client()
