"""Who makes an Arm core and what it is called: the kernel prints only numbers, and no `model name`."""

from __future__ import annotations

IMPLEMENTERS = {
    0x41: "Arm", 0x42: "Broadcom", 0x43: "Cavium", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x4E: "NVIDIA", 0x50: "APM",
    0x51: "Qualcomm", 0x53: "Samsung", 0x61: "Apple", 0x66: "Faraday", 0x69: "Intel", 0x6D: "Microsoft",
    0x70: "Phytium", 0xC0: "Ampere",
}  # fmt: skip

# maker -> part -> name
_PARTS: dict[int, dict[int, str]] = {
    0x41: {
        0xC07: "Cortex-A7", 0xC0F: "Cortex-A15", 0xD03: "Cortex-A53", 0xD04: "Cortex-A35", 0xD05: "Cortex-A55",
        0xD07: "Cortex-A57", 0xD08: "Cortex-A72", 0xD09: "Cortex-A73", 0xD0A: "Cortex-A75", 0xD0B: "Cortex-A76",
        0xD0C: "Neoverse-N1", 0xD0D: "Cortex-A77", 0xD40: "Neoverse-V1", 0xD41: "Cortex-A78", 0xD42: "Cortex-A78AE",
        0xD44: "Cortex-X1", 0xD46: "Cortex-A510", 0xD47: "Cortex-A710", 0xD48: "Cortex-X2", 0xD49: "Neoverse-N2",
        0xD4D: "Cortex-A715", 0xD4E: "Cortex-X3", 0xD4F: "Neoverse-V2", 0xD80: "Cortex-A520", 0xD81: "Cortex-A720",
        0xD82: "Cortex-X4", 0xD84: "Neoverse-V3", 0xD85: "Cortex-X925", 0xD87: "Cortex-A725", 0xD8E: "Neoverse-N3",
    },
    0x46: {0x001: "A64FX"},
    0x48: {0xD01: "Kunpeng 920 (TaiShan v110)", 0xD02: "TaiShan v120"},
    0x4E: {0x003: "Denver 2", 0x004: "Carmel"},
    0x70: {0x660: "FTC660", 0x661: "FTC661", 0x662: "FTC662", 0x663: "FTC663", 0x664: "FTC664", 0x862: "FTC862"},
    0xC0: {0xAC3: "Ampere-1", 0xAC4: "Ampere-1a"},
}  # fmt: skip


def hexadecimal(text: str | None) -> int | None:
    """The number of `0x41`; None for anything else, so that a vendor's name is not taken for one."""
    digits = (text or "").strip().lower()
    if not digits.startswith("0x") or len(digits) > 18:
        return None
    try:
        return int(digits, 16)
    except ValueError:
        return None


def implementer_name(text: str | None) -> str | None:
    """Maker of an implementer code such as `0x48`, the code itself where it is not known."""
    code = hexadecimal(text)
    return None if code is None else IMPLEMENTERS.get(code, f"implementer {code:#04x}")


def part_name(implementer: str | None, part: str | None) -> str | None:
    """`HiSilicon Kunpeng 920 ...` for the two codes; None where the part is not known."""
    maker, number = hexadecimal(implementer), hexadecimal(part)
    if maker is None or number is None:
        return None
    name = _PARTS.get(maker, {}).get(number)
    return f"{IMPLEMENTERS[maker]} {name}" if name else None
