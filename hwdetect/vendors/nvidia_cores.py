"""How many multiprocessors a count of scalar cores is."""

from __future__ import annotations

# Scalar cores in a multiprocessor, by compute capability.
_CORES_OF_ONE = {"6.0": 64, "7.0": 64, "7.2": 64, "7.5": 64, "8.0": 64}
_CORES_SINCE_8_6 = 128


def multiprocessors(cores: object, capability: object) -> int | None:
    """NVIDIA's tools count scalar cores; what schedules work is a multiprocessor of them. None: not known to divide."""
    if not isinstance(cores, int) or not isinstance(capability, str) or not capability[:1].isdigit():
        return None
    major, _, minor = capability.partition(".")
    since_8_6 = (int(major), int(minor or 0)) >= (8, 6)
    each = _CORES_OF_ONE.get(capability) or (_CORES_SINCE_8_6 if since_8_6 else None)
    return cores // each if each and cores % each == 0 else None
