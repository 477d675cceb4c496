"""The disks that matter: the one that holds the state folder, and others if asked for."""

from __future__ import annotations

import os
from pathlib import Path

from hwdetect.machine import Disk
from hwdetect.tree import Tree, line


def read_disks(tree: Tree, folders: tuple[Path, ...]) -> tuple[Disk, ...]:
    """The disk under each folder; a folder that does not exist yet is described by its nearest parent."""
    mounts = _mounts(tree)
    return tuple(_describe(tree, folder, mounts) for folder in folders) if tree.is_live else ()


def _describe(tree: Tree, folder: Path, mounts: list[tuple[str, str, str, str]]) -> Disk:
    nearest = folder.absolute()
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    disk = Disk(path=str(folder))
    real = str(nearest.resolve())
    under = [m for m in mounts if real == m[1] or real.startswith(m[1].rstrip("/") + "/")]
    if under:
        device, point, filesystem, options = max(under, key=lambda mount: len(mount[1]))
        disk = disk.with_facts(
            "/proc/self/mounts",
            mount=point,
            device=device,
            filesystem=filesystem,
            read_only="ro" in options.split(","),
            rotational=_rotational(tree, device),
        )
    try:
        size = os.statvfs(nearest)
    except OSError:
        return disk
    return disk.with_facts(
        "statvfs", total_bytes=size.f_blocks * size.f_frsize, free_bytes=size.f_bavail * size.f_frsize
    )


def _mounts(tree: Tree) -> list[tuple[str, str, str, str]]:
    found: list[tuple[str, str, str, str]] = []
    for entry in (tree.read("/proc/self/mounts") or "").splitlines():
        fields = entry.split()
        if len(fields) >= 4:
            # The kernel writes blanks in a path as \040
            found.append((fields[0], fields[1].replace("\\040", " "), fields[2], fields[3]))
    return found


def _rotational(tree: Tree, device: str) -> bool | None:
    name = device.removeprefix("/dev/")
    if name.startswith(("vd", "xvd")):
        return None  # a virtual disk says what its host was told to say
    for block in (name, name.rstrip("0123456789"), name.rstrip("0123456789").removesuffix("p")):
        value = line(tree, f"/sys/block/{block}/queue/rotational")
        if value is not None:
            return value == "1"
    return None
