"""Limits of this process' control groups: version 1, version 2, both at once, and the old /dev/cpuset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hwdetect.machine import Cgroup
from hwdetect.text import cpu_list
from hwdetect.tree import Tree, line

# Version 1 writes "no limit" as the largest page-aligned 63-bit number; nothing real comes near 2**60.
_NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class Mount:
    point: str
    root: str  # which part of the hierarchy is mounted here
    kind: str  # cgroup, cgroup2, cpuset
    options: frozenset[str]


def read_cgroup(tree: Tree) -> Cgroup:
    """What limits this process, from the leaf group up to the root that is visible."""
    mounts = list(_mounts(tree))
    memberships = _memberships(tree)
    version = _version(mounts, tree)
    memory = _Memory(tree, _folders(tree, mounts, memberships, "memory"))
    cpus, mems = _cpuset(tree, _folders(tree, mounts, memberships, "cpuset"))
    quota = _quota(tree, _folders(tree, mounts, memberships, "cpu"))
    facts = Cgroup.of("cgroup", version=version, path=memberships.get("memory", memberships.get("")))
    facts = facts.with_facts(
        memory.source or "cgroup",
        memory_limit_bytes=memory.limit_bytes,
        memory_high_bytes=memory.high_bytes,
        memory_used_bytes=memory.used_bytes,
        memory_reclaimable_bytes=memory.reclaimable_bytes,
    )
    if quota:
        facts = facts.with_facts(quota[1], cpu_quota_cpus=quota[0])
    if cpus:
        facts = facts.with_facts(cpus[1], cpuset_cpus=cpus[0])
    if mems:
        facts = facts.with_facts(mems[1], cpuset_mems=mems[0])
    return facts


def limit_bytes(text: str | None) -> int | None:
    """The number in a limit file; None for `max`, for version 1's huge number and for anything else."""
    value = (text or "").strip()
    if not (value.isascii() and value.isdigit()) or len(value) > 20:
        return None
    limit = int(value)
    return limit if limit < _NO_LIMIT_BYTES else None


def available_bytes(cgroup: Cgroup) -> int | None:
    """What the group that binds can still take: its limit less what it uses and could not give back."""
    if cgroup.memory_limit_bytes is None or cgroup.memory_used_bytes is None:
        return cgroup.memory_limit_bytes
    held = max(0, cgroup.memory_used_bytes - (cgroup.memory_reclaimable_bytes or 0))
    return max(0, cgroup.memory_limit_bytes - held)


def _mounts(tree: Tree) -> Iterator[Mount]:
    for entry in (tree.read("/proc/self/mountinfo") or "").splitlines():
        head, dash, tail = entry.partition(" - ")
        left, right = head.split(), tail.split()
        if dash and len(left) >= 5 and len(right) >= 3 and right[0] in ("cgroup", "cgroup2", "cpuset"):
            yield Mount(left[4], left[3], right[0], frozenset(right[2].split(",")))
            continue
    if tree.exists("/proc/self/mountinfo"):
        return
    for entry in (tree.read("/proc/mounts") or tree.read("/proc/self/mounts") or "").splitlines():
        fields = entry.split()
        if len(fields) >= 4 and fields[2] in ("cgroup", "cgroup2", "cpuset"):
            yield Mount(fields[1], "/", fields[2], frozenset(fields[3].split(",")))


def _memberships(tree: Tree) -> dict[str, str]:
    """Controller -> path of this process' group; the empty name is version 2's one hierarchy."""
    found: dict[str, str] = {}
    for entry in (tree.read("/proc/self/cgroup") or "").splitlines():
        _, _, rest = entry.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon:
            for controller in controllers.split(","):
                found[controller] = path.strip()
    cpuset = line(tree, "/proc/self/cpuset")
    if cpuset:
        found["cpuset"] = cpuset
    return found


def _version(mounts: list[Mount], tree: Tree) -> str | None:
    kinds = {mount.kind for mount in mounts}
    if not kinds:
        return "2" if tree.exists("/sys/fs/cgroup/cgroup.controllers") else None
    if "cgroup2" not in kinds:
        return "1"
    controllers = {"memory", "cpu", "cpuset"}
    return "hybrid" if any(m.kind == "cgroup" and m.options & controllers for m in mounts) else "2"


