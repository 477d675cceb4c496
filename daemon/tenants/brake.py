"""Brake: an address that tries keys is made to wait, longer each time; keys that it used before go on working."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from engine.errors import TooManyAttempts

FREE_FAILURES = 10  # a mistyped configuration, restarted a few times
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 300.0
FORGET_S = 900.0  # without a failure
MAX_ADDRESSES = 10_000
MAX_KNOWN = 10_000


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last_mono: float = 0.0
    until_mono: float = 0.0


class Brake:
    """Owner: TenantService. Both memories are bounded: the oldest is forgotten first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, _Failures] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.refusals = 0  # since the daemon's start, for the metric

    def check(self, address: str | None, digest: str) -> None:
        """Raises: TooManyAttempts while the address has to wait, whether or not the key would be right"""
        if address is None:
            return
        group = group_of(address)
        failures = self._failed.get(group)
        if failures is None or (group, digest) in self._known:
            return
        wait_s = failures.until_mono - self._clock()
        if wait_s > 0:
            self.refusals += 1
            raise TooManyAttempts(
                f"{failures.count} wrong keys came from {address}; it has to wait.",
                f"Try again in {wait_s:.0f} s, with the right key.",
                retry_after_s=wait_s,
            )

    def failed(self, address: str | None) -> None:
        if address is None:
            return
        now = self._clock()
        group = group_of(address)
        failures = self._failed.pop(group, None)
        if failures is None or now - failures.last_mono > FORGET_S:
            failures = _Failures()
        failures.count += 1
        failures.last_mono = now
        surplus = failures.count - FREE_FAILURES
        if surplus >= 0:
            failures.until_mono = now + min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(surplus, 16))
        self._failed[group] = failures
        while len(self._failed) > MAX_ADDRESSES:
            self._failed.popitem(last=False)

    def succeeded(self, address: str | None, digest: str) -> None:
        if address is None:
            return
        pair = (group_of(address), digest)
        if pair in self._known:
            return
        self._known[pair] = None
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)


def group_of(address: str) -> str:
    """The address, or for IPv6 its /64: one machine has all of that."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((parsed, 64), strict=False))
