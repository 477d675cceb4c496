"""Devices by what they can do. `open_device("cpu" | "cuda:0" | "npu:1" | ...)`."""

from engine.devices.accelerator import AcceleratorDevice
from engine.devices.base import Capabilities, Device
from engine.devices.cpu import CpuDevice
from engine.errors import DeviceUnusable

__all__ = ["Capabilities", "Device", "open_device"]

# Backend modules of vendors whose torch is an extension. The CUDA-API stacks (NVIDIA, MetaX, Iluvatar, Hygon) need
# none.
EXTENSIONS = {
    "cuda": None,
    "xpu": None,
    "npu": "torch_npu",
    "musa": "torch_musa",
    "mlu": "torch_mlu",
    "gcu": "torch_gcu",
}


def open_device(name: str) -> Device:
    """Raises: DeviceUnusable with what is missing."""
    kind, _, index = name.partition(":")
    if kind == "cpu":
        return CpuDevice()
    if kind not in EXTENSIONS or (index and not index.isdigit()):
        raise DeviceUnusable(
            f"There is no device {name!r}.", f"Use cpu, or one of {', '.join(EXTENSIONS)} with an index."
        )
    return AcceleratorDevice(kind, int(index or 0), EXTENSIONS[kind])
