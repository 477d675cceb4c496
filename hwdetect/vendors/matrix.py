"""Link matrices: `topo -m` of nvidia-smi, mx-smi and ixsmi, `-t topo` of npu-smi, `--showtopo` of rocm-smi."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hwdetect.accelerator import Link, LinkKind
from hwdetect.text import cpu_list

_COLUMN = re.compile(r"^(GPU|NPU|DCU|XPU|PPU|MLU|NIC|mlx\d*_|bnxt_re|hfi1_|roce\w*?)(\d{1,4})$")
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
    columns: list[re.Match[str]] = []
    tails: list[str] = []
    for line in text.splitlines():
        words = line.split()
        heading = [found for word in words if (found := _COLUMN.match(word))]
        is_heading = (
            len(heading) >= 1
            and bool(words)
            and _COLUMN.match(words[0])
            and (len(words) == 1 or _COLUMN.match(words[1]) or words[1].lower() in ("cpu", "numa", "node", "gpu"))
        )
        if (is_heading and len(heading) > 1) or (is_heading and len(words) > 1 and not columns):
            if columns:
                break
            columns = heading
            lower = " ".join(words).lower()
            places = sorted((lower.find(mark), name) for mark, name in _TAILS if mark in lower)
            tails = [name for _, name in places]
            continue
        if not columns or len(words) < 2:
            continue
        row = _COLUMN.match(words[0])
        if not row or row.group(1) != columns[0].group(1):
            continue
        _add_row(matrix, int(row.group(2)), columns, words[1:], tails)
    return matrix


def _add_row(matrix: Matrix, row: int, columns: list[re.Match[str]], words: list[str], tails: list[str]) -> None:
    if row in matrix.devices:
        return
    matrix.devices.append(row)
    kind = columns[0].group(1)
    for column, word in zip(columns, words, strict=False):
        if column.group(1) == kind:
            matrix.cells[row, int(column.group(2))] = word
    for name, word in zip(tails, words[len(columns) :], strict=False):
        if name == "cpu":
            ids = cpu_list(word)
            if ids:
                matrix.cpus[row] = ids
        elif name == "numa" and word.isascii() and word.isdigit() and len(word) < 6:
            matrix.numa[row] = int(word)
