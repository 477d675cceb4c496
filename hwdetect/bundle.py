"""An archive for support: the description, the checks' results, a few kernel files, all redacted."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import tarfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from hwdetect.accelerator import Accelerator
from hwdetect.doctor import Result
from hwdetect.facts import encode
from hwdetect.machine import Machine
from hwdetect.redact import redact
from hwdetect.tree import FolderTree, Tree

_FILES = (
    "/proc/cpuinfo", "/proc/meminfo", "/proc/version", "/proc/cmdline", "/proc/self/cgroup", "/proc/self/mountinfo",
    "/proc/modules", "/proc/driver/nvidia/version", "/etc/os-release", "/sys/devices/system/cpu/online",
)  # fmt: skip
_PART_LIMIT_BYTES = 512 * 1024


def write_bundle(
    path: Path,
    machine: Machine,
    results: Iterable[Result],
    extras: Mapping[str, str] | None = None,
    tree: Tree | None = None,
) -> Path:
    """Write the archive under a temporary name, then move it into place. `extras` are more texts by name.

    Raises: OSError if the folder cannot be written; FileExistsError if there is such a file already
    """
    parts = {"machine.json": _redacted_machine(machine).to_json(), "doctor.json": _results(results)}
    tree = tree or FolderTree()
    for name in _FILES:
        text = tree.read(name)
        if text:
            parts[f"files{name}"] = text
    for name, text in (extras or {}).items():
        parts[f"extra/{name}"] = text
    if path.exists():
        raise FileExistsError(17, "there is such a file already", str(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with tarfile.open(temporary, "x:gz") as archive:
            for name, text in parts.items():
                _add(archive, f"bayard-support/{name}", redact(text)[-_PART_LIMIT_BYTES:].encode())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    entry.mode = 0o600
    entry.mtime = int(time.time())
    archive.addfile(entry, io.BytesIO(content))


def _redacted_machine(machine: Machine) -> Machine:
    """Without the host's name and the devices' unique numbers; process names can be anything, so they go too."""
    devices: list[Accelerator] = []
    for device in machine.accelerators:
        listed = device.processes
        devices.append(
            dataclasses.replace(
                device,
                uuid=None,
                processes=None if listed is None else tuple(dataclasses.replace(p, name=None) for p in listed),
                partitions=tuple(dataclasses.replace(part, uuid=None) for part in device.partitions),
            )
        )
    return dataclasses.replace(
        machine, host=dataclasses.replace(machine.host, hostname=None), accelerators=tuple(devices)
    )


def _results(results: Iterable[Result]) -> str:
    return json.dumps([encode(result) for result in results], indent=2, ensure_ascii=False)
