"""From a profile to the start-up file of a worker."""

from __future__ import annotations

import msgspec

from daemon.planning.profile import Profile
from engine.messages import AdapterSource, WorkerConfig

# What the supervisor fills in, and what may change in a running worker.
_NOT_SHAPE = {"worker_id", "endpoint", "heartbeat_s", "knobs"}


def worker_config(profile: Profile) -> WorkerConfig:
    """The template that the supervisor completes with worker_id and endpoint."""
    return WorkerConfig(
        worker_id="",
        model_name=profile.model,
        model_path=profile.path,
        endpoint="",
        device=profile.device,
        dtype=profile.dtype,
        kv_dtype=profile.kv_dtype,
        weights=profile.weights,
        activation=profile.activation,
        kv_tokens=profile.kv_tokens,
        page_tokens=profile.page_tokens,
        max_context_tokens=profile.context_tokens,
        threads=profile.threads,
        knobs=profile.knobs,
        swap_bytes=profile.swap_bytes,
        adapters=tuple(AdapterSource(adapter.name, adapter.path) for adapter in profile.adapters),
    )


def same_shape(running: WorkerConfig, desired: WorkerConfig) -> bool:
    """True if the running worker can become the desired one by its knobs alone."""
    now, then = _shape(running), _shape(desired)
    if desired.threads == 0:  # left to the supervisor's own setting
        del now["threads"], then["threads"]
    return now == then


def _shape(config: WorkerConfig) -> dict[str, object]:
    return {name: value for name, value in msgspec.structs.asdict(config).items() if name not in _NOT_SHAPE}
