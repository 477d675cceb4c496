"""What this installation's engine can run, found without importing torch."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from hwdetect.machine import Accelerator, Vendor

# Vendors whose devices this version's engine has a device class for, and the torch device type it uses.
_DEVICE_TYPES = {Vendor.NVIDIA: "cuda"}


@dataclass(frozen=True, slots=True)
class EngineInstall:
    """Which device types a worker could open here."""

    device_types: frozenset[str]
    assumed: bool = False  # True for a description of another machine: a full installation is assumed there

    @classmethod
    def here(cls) -> EngineInstall:
        found = {"cpu"}
        torch = importlib.util.find_spec("torch")
        if torch is not None and torch.origin is not None:
            libraries = Path(torch.origin).parent / "lib"
            if (libraries / "libtorch_cuda.so").is_file():
                found.add("cuda")
        return cls(frozenset(found))

    @classmethod
    def full(cls) -> EngineInstall:
        return cls(frozenset({"cpu", *_DEVICE_TYPES.values()}), assumed=True)

    def device_type(self, accelerator: Accelerator) -> str | None:
        """The torch device type of an accelerator; None where this version has no class for its vendor."""
        return _DEVICE_TYPES.get(accelerator.vendor)

    def refusal(self, accelerator: Accelerator) -> str | None:
        """Why this installation cannot run on an accelerator; None if it can."""
        kind = self.device_type(accelerator)
        if kind is None:
            return f"this version's engine has no device class for {accelerator.vendor.value} devices"
        if kind not in self.device_types:
            return f"the installed torch is built without {kind}"
        return None
