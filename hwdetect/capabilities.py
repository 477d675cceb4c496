"""What an architecture can do, by capability level or architecture, never by product name; None without evidence."""

from __future__ import annotations

import re

from hwdetect.accelerator import Accelerator, Capabilities, LinkKind, Vendor

# NVIDIA architectures by the PCI id's first byte of the device id, where no tool says more
_PCI_ARCHITECTURES = (
    ("1d", "Volta"), ("1e", "Turing"), ("1f", "Turing"), ("21", "Turing"), ("20", "Ampere"), ("22", "Ampere"),
    ("24", "Ampere"), ("25", "Ampere"), ("23", "Hopper"), ("26", "Ada Lovelace"), ("27", "Ada Lovelace"),
    ("28", "Ada Lovelace"), ("29", "Blackwell"), ("2b", "Blackwell"), ("2c", "Blackwell"), ("2d", "Blackwell"),
    ("2e", "Blackwell"), ("2f", "Blackwell"), ("31", "Blackwell"),
    ("13", "Maxwell"), ("17", "Maxwell"), ("15", "Pascal"), ("1b", "Pascal"), ("1c", "Pascal"),
)  # fmt: skip
_NVIDIA_LEVELS = {
    "maxwell": 5.0, "pascal": 6.0, "volta": 7.0, "turing": 7.5, "ampere": 8.0, "ada lovelace": 8.9,
    "ada-lovelace": 8.9, "ada": 8.9, "hopper": 9.0, "blackwell": 10.0,
}  # fmt: skip


def capabilities(device: Accelerator) -> Capabilities:
    found = _BY_VENDOR[device.vendor](device)
    return found if found.peer_access is not None else _with_peers(found, device)


def nvidia_architecture(pci_id: str | None) -> str | None:
    """The architecture that a 10de device id belongs to."""
    if not pci_id or not pci_id.startswith("10de:"):
        return None
    device = pci_id.partition(":")[2]
    return next((name for prefix, name in _PCI_ARCHITECTURES if device.startswith(prefix)), None)


def _with_peers(found: Capabilities, device: Accelerator) -> Capabilities:
    links = [link for link in device.links or () if link.kind is not LinkKind.SELF and link.peer is not None]
    said = [link.peer_access for link in links if link.peer_access is not None]
    if said:
        peers: bool | None = all(said)
    elif any(link.kind.is_direct for link in links):
        peers = True
    else:
        peers = None
    return Capabilities(found.bf16, found.fp8, found.fp4, found.int8, found.triton, found.graphs, peers, found.reason)


def _level(device: Accelerator) -> float | None:
    text = device.compute_capability
    if text and re.fullmatch(r"\d{1,2}\.\d", text):
        return float(text)
    name = device.architecture or nvidia_architecture(device.pci_id)
    return _NVIDIA_LEVELS.get((name or "").lower())


def _nvidia(device: Accelerator) -> Capabilities:
    level = _level(device)
    if level is None:
        return Capabilities(reason="compute capability unknown")
    reason = f"compute capability {device.compute_capability}" if device.compute_capability else "by architecture"
    return Capabilities(
        bf16=level >= 8.0,
        fp8=level >= 8.9,
        fp4=level >= 10.0,
        int8=level >= 6.1,
        triton=level >= 7.0,
        graphs=level >= 5.0,
        reason=reason,
    )


def _cuda_like(device: Accelerator) -> Capabilities:
    """Stacks that speak CUDA's API: their level says what they accept, not what NVIDIA's chip of that level has."""
    return Capabilities(bf16=True, triton=None, graphs=None, reason="vendor statement; no evidence for fp8")


def _amd(device: Accelerator) -> Capabilities:
    chip = _gfx(device)
    if chip is None:
        return Capabilities(reason="gfx version unknown")
    matrix = chip in ("gfx908", "gfx90a", "gfx940", "gfx941", "gfx942", "gfx950")
    rdna3 = chip.startswith(("gfx11", "gfx12"))
    return Capabilities(
        bf16=matrix or rdna3,
        fp8=chip in ("gfx940", "gfx941", "gfx942", "gfx950") or chip.startswith("gfx12"),
        fp4=chip == "gfx950",
        int8=True if matrix or rdna3 else None,
        triton=matrix or rdna3 or None,
        graphs=matrix or rdna3 or None,
        reason=chip,
    )


_GFX = {
    "1002:738c": "gfx908", "1002:740c": "gfx90a", "1002:740f": "gfx90a", "1002:74a0": "gfx942", "1002:74a1": "gfx942",
    "1002:74a2": "gfx942", "1002:74a5": "gfx942", "1002:75a0": "gfx950", "1002:744c": "gfx1100", "1002:66a1": "gfx906",
    "1002:73df": "gfx1031", "1002:6861": "gfx900",
}  # fmt: skip


def _gfx(device: Accelerator) -> str | None:
    named = (device.architecture or "").lower()
    return named if named.startswith("gfx") else _GFX.get(device.pci_id or "")


def _ascend(device: Accelerator) -> Capabilities:
    text = f"{device.name or ''} {device.architecture or ''}".upper()
    if "310P" in text or device.pci_id == "19e5:d500":
        return Capabilities(bf16=False, fp8=False, fp4=False, int8=True, triton=False, reason="310P: float16 only")
    if "950" in text:
        return Capabilities(bf16=True, fp8=True, reason="Ascend 950")
    if re.search(r"910[BC]", text) or re.search(r"ASCEND ?910\b", text) or device.pci_id in ("19e5:d802", "19e5:d803"):
        # 910A is printed with its letter; the bare name is the two-die 910C
        return Capabilities(bf16=True, fp8=False, fp4=False, int8=True, reason="Ascend 910B/C")
    return Capabilities(reason="chip unknown")


def _intel(device: Accelerator) -> Capabilities:
    return Capabilities(bf16=True, fp8=None, int8=True, reason="Xe matrix engines")


def _gaudi(device: Accelerator) -> Capabilities:
    named = f"{device.architecture or ''} {device.name or ''}"
    later = bool(re.search(r"Gaudi ?[23]", named))
    return Capabilities(bf16=True, fp8=True if later else None, reason="Gaudi2 or later" if later else "Gaudi")


def _mthreads(device: Accelerator) -> Capabilities:
    name = device.name or ""
    modern = bool(re.search(r"S[45]000", name))
    return Capabilities(
        bf16=True if modern else None,
        fp8=False if re.search(r"S80|S3000|S30\b", name) else None,
        reason="by generation" if modern else "no evidence",
    )


def _none_known(device: Accelerator) -> Capabilities:
    return Capabilities(reason="no evidence found")


_BY_VENDOR = {
    Vendor.NVIDIA: _nvidia, Vendor.AMD: _amd, Vendor.INTEL: _intel, Vendor.GAUDI: _gaudi, Vendor.ASCEND: _ascend,
    Vendor.MTHREADS: _mthreads, Vendor.HYGON: _cuda_like, Vendor.CAMBRICON: _cuda_like, Vendor.ILUVATAR: _cuda_like,
    Vendor.METAX: _cuda_like, Vendor.ENFLAME: _none_known, Vendor.KUNLUNXIN: _none_known, Vendor.THEAD: _none_known,
    Vendor.BIREN: _none_known,
}  # fmt: skip
