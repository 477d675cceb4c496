"""Where a figure comes from: the machine, the software and the commit, written beside every result."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def provenance(bench: str, device: str = "cpu", words: Sequence[str] | None = None) -> dict[str, object]:
    """The first line of a result: {"bench", "command", "machine", "commit", "measured_at", "load_average", "software"}.

    words: what the benchmark was asked, None for the process's own arguments
    """
    return {
        "bench": bench,
        "command": command(bench, sys.argv[1:] if words is None else words),
        "machine": machine(device),
        "commit": commit(),
        "measured_at": datetime.now(UTC).date().isoformat(),
        "load_average": round(os.getloadavg()[0], 1),  # of the minute before: what else the machine was doing
        "software": {name: _version(name) for name in ("torch", "triton")},
    }


def command(bench: str, words: Sequence[str]) -> str:
    """As a reader would give it: of files their names alone, for theirs lie elsewhere."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    module = spec.name if spec is not None and spec.name.startswith("bench.") else f"bench.{bench}"
    return shlex.join(["python", "-m", module, *(Path(word).name if word.startswith("/") else word for word in words)])


def machine(device: str) -> str:
    """The processor and its usable cores, and the accelerator if one is used."""
    cpu = f"{_cpu_name()}, {len(os.sched_getaffinity(0))} cores"
    if device.startswith("cpu"):
        return cpu
    import torch

    kind, _, index = device.partition(":")
    return f"{getattr(torch, kind).get_device_name(int(index or 0))}; {cpu}"


def commit() -> str:
    """The short commit, "-changed" after it if tracked files differ; outside a checkout what $SOURCE_COMMIT says."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
        return done.stdout.strip()

    try:
        if not Path(git("rev-parse", "--show-toplevel")).samefile(ROOT):  # an archive, unpacked within a checkout
            return os.environ.get("SOURCE_COMMIT", "unknown")
        return git("rev-parse", "--short", "HEAD") + ("-changed" if git("diff", "HEAD", "--name-only") else "")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("SOURCE_COMMIT", "unknown")


def _cpu_name() -> str:
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model name", "cpu model"):
                return value.strip()
    return platform.machine()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
