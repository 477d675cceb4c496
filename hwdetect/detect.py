"""Turn a machine into one description. Blocks for up to a few seconds: tools are given three each."""

from __future__ import annotations

from pathlib import Path

from hwdetect.host.cgroup import read_cgroup
from hwdetect.host.cpu import read_cpu
from hwdetect.host.disks import read_disks
from hwdetect.host.identity import read_host
from hwdetect.host.memory import read_memory, read_numa
from hwdetect.machine import Machine
from hwdetect.probe import find_accelerators, memory_nodes
from hwdetect.tree import FolderTree, Tree


def detect(
    root: Path = Path("/"), *, state_dir: Path | None = None, memory_setting_bytes: int | None = None
) -> Machine:
    """Describe the machine whose files lie under `root`; only for `/` are tools and libraries asked as well."""
    return detect_tree(FolderTree(root), state_dir=state_dir, memory_setting_bytes=memory_setting_bytes)


def detect_tree(tree: Tree, *, state_dir: Path | None = None, memory_setting_bytes: int | None = None) -> Machine:
    """The same for any tree: a folder, or a bundle of files in one text."""
    cgroup = read_cgroup(tree)
    host = read_host(tree)
    numa = read_numa(tree, memory_nodes(tree), cgroup.cpuset_mems)
    memory = read_memory(tree, numa, cgroup, memory_setting_bytes)
    accelerators, notes = find_accelerators(tree, host, memory)
    return Machine(
        host=host,
        cpu=read_cpu(tree, cgroup),
        numa=numa,
        memory=memory,
        cgroup=cgroup,
        accelerators=accelerators,
        disks=read_disks(tree, (state_dir,) if state_dir else ()),
        notes=notes,
    )
