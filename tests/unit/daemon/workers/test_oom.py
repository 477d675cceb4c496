"""Out of memory, told from other kills by the control group's own counters."""

from __future__ import annotations

from pathlib import Path

from daemon.workers.oom import OomCounter


def group_v2(root: Path, kills: int, limit: str) -> Path:
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text("0::/system.slice/bayard.service\n")
    folder = root / "sys/fs/cgroup/system.slice/bayard.service"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.events").write_text(f"low 0\nhigh 0\nmax 9\noom 2\noom_kill {kills}\noom_group_kill 0\n")
    (folder / "memory.max").write_text(limit + "\n")
    return root


def test_risen_counter_is_out_of_memory_with_the_limit(tmp_path: Path) -> None:
    before = OomCounter.read(group_v2(tmp_path, 3, str(4 << 30)))
    after = OomCounter.read(group_v2(tmp_path, 4, str(4 << 30)))
    assert after.since(before) == "out of memory in the service's control group; its limit is 4.0 GiB"
    assert before.since(before) == ""


def test_no_limit_is_not_a_number(tmp_path: Path) -> None:
    assert OomCounter.read(group_v2(tmp_path, 0, "max")) == OomCounter(0, None)


def test_version_1_is_understood(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("11:cpu,cpuacct:/x\n7:memory:/x\n0::/\n")
    folder = tmp_path / "sys/fs/cgroup/memory/x"
    folder.mkdir(parents=True)
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert OomCounter.read(tmp_path) == OomCounter(5, None)


def test_nothing_known_blames_nothing(tmp_path: Path) -> None:
    nothing = OomCounter.read(tmp_path)
    assert nothing == OomCounter(None, None)
    assert OomCounter(3, None).since(nothing) == ""
    assert nothing.since(OomCounter(3, None)) == ""


def test_this_machine_can_be_read() -> None:
    found = OomCounter.read()
    assert found.kills is None or found.kills >= 0
