"""Multiprocessors from scalar cores, with counts that datasheets give for both."""

from __future__ import annotations

import pytest

from hwdetect.vendors.nvidia_cores import multiprocessors


@pytest.mark.parametrize(
    ("cores", "capability", "expected"),
    [
        (16896, "9.0", 132),  # H200, as NVML says it
        (6912, "8.0", 108),  # A100
        (16384, "8.9", 128),  # RTX 4090
        (10496, "8.6", 82),  # RTX 3090
        (2560, "7.5", 40),  # T4
        (5120, "7.0", 80),  # V100
        (2560, "6.1", None),  # a generation we hold no figure for
        (16895, "9.0", None),
        (16896, None, None),
        (None, "9.0", None),
    ],
)
def test_multiprocessors_of_known_generations(cores, capability, expected):
    assert multiprocessors(cores, capability) == expected