def _folders(tree: Tree, mounts: list[Mount], memberships: dict[str, str], controller: str) -> list[str]:
    """Folders of this process' groups that may hold the controller's files, leaf first, hierarchy by hierarchy."""
    chosen = [m for m in mounts if m.kind == "cgroup" and controller in m.options]
    chosen += [m for m in mounts if m.kind == "cgroup2"]
    if controller == "cpuset":
        chosen += [m for m in mounts if m.kind == "cpuset"]
    if not chosen:
        chosen = [
            Mount(point, "/", "cgroup", frozenset())
            for point in (f"/sys/fs/cgroup/{controller}", "/sys/fs/cgroup")
            if tree.exists(point)
        ]
    folders: list[str] = []
    for mount in chosen:
        named = memberships.get("", memberships.get(controller, "/")) if mount.kind == "cgroup2" else None
        folders += _ancestry(tree, mount, named if named is not None else memberships.get(controller, "/"))
        if mount.kind == "cgroup2" and controller in memberships and memberships[controller] != named:
            folders += _ancestry(tree, mount, memberships[controller])
    return list(dict.fromkeys(folders))


def _ancestry(tree: Tree, mount: Mount, path: str) -> list[str]:
    if ".." in path.split("/"):
        path = "/"  # the group lies outside this namespace: only what is mounted can be read
    if mount.root != "/":
        inside = path == mount.root or path.startswith(mount.root.rstrip("/") + "/")
        path = path[len(mount.root) :] if inside else "/"
    parts = [part for part in path.split("/") if part]
    base = mount.point.rstrip("/")
    folders = ["/".join([base, *parts[:count]]) for count in range(len(parts), -1, -1)]
    return [folder for folder in folders if tree.exists(folder)]


class _Memory:
    """The binding memory limit among a process' groups and what its group uses. Owner: read_cgroup."""

    def __init__(self, tree: Tree, folders: list[str]) -> None:
        self.limit_bytes: int | None = None
        self.high_bytes: int | None = None
        self.used_bytes: int | None = None
        self.reclaimable_bytes: int | None = None
        self.source = ""
        for folder in folders:
            self._consider(tree, folder)

    def _consider(self, tree: Tree, folder: str) -> None:
        for name, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit = limit_bytes(tree.read(f"{folder}/{name}"))
            if limit is None or (self.limit_bytes is not None and limit >= self.limit_bytes):
                continue
            self.limit_bytes, self.source = limit, f"{folder}/{name}"
            self.used_bytes = limit_bytes(tree.read(f"{folder}/{usage}"))
            self.reclaimable_bytes = _reclaimable(tree.read(f"{folder}/memory.stat"))
        high = limit_bytes(tree.read(f"{folder}/memory.high"))
        if high is not None:
            self.high_bytes = high if self.high_bytes is None else min(high, self.high_bytes)


def _reclaimable(stat: str | None) -> int | None:
    values: dict[str, int] = {}
    for entry in (stat or "").splitlines():
        name, _, digits = entry.partition(" ")
        if digits.strip().isascii() and digits.strip().isdigit():
            values[name] = int(digits)
    if "total_inactive_file" in values:
        return values["total_inactive_file"]
    if "inactive_file" in values:
        return values["inactive_file"] + values.get("slab_reclaimable", 0)
    return None


def _quota(tree: Tree, folders: list[str]) -> tuple[float, str] | None:
    best: tuple[float, str] | None = None
    for folder in folders:
        fields = (tree.read(f"{folder}/cpu.max") or "").split()
        source = f"{folder}/cpu.max"
        if not fields:
            source = f"{folder}/cpu.cfs_quota_us"
            fields = [line(tree, source) or "", line(tree, f"{folder}/cpu.cfs_period_us") or "100000"]
        quota = limit_bytes(fields[0])
        period = limit_bytes(fields[1]) if len(fields) > 1 else 100_000
        if quota and period and (best is None or quota / period < best[0]):
            best = (quota / period, source)
    return best


_IdsAndSource = tuple[tuple[int, ...], str]
# In version 1 a group's own list is what its tasks get; the effective one is for mounts in version 2's mode, and of a
# recorded machine it can be older than the list
_CPU_FILES = ("cpuset.cpus.effective", "cpuset.cpus", "cpuset.effective_cpus", "cpus")
_NODE_FILES = ("cpuset.mems.effective", "cpuset.mems", "cpuset.effective_mems", "mems")


def _cpuset(tree: Tree, folders: list[str]) -> tuple[_IdsAndSource | None, _IdsAndSource | None]:
    cpus: _IdsAndSource | None = None
    mems: _IdsAndSource | None = None
    for folder in folders:
        cpus = cpus or _ids(tree, folder, _CPU_FILES)
        mems = mems or _ids(tree, folder, _NODE_FILES)
    return cpus, mems


def _ids(tree: Tree, folder: str, names: tuple[str, ...]) -> _IdsAndSource | None:
    for name in names:
        ids = cpu_list(tree.read(f"{folder}/{name}"))
        if ids:
            return ids, f"{folder}/{name}"
    return None
