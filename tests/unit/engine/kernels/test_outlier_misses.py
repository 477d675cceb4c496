from __future__ import annotations

import torch

from engine.kernels.outlier_misses import MAX_COUNTERS, OutlierMisses, misses_of

CPU = torch.device("cpu")


def test_nothing_is_counted_before_somebody_counts() -> None:
    assert OutlierMisses(CPU).total() is None


def test_total_is_that_of_all_counters_each_of_its_own() -> None:
    misses = OutlierMisses(CPU)
    first, second = misses.counter(), misses.counter()
    first += 3
    second += 4
    assert (int(first), int(second), misses.total()) == (3, 4, 7)


def test_counters_beyond_the_room_share_the_last_one() -> None:
    misses = OutlierMisses(CPU)
    counters = [misses.counter() for _ in range(MAX_COUNTERS + 2)]
    for counter in counters:
        counter += 1
    assert misses.total() == MAX_COUNTERS + 2


def test_a_device_has_one_whether_or_not_its_number_is_said() -> None:
    assert misses_of(CPU) is misses_of(torch.device("cpu", 0))
