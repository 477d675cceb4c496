"""Tiles measured to be the fastest, by device and shape: `python -m bench.kernels --write` adds some.

    {"sm_90": {"few int4 1 28672 4096": ["stream", 4, 4, 3, 528], ...}, ...}

A key is a part of the work, a code, rows, N and K. For shapes that are not there the callers guess from those alike.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import torch

FILE = Path(__file__).with_name("tiles.json")
Tiles = tuple[str, tuple[int, ...]]  # which kernel, and its sizes


def tuned(device: torch.device, key: str) -> Tiles | None:
    """The tiles of a key, or None where nobody has measured."""
    return _tables().get(_capability(device), {}).get(key)


def few_key(code: str, rows: int, columns: int, depth: int) -> str:
    return f"few {code} {rows} {columns} {depth}"


@functools.cache
def _tables() -> dict[str, dict[str, Tiles]]:
    read = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: {key: (one[0], tuple(one[1:])) for key, one in table.items()} for name, table in read.items()}


@functools.cache
def _capability(device: torch.device) -> str:
    if device.type != "cuda" or torch.version.cuda is None:
        return device.type
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def add(device: torch.device, found: dict[str, Tiles]) -> None:
    """Write what was measured into the file. Mutates: the file"""
    tables: dict[str, dict[str, list[object]]] = json.loads(FILE.read_text(encoding="utf-8"))
    table = tables.setdefault(_capability(device), {})
    table.update({key: [name, *sizes] for key, (name, sizes) in found.items()})
    parts = []
    for name, one in sorted(tables.items()):
        rows = ",\n".join(f"    {json.dumps(key)}: {json.dumps(sizes)}" for key, sizes in sorted(one.items()))
        parts.append(f"  {json.dumps(name)}: {{\n{rows}\n  }}")
    FILE.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
