"""Reading what tools and the kernel print: cleaning, numbers with units, cpu lists, PCI addresses. Never raises."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MIB = 1024 * 1024

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_ABSENT = frozenset(
    {"", "-", "--", "n/a", "na", "none", "null", "unknown", "unsupported", "not supported", "err!", "error",
     "not available", "not found", "not active", "undefined", "unknown error",
     "insufficient permissions", "insufficient permission",
     "requested functionality has been deprecated", "gpu access blocked by the operating system", "deprecated"}
)  # fmt: skip
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
# A number with a unit, or without one if no other word follows it
_SIZED = re.compile(
    r"([-+]?\d+(?:\.\d+)?)(?:\s*([kmgtp]?i?b(?:ytes)?|[kmgtp])(?![\w.])|(?![\w.])(?!\s*[a-z]))", re.IGNORECASE
)
_BLANKS = " \t\n\r\0"  # recorded files of the kernel may end in a NUL
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_ADDRESS = re.compile(
    r"(?<![0-9a-fA-F:.])(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])(?![0-9a-fA-F:.])"
)


def clean(text: str | bytes) -> str:
    """Text without escape codes and control characters; broken UTF-8 becomes the replacement mark."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    text = _ESCAPES.sub("", text.removeprefix("\ufeff"))
    # A blank in the place of a control character: two numbers with one between them must not become one number
    return _CONTROLS.sub(" ", text.replace("\r\n", "\n").replace("\r", "\n").replace("\xa0", " "))


def known(text: str | None) -> str | None:
    """The stripped text, or None for every way in which a tool says that it does not know."""
    if text is None:
        return None
    stripped = text.strip()
    bare = stripped.strip("[]()<>").strip().lower()
    return None if bare in _ABSENT else stripped


def integer(text: str | None) -> int | None:
    """The whole number that `text` is, units such as % or W allowed after it."""
    value = number(text)
    return int(value) if value is not None and value == int(value) else None


def number(text: str | None) -> float | None:
    """The number that `text` starts with."""
    value = known(text)
    found = _NUMBER.match(value) if value else None
    return _finite(found.group()) if found else None


def _finite(digits: str) -> float | None:
    return float(digits) if len(digits) < 40 else None


def size_bytes(text: str | None, default_unit: str = "") -> int | None:
    """A size such as `143771 MiB`, `4095MB`, `64G` or a bare number in `default_unit`, in bytes.

    Units: tools that print MB mean 2**20 bytes, so every prefix is read as a power of 1024
    """
    value = known(text)
    found = _SIZED.match(value) if value else None
    if not found:
        return None
    quantity = _finite(found.group(1))
    if quantity is None or quantity < 0:
        return None
    unit = (found.group(2) or default_unit).lower().removesuffix("ytes").removesuffix("b").removesuffix("i")
    return int(quantity * 1024 ** _POWERS.get(unit, 0))


def mib(text: str | None) -> int | None:
    """Bytes of a size whose bare numbers mean MiB."""
    return size_bytes(text, "mib")


def sized(text: str | None) -> int | None:
    """Bytes of a size that has its unit; a bare number is what is left of one that was cut."""
    value = known(text)
    return size_bytes(value) if value and value[-1] in "bB" else None


def cpu_list(text: str | None) -> tuple[int, ...] | None:
    """The ids of a kernel list such as `0-3,8,12-15`; None if it is not one. Ranges over 65,536 ids are refused."""
    if text is None:
        return None
    ids: set[int] = set()
    for part in text.strip(_BLANKS).replace(" ", "").split(","):
        if not part:
            continue
        first, dash, last = part.partition("-")
        last = last.partition(":")[0]
        if not (first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit()))):
            return None
        if len(first) > 7 or len(last) > 7:
            return None
        low, high = int(first), int(last or first)
        if high - low > 65_536:
            return None
        ids.update(range(low, high + 1))
    return tuple(sorted(ids))


def format_cpu_list(ids: Iterable[int]) -> str:
    """The kernel's way to write a set of ids."""
    parts: list[str] = []
    ordered = sorted(set(ids))
    start = 0
    for n, value in enumerate(ordered):
        if n + 1 == len(ordered) or ordered[n + 1] != value + 1:
            parts.append(str(value) if ordered[start] == value else f"{ordered[start]}-{value}")
            start = n + 1
    return ",".join(parts)


def cpu_mask(text: str | None) -> tuple[int, ...] | None:
    """The ids of a kernel mask such as `0000ffff,00000000`."""
    digits = (text or "").strip(_BLANKS).replace(",", "")
    if not digits or not re.fullmatch(r"[0-9a-fA-F]{1,4096}", digits):
        return None
    bits = int(digits, 16)
    return tuple(n for n in range(bits.bit_length()) if bits >> n & 1)


def pci_address(text: str | None) -> str | None:
    """The first PCI address in `text` as domain:bus:device.function in lower case with a four-digit domain."""
    found = _ADDRESS.search(text or "")
    if not found:
        return None
    domain = int(found.group(1) or "0", 16)
    return f"{domain:04x}:{found.group(2)}:{found.group(3)}.{found.group(4)}".lower()


def key_values(lines: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    """Indent, key and value of every `key : value` line; full-width colons count."""
    for line in lines:
        head, colon, tail = line.replace("\uff1a", ":").partition(":")
        if colon and head.strip():
            expanded = line.expandtabs(8)
            yield len(expanded) - len(expanded.lstrip()), head.strip(), tail.strip()
