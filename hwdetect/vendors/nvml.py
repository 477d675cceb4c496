"""NVML facts as JSON on standard output. Run as a process of its own: a driver in trouble can hang or crash its caller.

python -m hwdetect.vendors.nvml
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

_MEMBERS = {1: "Kepler", 2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere",
            8: "Ada Lovelace", 9: "Hopper", 10: "Blackwell"}  # fmt: skip


def main() -> int:
    try:
        import pynvml
    except ImportError:
        print(json.dumps({"error": "missing", "text": "nvidia-ml-py is not installed"}))
        return 0
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        print(json.dumps({"error": "init", "text": str(error)}))
        return 0
    try:
        print(json.dumps(_describe(pynvml)))
    finally:
        pynvml.nvmlShutdown()
    return 0


def _describe(nvml: Any) -> dict[str, Any]:
    def ask(name: str, *arguments: Any, **named: Any) -> Any | None:
        """One question; None if this version of the binding, the driver or the device has no answer to it."""
        try:
            return getattr(nvml, name)(*arguments, **named)
        except (nvml.NVMLError, AttributeError, TypeError):
            return None

    count = ask("nvmlDeviceGetCount") or 0
    cuda = ask("nvmlSystemGetCudaDriverVersion_v2")
    handles = [ask("nvmlDeviceGetHandleByIndex", n) for n in range(count)]
    return {
        "driver": _text(ask("nvmlSystemGetDriverVersion")),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        "count": count,
        "devices": [_device(nvml, ask, n, handle) for n, handle in enumerate(handles) if handle is not None],
        "lost": [n for n, handle in enumerate(handles) if handle is None],
        "peers": list(_peers(nvml, ask, handles)),
    }


def _text(value: Any) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _device(nvml: Any, ask: Callable[..., Any], index: int, handle: Any) -> dict[str, Any]:
    newer = getattr(nvml, "nvmlMemory_v2", None)
    memory = ask("nvmlDeviceGetMemoryInfo", handle, version=newer) if newer is not None else None
    plain = memory is None
    memory = memory if memory is not None else ask("nvmlDeviceGetMemoryInfo", handle)
    pci = ask("nvmlDeviceGetPciInfo", handle)
    level = ask("nvmlDeviceGetCudaComputeCapability", handle)
    ecc = ask("nvmlDeviceGetEccMode", handle)
    mig = ask("nvmlDeviceGetMigMode", handle)
    draw, limit = ask("nvmlDeviceGetPowerUsage", handle), ask("nvmlDeviceGetEnforcedPowerLimit", handle)
    use = ask("nvmlDeviceGetUtilizationRates", handle)
    return {
        "index": index,
        "name": _text(ask("nvmlDeviceGetName", handle)),
        "uuid": _text(ask("nvmlDeviceGetUUID", handle)),
        "bus": _text(pci.busId) if pci else None,
        "pci_device_id": pci.pciDeviceId if pci else None,
        "minor": ask("nvmlDeviceGetMinorNumber", handle),
        "architecture": _MEMBERS.get(ask("nvmlDeviceGetArchitecture", handle) or 0),
        "capability": f"{level[0]}.{level[1]}" if level else None,
        "total": memory.total if memory else None,
        "used": memory.used if memory else None,
        "free": memory.free if memory else None,
        "reserved": None if plain or memory is None else getattr(memory, "reserved", None),
        "utilisation": use.gpu if use else None,
        "temperature": ask("nvmlDeviceGetTemperature", handle, getattr(nvml, "NVML_TEMPERATURE_GPU", 0)),
        "power_mw": draw,
        "power_limit_mw": limit,
        "ecc": bool(ecc[0]) if ecc else None,
        "ecc_uncorrected": ask(
            "nvmlDeviceGetTotalEccErrors",
            handle,
            getattr(nvml, "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", 1),
            getattr(nvml, "NVML_VOLATILE_ECC", 0),
        ),
        "mig": bool(mig[0]) if mig else None,
        "slices": list(_slices(nvml, ask, handle)) if mig and mig[0] else [],
        "processes": _processes(nvml, ask, handle),
        "generation": ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "generation_max": ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "width": ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        "width_max": ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        "cores": ask("nvmlDeviceGetNumGpuCores", handle),
        "nvlinks": _nvlinks(nvml, ask, handle),
    }


def _slices(nvml: Any, ask: Callable[..., Any], handle: Any) -> Iterator[dict[str, Any]]:
    for n in range(ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        piece = ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, n)
        if piece is None:
            continue
        memory = ask("nvmlDeviceGetMemoryInfo", piece)
        name = _text(ask("nvmlDeviceGetName", piece)) or ""
        yield {
            "index": n,
            "uuid": _text(ask("nvmlDeviceGetUUID", piece)),
            "profile": name.rpartition("MIG ")[2] or None,
            "gi": ask("nvmlDeviceGetGpuInstanceId", piece),
            "ci": ask("nvmlDeviceGetComputeInstanceId", piece),
            "total": memory.total if memory else None,
            "used": memory.used if memory else None,
        }


def _processes(nvml: Any, ask: Callable[..., Any], handle: Any) -> list[dict[str, Any]] | None:
    computing = ask("nvmlDeviceGetComputeRunningProcesses", handle)
    drawing = ask("nvmlDeviceGetGraphicsRunningProcesses", handle)
    if computing is None and drawing is None:
        return None
    found: dict[int, dict[str, Any]] = {}
    for listed, compute in ((computing or [], True), (drawing or [], False)):
        for process in listed:
            name = _text(ask("nvmlSystemGetProcessName", process.pid))
            entry = {"pid": process.pid, "name": name, "memory": process.usedGpuMemory, "compute": compute}
            found.setdefault(process.pid, entry)
    return list(found.values())


def _nvlinks(nvml: Any, ask: Callable[..., Any], handle: Any) -> dict[str, int] | None:
    """Active links by the far end's bus id; None if the device has no notion of links."""
    states = [ask("nvmlDeviceGetNvLinkState", handle, n) for n in range(18)]
    if all(state is None for state in states):
        return None
    found: dict[str, int] = {}
    for n, state in enumerate(states):
        if state:
            far = ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, n)
            key = _text(far.busId) if far else None
            found[key or ""] = found.get(key or "", 0) + 1
    return found


def _peers(nvml: Any, ask: Callable[..., Any], handles: list[Any]) -> Iterator[dict[str, Any]]:
    read = getattr(nvml, "NVML_P2P_CAPS_INDEX_READ", 0)
    for a, first in enumerate(handles):
        for b, second in enumerate(handles):
            if a < b and first is not None and second is not None:
                status = ask("nvmlDeviceGetP2PStatus", first, second, read)
                yield {
                    "a": a,
                    "b": b,
                    "level": ask("nvmlDeviceGetTopologyCommonAncestor", first, second),
                    "read": None if status is None else status == 0,
                }


if __name__ == "__main__":
    sys.exit(main())
