"""Link matrices: `topo -m` of nvidia-smi, mx-smi and ixsmi, `-t topo` of npu-smi, `--showtopo` of rocm-smi."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hwdetect.accelerator import Link, LinkKind
from hwdetect.text import cpu_list

_DEVICE = re.compile(r"^(GPU|NPU|DCU|HCU|XPU|PPU|MLU|AIP)(\d{1,4})$")
_TAILS = (
    ("cpu affinity", "cpu"),
    ("numa affinity", "numa"),
    ("node affinity", "numa"),
    ("gpu numa id", "gpu_numa"),
)
_KINDS = {
    "PIX": LinkKind.PIX, "PXB": LinkKind.PXB, "PHB": LinkKind.PHB, "NODE": LinkKind.NODE, "SYS": LinkKind.SYS,
    "SOC": LinkKind.SYS, "PSB": LinkKind.PXB, "XGMI": LinkKind.XGMI, "HCCS": LinkKind.HCCS, "HCCS_SW": LinkKind.HCCS,
    "SIO": LinkKind.HCCS, "MX": LinkKind.METAXLINK, "MTLINK": LinkKind.MTLINK, "MT": LinkKind.MTLINK,
    "PCIE": LinkKind.PCIE, "PCI": LinkKind.PCIE, "LINK": LinkKind.VENDOR,
}  # fmt: skip
_PEER = {"OK": True, "CNS": False, "GNS": False, "TNS": False, "NS": False, "DR": False}


@dataclass
class Matrix:
    """Cells by (row, column) device number; affinities by row."""

    cells: dict[tuple[int, int], str] = field(default_factory=dict)
    cpus: dict[int, tuple[int, ...]] = field(default_factory=dict)
    numa: dict[int, int] = field(default_factory=dict)
    devices: list[int] = field(default_factory=list)

    def links(self, row: int) -> tuple[Link, ...]:
        found = [(column, label) for (r, column), label in self.cells.items() if r == row and column != row]
        return tuple(link(column, label) for column, label in sorted(found))


def link(peer: int | None, label: str) -> Link:
    """The link that a cell such as NV18, PHB, HCCS or GNS stands for."""
    name = label.strip().upper()
    bonded = re.fullmatch(r"NV(\d{1,3})", name)
    if bonded:
        return Link(peer, LinkKind.NVLINK, name, lanes=int(bonded.group(1)))
    lanes = re.fullmatch(r"(MX|MT|MTLINK|XGMI|HCCS)-?(\d{1,3})", name)
    if lanes:
        return Link(peer, _KINDS[lanes.group(1)], name, lanes=int(lanes.group(2)))
    if name in _PEER:
        return Link(peer, LinkKind.UNKNOWN, name, peer_access=_PEER[name])
    return Link(peer, _KINDS.get(name, LinkKind.UNKNOWN), name)


def parse(text: str) -> Matrix:
    """The first matrix in the text. Rows and columns of network cards are left out; a repeated row counts once."""
    matrix = Matrix()
    columns: list[str] = []
    tails: list[str] = []
    for line in text.splitlines():
        words = line.split()
        heading = _heading(words)
        if heading is not None:
            if columns:
                break
            columns, tails = heading
        elif columns and len(words) >= 2 and (row := _DEVICE.match(words[0])) and row.group(1) == _kind(columns):
            _add_row(matrix, int(row.group(2)), columns, words[1:], tails)
    return matrix


def _heading(words: list[str]) -> tuple[list[str], list[str]] | None:
    """Column names and affinity columns of a heading line; None for any other line."""
    if not words or not _DEVICE.match(words[0]):
        return None
    lower = [word.lower() for word in words]
    # The tails: "CPU Affinity", "NUMA Affinity", "Node Affinity" and "GPU NUMA ID"
    pairs = list(zip(lower, [*lower[1:], ""], strict=True))
    cut = next(
        (n for n, pair in enumerate(pairs) if n and (pair[1] == "affinity" or pair == ("gpu", "numa"))), len(words)
    )
    columns = words[:cut]
    # A row begins like a heading; its second word is a link, not a name
    if len(columns) > 1 and not (_DEVICE.match(columns[1]) or _looks_like_names(columns[1:])):
        return None
    if len(columns) == 1 and cut == len(words):
        return None
    tail = " ".join(lower[cut:])
    places = sorted((tail.find(mark), name) for mark, name in _TAILS if mark in tail)
    return columns, [name for _, name in places]


def _looks_like_names(words: list[str]) -> bool:
    """True for columns such as mlx5_0 or NIC2: cells are X, a link's name or numbers."""
    return all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*\d", word) and not re.fullmatch(r"NV\d+", word) for word in words)


def _kind(columns: list[str]) -> str:
    first = _DEVICE.match(columns[0])
    return first.group(1) if first else ""


def _add_row(matrix: Matrix, row: int, columns: list[str], words: list[str], tails: list[str]) -> None:
    if row in matrix.devices:
        return
    matrix.devices.append(row)
    kind = _kind(columns)
    for column, word in zip(columns, words, strict=False):
        device = _DEVICE.match(column)
        if device and device.group(1) == kind:
            matrix.cells[row, int(device.group(2))] = word
    for name, word in zip(tails, words[len(columns) :], strict=False):
        if name == "cpu":
            ids = cpu_list(word)
            if ids:
                matrix.cpus[row] = ids
        elif name == "numa" and word.isascii() and word.isdigit() and len(word) < 6:
            matrix.numa[row] = int(word)
