"""How numbers, sizes and times are written. None is unknown and written `-`; 0 is a reading."""

from __future__ import annotations

UNKNOWN = "-"
_GIB = 1 << 30
_MIB = 1 << 20


def count(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """A figure a second: with a decimal where that matters."""
    return f"{value:.1f}" if value is not None and 0 < value < 10 else count(value)


def size(value_bytes: int | None) -> str:
    if value_bytes is None:
        return UNKNOWN
    if value_bytes >= _GIB:
        return f"{value_bytes / _GIB:,.1f} GiB"
    return f"{value_bytes / _MIB:,.0f} MiB" if value_bytes >= _MIB else f"{value_bytes:,} B"


def size_pair(used_bytes: int | None, of_bytes: int | None) -> str:
    """Both in the unit of the larger, as in `137.1/140.4 GiB`."""
    known = [value for value in (used_bytes, of_bytes) if value is not None]
    if not known:
        return UNKNOWN
    unit, name, digits = (_GIB, "GiB", 1) if max(known) >= _GIB else (_MIB, "MiB", 0)
    parts = [UNKNOWN if value is None else f"{value / unit:,.{digits}f}" for value in (used_bytes, of_bytes)]
    return f"{'/'.join(parts)} {name}"


def percent(value: float | None) -> str:
    """Takes a fraction of 1."""
    return UNKNOWN if value is None else f"{value * 100:.0f} %"


def millis(value_s: float | None) -> str:
    if value_s is None:
        return UNKNOWN
    return f"{value_s * 1000:,.0f} ms" if value_s < 10 else f"{value_s:,.1f} s"


def duration(value_s: float | None) -> str:
    """The two largest units, as in `4 min 29 s` or `41 d 03 h`; the second is left out where it is 0."""
    if value_s is None:
        return UNKNOWN
    seconds = max(0, int(value_s))
    for unit_s, unit, part_s, part in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= unit_s:
            whole, rest = divmod(seconds, unit_s)
            return f"{whole} {unit}" + (f" {rest // part_s:02} {part}" if rest >= part_s else "")
    return f"{seconds} s"
