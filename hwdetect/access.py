"""Why a device that is on the bus can or cannot be opened: its driver, its nodes, and this user's right to them."""

from __future__ import annotations

import os
import re

from hwdetect.accelerator import Accelerator, State, Vendor
from hwdetect.tree import FolderTree, Tree
from hwdetect.vendors.toolbox import KITS

# Nodes that several vendors share say nothing about which of them is there
_SHARED_NODES = ("/dev/dri/", "/dev/accel/")


def present_by_node(tree: Tree) -> dict[Vendor, tuple[str, ...]]:
    """Vendors whose own device nodes exist, with those nodes: all that a container may see of a device."""
    found: dict[Vendor, tuple[str, ...]] = {}
    for vendor, kit in KITS.items():
        own = [pattern for pattern in kit.nodes if not pattern.startswith(_SHARED_NODES)]
        nodes = tuple(node for pattern in own for node in _matching(tree, pattern))
        if nodes:
            found[vendor] = nodes
    return found


def _matching(tree: Tree, pattern: str) -> list[str]:
    folder, name = pattern.rsplit("/", 1)
    form = re.compile(re.escape(name).replace(r"\{n\}", r"(\d{1,4})"))
    numbers = sorted((int(m.group(1)), entry) for entry in tree.names(folder) if (m := form.fullmatch(entry)))
    return [f"{folder}/{entry}" for _, entry in numbers]


def judge(tree: Tree, device: Accelerator, in_container: bool, asked: bool) -> Accelerator:
    """Give the device a state if its vendor's tool gave none. `asked`: the tool or library was there and answered."""
    if device.state is not State.UNKNOWN:
        return device
    kit = KITS[device.vendor]
    driver = device.kernel_driver
    if driver == "vfio-pci":
        return _unusable(
            device, State.NOT_EXPOSED, "it is bound to vfio-pci, for a virtual machine",
            f"give it back: echo {device.pci_address} | sudo tee /sys/bus/pci/drivers/vfio-pci/unbind",
        )  # fmt: skip
    if driver in ("nouveau", "radeon"):
        return _unusable(
            device, State.DRIVER_MISSING, f"the {driver} driver holds it, which cannot compute", kit.driver_fix
        )
    if driver is None and device.pci_address is not None and not in_container and not _has_module(tree, kit.drivers):
        return _unusable(device, State.DRIVER_MISSING, "no kernel driver is bound to it", kit.driver_fix)
    if not tree.is_live or not isinstance(tree, FolderTree):
        return device
    nodes = [*device.nodes, *(node for node in kit.shared if tree.exists(node))]
    missing = [node for node in device.nodes if not tree.exists(node)]
    own_missing = device.nodes and missing == list(device.nodes)
    nothing = not device.nodes and not any(_matching(tree, pattern) for pattern in kit.nodes)
    if own_missing or nothing:
        shown = missing[0] if missing else kit.nodes[0].replace("{n}", "N")
        if in_container:
            reason = f"its device node {shown} is not in this container"
            return _unusable(device, State.NOT_EXPOSED, reason, kit.container_fix)
        return _unusable(device, State.DRIVER_MISSING, f"its device node {shown} does not exist", kit.driver_fix)
    closed = [node for node in nodes if tree.exists(node) and not os.access(tree.real(node), os.R_OK | os.W_OK)]
    if closed:
        group = "render" if "/dri/" in closed[0] or "kfd" in closed[0] else "video"
        return _unusable(
            device, State.NO_PERMISSION, f"this user may not open {closed[0]}",
            f"sudo usermod -aG {group} $USER, then log in again; or sudo chmod a+rw {closed[0]}",
        )  # fmt: skip
    if not asked:
        reason = "its nodes are there, but neither the vendor's library nor its tool answered"
        return _unusable(device, State.UNKNOWN, reason, kit.driver_fix)
    return device


def _has_module(tree: Tree, names: tuple[str, ...]) -> bool:
    return any(tree.exists(f"/sys/module/{name.replace('-', '_')}") for name in names)


def _unusable(device: Accelerator, state: State, reason: str, fix: str) -> Accelerator:
    return device.with_facts("nodes and drivers", state=state, reason=reason, fix=fix)
