"""Control group limits in the forms that containers and services give them."""

from __future__ import annotations

import pytest

from hwdetect.host.cgroup import available_bytes, limit_bytes, read_cgroup
from hwdetect.tree import BundleTree

GIB = 1 << 30


def bundle(files: dict[str, str]) -> BundleTree:
    return BundleTree("".join(f"### FILE: {path}\n{text}\n" for path, text in files.items()))


V2 = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
V1 = """31 20 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 20 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 20 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset"""


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max\n", None), ("131072000\n", 131072000), ("9223372036854771712", None), ("", None), ("-1", None),
     ("1e9", None), ("0", 0), ("9" * 40, None)],
)  # fmt: skip
def test_limit_of_text(text: str, limit: int | None) -> None:
    assert limit_bytes(text) == limit


def test_v2_takes_the_smallest_limit_of_all_parents() -> None:
    found = read_cgroup(
        bundle(
            {
                "/proc/self/cgroup": "0::/a/b",
                "/proc/self/mountinfo": V2,
                "/sys/fs/cgroup/a/memory.max": str(4 * GIB),
                "/sys/fs/cgroup/a/memory.current": str(3 * GIB),
                "/sys/fs/cgroup/a/memory.stat": f"inactive_file {GIB}\nslab_reclaimable 0",
                "/sys/fs/cgroup/a/b/memory.max": str(6 * GIB),
                "/sys/fs/cgroup/a/b/cpu.max": "max 100000",
                "/sys/fs/cgroup/a/cpu.max": "250000 100000",
            }
        )
    )
    assert found.version == "2"
    assert found.memory_limit_bytes == 4 * GIB
    assert found.sources["memory_limit_bytes"] == "/sys/fs/cgroup/a/memory.max"
    assert available_bytes(found) == 2 * GIB
    assert found.cpu_quota_cpus == 2.5


def test_v2_container_namespace_reads_the_mounted_root() -> None:
    found = read_cgroup(
        bundle(
            {
                "/proc/self/cgroup": "0::/../../pod",
                "/proc/self/mountinfo": V2,
                "/sys/fs/cgroup/memory.max": str(GIB),
                "/sys/fs/cgroup/cpuset.cpus.effective": "2-3",
            }
        )
    )
    assert found.memory_limit_bytes == GIB
    assert found.cpuset_cpus == (2, 3)


def test_v1_quota_limit_and_sets() -> None:
    found = read_cgroup(
        bundle(
            {
                "/proc/self/cgroup": "5:memory:/job\n6:cpu,cpuacct:/job\n7:cpuset:/job",
                "/proc/self/mountinfo": V1,
                "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(2 * GIB),
                "/sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(GIB),
                "/sys/fs/cgroup/memory/job/memory.stat": f"total_inactive_file {GIB // 2}",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
                "/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "50000",
                "/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
                "/sys/fs/cgroup/cpuset/job/cpuset.cpus": "0-1",
                "/sys/fs/cgroup/cpuset/job/cpuset.mems": "1",
            }
        )
    )
    assert found.version == "1"
    assert (found.memory_limit_bytes, available_bytes(found)) == (2 * GIB, 2 * GIB - GIB // 2)
    assert found.cpu_quota_cpus == 0.5
    assert (found.cpuset_cpus, found.cpuset_mems) == ((0, 1), (1,))


def test_v1_mount_of_the_containers_own_group_is_not_looked_for_twice() -> None:
    """Docker with version 1 mounts the container's group itself; its long path does not exist inside."""
    found = read_cgroup(
        bundle(
            {
                "/proc/self/cgroup": "5:memory:/docker/0123",
                "/proc/self/mountinfo": "31 20 0:27 /docker/0123 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": str(GIB),
            }
        )
    )
    assert found.memory_limit_bytes == GIB


def test_no_limit_is_none_and_unlimited_v1_is_none() -> None:
    assert read_cgroup(bundle({"/proc/meminfo": "MemTotal: 1 kB"})).memory_limit_bytes is None
    files = {
        "/proc/self/cgroup": "5:memory:/",
        "/proc/self/mountinfo": V1,
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
    }
    found = read_cgroup(bundle(files))
    assert found.memory_limit_bytes is None
    assert found.cpu_quota_cpus is None


def test_usage_above_the_limit_leaves_zero_available() -> None:
    files = {
        "/proc/self/cgroup": "0::/",
        "/proc/self/mountinfo": V2,
        "/sys/fs/cgroup/memory.max": "1000",
        "/sys/fs/cgroup/memory.current": "5000",
    }
    assert available_bytes(read_cgroup(bundle(files))) == 0
