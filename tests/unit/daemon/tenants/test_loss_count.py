"""What a killed daemon had not settled is counted by the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from daemon.store.session import Store
from daemon.tenants.loss_count import LossCount
from daemon.tenants.principal import Actor
from daemon.tenants.service import TenantService
from daemon.tenants.usage import UsageSum

KILLED = """
import os, signal, sys
from pathlib import Path
from daemon.tenants.loss_count import LossCount
count = LossCount(Path(sys.argv[1]))
for _ in range(7):
    count.add()
count.settle(4)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_process_leaves_its_count(tmp_path: Path) -> None:
    path = tmp_path / "usage.count"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, env={**os.environ, "PYTHONPATH": "."})
    assert done.returncode == -signal.SIGKILL
    count = LossCount(path)
    assert count.lost == 3
    count.close()
    again = LossCount(path)
    assert again.lost == 0  # told once
    again.close()


def test_place_that_cannot_be_used_stops_nothing(tmp_path: Path) -> None:
    count = LossCount(tmp_path / "none" / "usage.count")
    count.add()
    count.settle(1)
    count.close()
    path = tmp_path / "short"
    path.write_bytes(b"x")
    whole = LossCount(path)
    assert whole.lost == 0
    whole.close()


async def test_ledger_counts_what_is_added_and_settled(store: Store, tmp_path: Path) -> None:
    actor = Actor("t", "command")
    service = TenantService(store, 10)
    await service.create_tenant(actor, "a")
    principal = service.identify((await service.issue_key(actor, "a")).secret)
    lost: list[int] = []
    service.usage.on_lost = lost.append
    service.usage.count_losses(tmp_path / "usage.count")
    for _ in range(5):
        service.usage.add(principal, "m", UsageSum(requests=1))
    await service.usage.settle()
    service.usage.add(principal, "m", UsageSum(requests=1))
    assert lost == []
    other = TenantService(store, 10)  # as after a kill: the first is never stopped
    other.usage.on_lost = lost.append
    other.usage.count_losses(tmp_path / "usage.count")
    assert lost == [1]
