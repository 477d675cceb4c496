"""Control groups of workers on a recorded tree: split, limited, removed; and refused where they are not ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.workers.cgroup import CgroupTree
from daemon.workers.oom import OomCounter, kernel_log_of
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
