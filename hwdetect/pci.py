"""What is on the PCI bus: from /sys, or from lspci's text. Presence here says nothing yet about being usable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hwdetect.accelerator import Accelerator, Vendor
from hwdetect.machine import Note, Severity
from hwdetect.pci_ids import CLASSES, PRODUCTS, vendor_id_of, vendor_of
from hwdetect.report import Report, unique
from hwdetect.text import cpu_list, cpu_mask, integer, pci_address, size_bytes
from hwdetect.tree import Tree, line

_DEVICES = "/sys/bus/pci/devices"
_ENTRY = re.compile(r"^((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\s+(.+?):\s*(.*)$")
_SLOT = re.compile(r"^Slot:\s+((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\s*$")
_QUOTED = re.compile(r'^((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]) "([^"]*)" "([^"]*)" "([^"]*)"')
_NUMERIC = re.compile(r"^([0-9a-fA-F]{4})\b")
_BRACKET_NUMBER = re.compile(r"\s*\[([0-9a-fA-F]{4})\]$")
_BRACKET_CLASS = re.compile(r"^(.*?)\s*\[([0-9a-fA-F]{4})\]$")
_BRACKET_ID = re.compile(r"\[([0-9a-fA-F]{4}):([0-9a-fA-F]{4})\]")
_BARE_ID = re.compile(r"^Device ([0-9a-fA-F]{4}):([0-9a-fA-F]{4})\b")
_ONLY_ID = re.compile(r"^([0-9a-fA-F]{4}):([0-9a-fA-F]{4})(?=\s|$)")
_DEVICE_ID = re.compile(r"\bDevice ([0-9a-fA-F]{4})\b")
_SMALLEST_MEMORY_BAR_BYTES = 4 << 30
_ENGINES = re.compile(r"\b(?:ZIP|SEC|HPRE|RDE|DMA) Engine", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PciDevice:
    address: str
    class_code: str | None = None
    vendor_id: str | None = None
    device_id: str | None = None
    text: str = ""
    subsystem: str | None = None
    driver: str | None = None
    numa_node: int | None = None
    local_cpus: tuple[int, ...] = ()
    largest_bar_bytes: int | None = None
    link: tuple[int | None, int | None, int | None, int | None] = (None, None, None, None)
    source: str = _DEVICES

    @property
    def accelerator_vendor(self) -> Vendor | None:
        """The vendor if this function is an accelerator: its class decides, since every vendor has other devices."""
        found = vendor_of(self.vendor_id, self.text)
        code = self.class_code
        if found is None or code is None or not code.startswith(found.classes):
            return None
        if _ENGINES.search(self.text) and found.vendor is Vendor.ASCEND:
            return None
        if found.device_prefixes and self.device_id and not self.device_id.startswith(found.device_prefixes):
            return None
        # Intel's integrated graphics are always this function: they share the host's memory and slow it down
        if found.vendor is Vendor.INTEL and self.address == "0000:00:02.0":
            return None
        return found.vendor


def scan(tree: Tree) -> tuple[PciDevice, ...]:
    """Every function of the classes that may be accelerators, from /sys."""
    found: list[PciDevice] = []
    for name in tree.names(_DEVICES):
        address = pci_address(name)
        code = (line(tree, f"{_DEVICES}/{name}/class") or "").removeprefix("0x")[:4]
        if address is None or not code.startswith(("03", "0b", "12", "08")):
            continue
        folder = f"{_DEVICES}/{name}"
        vendor = line(tree, f"{folder}/vendor")
        if vendor is None and tree.exists(f"/proc/driver/nvidia/gpus/{name}"):
            vendor = "0x10de"
        node = integer(line(tree, f"{folder}/numa_node"))
        driver = tree.link(f"{folder}/driver")
        cpus = cpu_list(line(tree, f"{folder}/local_cpulist")) or cpu_mask(line(tree, f"{folder}/local_cpus"))
        found.append(
            PciDevice(
                address=address,
                class_code=code,
                vendor_id=(vendor or "").removeprefix("0x") or None,
                device_id=(line(tree, f"{folder}/device") or "").removeprefix("0x") or None,
                driver=driver.rsplit("/", 1)[-1] if driver else None,
                numa_node=node if node is not None and node >= 0 else None,
                local_cpus=cpus or (),
                link=_link(tree, folder),
            )
        )
    return tuple(found)


_GENERATIONS = {
    "2.5": 1,
    "5.0": 2,
    "5": 2,
    "8.0": 3,
    "8": 3,
    "16.0": 4,
    "16": 4,
    "32.0": 5,
    "32": 5,
    "64.0": 6,
    "64": 6,
}


def _link(tree: Tree, folder: str) -> tuple[int | None, int | None, int | None, int | None]:
    """Generation now and at most, width now and at most."""
    speeds = [(line(tree, f"{folder}/{name}_link_speed") or "").split(" ")[0] for name in ("current", "max")]
    widths = [integer(line(tree, f"{folder}/{name}_link_width")) for name in ("current", "max")]
    # A width of 0 or 255 is what the kernel prints for a function without a link of its own
    kept = [width if width is not None and 0 < width <= 32 else None for width in widths]
    return _GENERATIONS.get(speeds[0]), _GENERATIONS.get(speeds[1]), kept[0], kept[1]


def looks_like(text: str) -> bool:
    return any(_ENTRY.match(entry) or _SLOT.match(entry) or _QUOTED.match(entry) for entry in text.splitlines()[:20])


def parse(text: str, source: str) -> Report:
    """lspci in any of its forms; the report holds the accelerators among what it lists."""
    functions = parse_functions(text, source)
    devices = unique(d for f in functions if (d := accelerator(f)) is not None)
    counters: dict[Vendor, int] = {}
    numbered: list[Accelerator] = []
    for device in devices:
        numbered.append(device.with_facts("order on the bus", index=counters.get(device.vendor, 0)))
        counters[device.vendor] = counters.get(device.vendor, 0) + 1
    vendors = {device.vendor for device in devices}
    none = Note(Severity.INFO, source, f"no accelerator among {len(functions)} PCI functions")
    return Report(
        source=source,
        vendor=vendors.pop() if len(vendors) == 1 else None,
        devices=tuple(numbered),
        notes=() if devices else (none,),
        understood=bool(functions),
    )


def parse_functions(text: str, source: str) -> list[PciDevice]:
    found: dict[str, PciDevice] = {}
    current: str | None = None
    for entry in _plain(text):
        opened = _ENTRY.match(entry)
        if opened:
            device = _function(opened, source)
            current = device.address if device and device.address not in found else None
            if device and current:
                found[current] = device
        elif entry[:1].isspace() and current:
            found[current] = _detail(found[current], entry.strip())
        elif not entry.strip():
            current = None
    return list(found.values())


def _plain(text: str) -> Iterator[str]:
    """The lines of `lspci -mm` and `-vmm` as those of the plain forms; other lines as they are."""
    slot: str | None = None
    record: dict[str, str] = {}
    for entry in [*text.splitlines(), ""]:
        quoted, opened = _QUOTED.match(entry), _SLOT.match(entry)
        key, colon, value = entry.partition(":")
        if quoted:
            yield _joined(*quoted.groups())
        elif opened:
            slot, record = opened.group(1), {}
        elif slot is not None and colon and value.strip():
            record.setdefault(key.strip(), value.strip())
        else:
            if slot is not None and {"Class", "Vendor", "Device"} <= set(record):
                yield _joined(slot, record["Class"], record["Vendor"], record["Device"])
                if "Driver" in record:
                    yield f"\tKernel driver in use: {record['Driver']}"
                if "NUMANode" in record:
                    yield f"\tNUMA node: {record['NUMANode']}"
            slot = None
            yield entry


def _joined(slot: str, kind: str, maker: str, product: str) -> str:
    """`-nn` writes the number behind each name, `-n` instead of it."""
    ids = [_BRACKET_NUMBER.search(part) or _NUMERIC.fullmatch(part) for part in (maker, product)]
    number = f" [{ids[0].group(1)}:{ids[1].group(1)}]" if ids[0] and ids[1] else ""
    return f"{slot} {kind}: {_BRACKET_NUMBER.sub('', maker)} {_BRACKET_NUMBER.sub('', product)}{number}"


def _function(opened: re.Match[str], source: str) -> PciDevice | None:
    address = pci_address(opened.group(1))
    kind, rest = opened.group(2).strip(), opened.group(3).strip()
    bracketed = _BRACKET_CLASS.match(kind)
    numeric = re.fullmatch(r"(?:Class )?([0-9a-fA-F]{4})", kind)
    code = bracketed.group(2).lower() if bracketed else CLASSES.get(kind.lower())
    if code is None and numeric:
        code = numeric.group(1).lower()
    ids = _BARE_ID.match(rest) or _ONLY_ID.match(rest)
    if ids is None:
        brackets = list(_BRACKET_ID.finditer(rest))
        ids = brackets[-1] if brackets else None
    device_only = _DEVICE_ID.search(rest) if ids is None else None
    # With numbers for the class there are numbers for the device: without them the line was cut
    if address is None or (bracketed and ids is None):
        return None
    return PciDevice(
        address=address,
        class_code=code,
        vendor_id=ids.group(1).lower() if ids else None,
        device_id=ids.group(2).lower() if ids else device_only.group(1).lower() if device_only else None,
        text=rest,
        source=source,
    )


def _detail(device: PciDevice, text: str) -> PciDevice:
    key, _, value = text.partition(":")
    value = value.strip()
    if key == "Subsystem":
        return replace(device, subsystem=value)
    if key == "Kernel driver in use":
        return replace(device, driver=value)
    node = re.search(r"NUMA node[: ]\s*(\d{1,4})", text)
    if node:
        return replace(device, numa_node=int(node.group(1)))
    bar = re.search(r"Memory at .*\[size=(\d+[KMGT]?)\]", text)
    if bar:
        size = size_bytes(bar.group(1)) or 0
        return replace(device, largest_bar_bytes=max(size, device.largest_bar_bytes or 0))
    return device


def accelerator(function: PciDevice) -> Accelerator | None:
    """The function as an accelerator, or None if it is something else."""
    vendor = function.accelerator_vendor
    if vendor is None:
        return None
    vendor_id = function.vendor_id or vendor_id_of(vendor)
    pci_id = f"{vendor_id}:{function.device_id}" if vendor_id and function.device_id else None
    device = Accelerator.of(
        function.source,
        vendor=vendor,
        pci_address=function.address,
        pci_id=pci_id,
        subsystem=function.subsystem,
        kernel_driver=function.driver,
        numa_node=function.numa_node,
        cpu_affinity=function.local_cpus or None,
        pcie_generation=function.link[0],
        pcie_generation_max=function.link[1],
        pcie_width=function.link[2],
        pcie_width_max=function.link[3],
    )
    named = PRODUCTS.get(pci_id or "")
    if named:
        return device.with_facts("PCI id", name=named)
    device = device.with_facts(function.source, name=_text_name(function, vendor))
    if pci_id is None and device.name is not None:
        device = device.with_facts("product name", pci_id=_id_of_name(device.name, vendor_id))
    if vendor is Vendor.HYGON and (function.largest_bar_bytes or 0) >= _SMALLEST_MEMORY_BAR_BYTES:
        # This driver maps the whole memory; other vendors' windows are larger or smaller than what is behind them
        device = device.with_facts("PCI BAR size", memory_total_bytes=function.largest_bar_bytes)
    return device


def _id_of_name(name: str, vendor_id: str | None) -> str | None:
    ids = [key for key, value in PRODUCTS.items() if value == name and key.startswith(f"{vendor_id}:")]
    return ids[0] if len(ids) == 1 else None


def _text_name(function: PciDevice, vendor: Vendor) -> str | None:
    """The product in lspci's text, where pci.ids knew it; the subsystem's where it is more exact (Hygon)."""
    if vendor is Vendor.HYGON and function.subsystem:
        named = re.sub(r"^.*?(?:Ltd\.?|Co\.|Inc\.?)\s+", "", function.subsystem)
        return f"Hygon {named}" if named and not _BARE_ID.match(named) else None
    text = re.sub(r"\s*\(rev [0-9a-fA-F]+\)$", "", function.text)
    text = _BRACKET_ID.sub("", text).strip()
    product = re.search(r"\[([^\]]+)\]\s*$", text)
    makers = {Vendor.NVIDIA: "NVIDIA", Vendor.AMD: "AMD", Vendor.INTEL: "Intel"}
    if vendor in makers and product and product.group(1) != "AMD/ATI":
        return f"{makers[vendor]} {product.group(1)}"
    named = re.sub(r"^.*?(?:Co\.?,?\s?Ltd\.?|Corporation|Inc\.|\[AMD/ATI\])\s*", "", text)
    named = re.sub(r"\s*\[[^\]]*\]$", "", named).strip()
    if not named or named == text or named.startswith(("Device", "[")):
        return None
    return f"Enflame {named}" if vendor is Vendor.ENFLAME else named
