"""Which machine this is and what it runs in: kernel, product, container, hypervisor, WSL."""

from __future__ import annotations

import os
import platform
import socket

from hwdetect.machine import Host
from hwdetect.tree import Tree, line

_DMI = "/sys/class/dmi/id"
_CONTAINER_MARKS = (
    ("docker", "docker"), ("kubepods", "kubernetes"), ("containerd", "kubernetes"), ("libpod", "podman"),
    ("/lxc", "lxc"), ("machine.slice", "systemd-nspawn"),
)  # fmt: skip
_HYPERVISORS = (
    ("kvm", "KVM"), ("qemu", "QEMU"), ("vmware", "VMware"), ("virtualbox", "VirtualBox"), ("xen", "Xen"),
    ("microsoft corporation virtual", "Hyper-V"), ("amazon ec2", "Amazon EC2"),
    ("google compute", "Google Compute Engine"),
    ("openstack", "OpenStack"), ("alibaba cloud", "Alibaba Cloud"), ("tencent cloud", "Tencent Cloud"),
)  # fmt: skip


def read_host(tree: Tree) -> Host:
    version = line(tree, "/proc/version") or ""
    words = version.split()
    kernel = words[2] if version.startswith("Linux version ") and len(words) > 2 else None
    kernel = line(tree, "/proc/sys/kernel/osrelease") or kernel
    host = Host.of(
        "/proc/version",
        kernel=kernel,
        system=_os_name(tree),
        hostname=line(tree, "/proc/sys/kernel/hostname") or line(tree, "/etc/hostname"),
        wsl="microsoft" in version.lower() if version else None,
    )
    vendor = line(tree, f"{_DMI}/sys_vendor")
    product = line(tree, f"{_DMI}/product_name") or line(tree, "/proc/device-tree/model")
    host = host.with_facts(_DMI, vendor=vendor, product=product)
    host = host.with_facts("container marks", container=_container(tree))
    host = host.with_facts(_DMI, hypervisor=_hypervisor(tree, vendor, product))
    if tree.is_live:
        host = host.filled_from(
            Host.of("uname", kernel=platform.release(), hostname=socket.gethostname(), architecture=platform.machine())
        )
    return host


def _os_name(tree: Tree) -> str | None:
    for entry in (tree.read("/etc/os-release") or tree.read("/usr/lib/os-release") or "").splitlines():
        if entry.startswith("PRETTY_NAME="):
            return entry.partition("=")[2].strip().strip("\"'") or None
    return None


def _container(tree: Tree) -> str | None:
    if tree.exists("/run/.containerenv"):
        return "podman"
    if tree.exists("/var/run/secrets/kubernetes.io") or tree.exists("/run/secrets/kubernetes.io"):
        return "kubernetes"
    if tree.exists("/.dockerenv"):
        return "docker"
    groups = tree.read("/proc/self/cgroup")
    for mark, name in _CONTAINER_MARKS:
        if groups and mark in groups:
            return name
    if tree.is_live:
        return os.environ.get("container") or _init_container(tree) or "none"  # noqa: SIM112
    return None if groups is None else "none"


def _init_container(tree: Tree) -> str | None:
    # Readable by root only: elsewhere the marks above are all there is
    for entry in (tree.read("/proc/1/environ") or "").split("\0"):
        if entry.startswith("container="):
            return entry.partition("=")[2] or None
    return None


def _hypervisor(tree: Tree, vendor: str | None, product: str | None) -> str | None:
    described = f"{vendor or ''} {product or ''}".lower()
    for mark, name in _HYPERVISORS:
        if mark in described:
            return name
    kind = line(tree, "/sys/hypervisor/type")
    if kind:
        return kind.capitalize()
    flags = tree.read("/proc/cpuinfo") or ""
    return "unnamed" if " hypervisor" in flags[:20_000] else None
