"""AMD and Hygon from /sys: memory and load of each DRM device, and the compute topology of KFD."""

from __future__ import annotations

import re

from hwdetect.accelerator import Accelerator, Vendor
from hwdetect.report import checked_memory
from hwdetect.text import integer, pci_address
from hwdetect.tree import Tree, line, numbered

_CARDS = "/sys/class/drm"
_KFD = "/sys/class/kfd/kfd/topology/nodes"


def from_drm(tree: Tree, vendor: Vendor) -> tuple[Accelerator, ...]:
    """Every amdgpu device that has memory figures. Its node is its render node."""
    found: list[Accelerator] = []
    for _, folder in numbered(tree, _CARDS, "card"):
        total = integer(line(tree, f"{folder}/device/mem_info_vram_total"))
        address = pci_address(_uevent(tree, f"{folder}/device/uevent").get("PCI_SLOT_NAME"))
        if address is None or total is None:
            continue
        render = [name for name in tree.names(f"{folder}/device/drm") if name.startswith("renderD")]
        found.append(
            checked_memory(
                Accelerator.of(
                    f"{folder}/device",
                    vendor=vendor,
                    pci_address=address,
                    nodes=tuple(f"/dev/dri/{name}" for name in render) or None,
                    memory_total_bytes=total,
                    memory_used_bytes=integer(line(tree, f"{folder}/device/mem_info_vram_used")),
                    utilisation_percent=_percent(line(tree, f"{folder}/device/gpu_busy_percent")),
                    uuid=line(tree, f"{folder}/device/unique_id"),
                    partition_mode=_mode(tree, f"{folder}/device"),
                )
            )
        )
    return tuple(found)


def from_kfd(tree: Tree, vendor: Vendor) -> tuple[Accelerator, ...]:
    """Architecture and compute units by address."""
    found: list[Accelerator] = []
    for _, folder in numbered(tree, _KFD, ""):
        values = dict(
            entry.split(None, 1)
            for entry in (tree.read(f"{folder}/properties") or "").splitlines()
            if len(entry.split(None, 1)) == 2
        )
        location, version = integer(values.get("location_id")), integer(values.get("gfx_target_version"))
        if not location or not version:
            continue
        domain = integer(values.get("domain")) or 0
        address = f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
        major, minor, step = version // 10000, version // 100 % 100, version % 100
        per_unit = integer(values.get("simd_per_cu")) or 0
        count = integer(values.get("simd_count"))
        found.append(
            Accelerator.of(
                f"{_KFD}/*/properties",
                vendor=vendor,
                pci_address=address,
                architecture=f"gfx{major}{minor:x}{step:x}",
                compute_units=count // per_unit if count and per_unit else None,
            )
        )
    return tuple(found)


def driver_version(tree: Tree) -> tuple[str, str] | None:
    """Version and source of the kernel driver: the module's own, else the kernel's, of which it is a part."""
    for module in ("amdgpu", "hycu", "hydcu"):
        version = line(tree, f"/sys/module/{module}/version")
        if version:
            return version, f"/sys/module/{module}/version"
    release = line(tree, "/proc/sys/kernel/osrelease")
    if release and tree.exists("/sys/module/amdgpu"):
        return f"in-kernel {release}", "/proc/sys/kernel/osrelease"
    return None


def _uevent(tree: Tree, path: str) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in (tree.read(path) or "").splitlines())
    return {key: value for key, equals, value in pairs if equals}


def _percent(text: str | None) -> float | None:
    value = integer(text)
    return float(value) if value is not None and 0 <= value <= 100 else None


def _mode(tree: Tree, folder: str) -> str | None:
    parts = [line(tree, f"{folder}/current_{kind}_partition") for kind in ("memory", "compute")]
    return "/".join(part for part in parts if part and re.fullmatch(r"[A-Z0-9]{3,8}", part)) or None
