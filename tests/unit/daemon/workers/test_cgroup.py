"""Control groups of workers on a recorded tree: split, limited, removed; and refused where they are not ours."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.workers.cgroup import CgroupTree
from daemon.workers.oom import OomCounter, kernel_log_of
from daemon.workers.process import Spawner
from engine.errors import ConfigError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/bayard.service\n")
    group = tmp_path / "sys/fs/cgroup/system.slice/bayard.service"
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text("11\n12\n")
    (group / "cgroup.controllers").write_text("cpuset cpu memory pids\n")
    (group / "cgroup.subtree_control").write_text("")
    return tmp_path


def test_tree_is_split_and_a_worker_gets_its_limit(root: Path) -> None:
    tree = CgroupTree.take_over(6 << 30, root)
    assert (tree.folder / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    assert (tree.folder / "daemon/cgroup.procs").read_text() == "12"  # a real file keeps only the last
    group = tree.make("org/model:q4-0")
    assert group.name == "worker-org_model_q4-0"
    assert (group / "memory.max").read_text() == str(6 << 30)
    (group / "memory.events").write_text("low 0\noom_kill 1\n")
    before = OomCounter(0, None)
    assert OomCounter.of(group).since(before) == "out of memory in the service's control group; its limit is 6.0 GiB"
    for name in ("memory.max", "memory.events"):
        (group / name).unlink()  # the kernel's own files do not keep a group from being removed
    tree.remove("org/model:q4-0")
    assert not group.exists()
    tree.remove("org/model:q4-0")


def test_group_that_is_not_ours_is_a_matter_of_configuration(root: Path) -> None:
    (root / "sys/fs/cgroup/system.slice/bayard.service/cgroup.controllers").unlink()
    with pytest.raises(ConfigError, match="Delegate=memory pids cpu"):
        CgroupTree.take_over(None, root)
    (root / "proc/self/cgroup").write_text("4:memory:/x\n")
    with pytest.raises(ConfigError, match="no control group of version 2"):
        CgroupTree.take_over(None, root)


def test_kernel_log_names_the_process_it_killed(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("3,1,2,-;Out of memory: Killed process 77 (python) total-vm:1kB\n")
    assert kernel_log_of(77, log).endswith("Out of memory: Killed process 77 (python) total-vm:1kB")
    assert kernel_log_of(7, log) == ""
    assert kernel_log_of(77, tmp_path / "none") == ""
    assert kernel_log_of(None, log) == ""


@pytest.fixture
def real_root(tmp_path: Path) -> Iterator[Path]:
    """This kernel's own version 2 tree, with a group of ours that holds one process and is said to be the daemon's."""
    mount = tmp_path / "sys/fs/cgroup"
    mount.mkdir(parents=True)
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "cgroup2", "none", str(mount)], capture_output=True, check=False).returncode
    ):
        pytest.skip("the tree of control groups cannot be mounted here")
    group = mount / f"bayard-test-{os.getpid()}"
    group.mkdir()
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"0::/{group.name}\n")
    try:
        yield tmp_path
    finally:
        for folder in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
            folder.rmdir()
        group.rmdir()
        subprocess.run(["umount", "--lazy", str(mount)], check=True)


async def test_worker_starts_in_its_own_group_of_the_kernel(real_root: Path, spawner: Spawner, tmp_path: Path) -> None:
    (group,) = (real_root / "sys/fs/cgroup").glob("bayard-test-*")
    with subprocess.Popen(["sleep", "600"]) as daemon:  # noqa: ASYNC220  # it returns at once
        (group / "cgroup.procs").write_text(str(daemon.pid))
        tree = CgroupTree.take_over(None, real_root)
        assert f"/{group.name}/daemon" in Path(f"/proc/{daemon.pid}/cgroup").read_text()
        program = [sys.executable, "-c", "import os; print(os.getpid(), flush=True); import time; time.sleep(600)"]
        made = tree.make("org/model")
        process = await spawner.spawn(program, env={}, log_path=tmp_path / "log", log_bytes=4096, cgroup=made)
        assert f"/{group.name}/worker-org_model" in Path(f"/proc/{process.pid}/cgroup").read_text()
        assert str(process.pid) in (made / "cgroup.procs").read_text().split()
        process.send(signal.SIGKILL)
        await asyncio.wait_for(process.exited, 10)
        tree.remove("org/model")
        assert not made.exists()
        daemon.kill()
