"""Which tool to ask for each vendor, which nodes a process needs, and what to do where they are missing."""

from __future__ import annotations

from dataclasses import dataclass

from hwdetect.accelerator import Vendor


@dataclass(frozen=True, slots=True)
class Kit:
    """`nodes`: patterns of device nodes, {n} being a number; `shared`: nodes that every device of the vendor needs."""

    commands: tuple[tuple[str, ...], ...]
    nodes: tuple[str, ...]
    shared: tuple[str, ...]
    drivers: tuple[str, ...]
    driver_fix: str
    container_fix: str


KITS: dict[Vendor, Kit] = {
    Vendor.NVIDIA: Kit(
        (),
        ("/dev/nvidia{n}",),
        ("/dev/nvidiactl",),
        ("nvidia",),
        "install the NVIDIA driver and load it: sudo modprobe nvidia",
        "start the container with --gpus all, or --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=all",
    ),
    Vendor.AMD: Kit(
        (
            ("amd-smi", "static", "--json"),
            ("amd-smi", "metric", "--json"),
            ("rocm-smi", "-a", "--showmeminfo", "vram", "--json"),
        ),
        ("/dev/dri/renderD{n}",),
        ("/dev/kfd",),
        ("amdgpu",),
        "install the amdgpu driver and load it: sudo modprobe amdgpu",
        "start the container with --device /dev/kfd --device /dev/dri --group-add render",
    ),
    Vendor.INTEL: Kit(
        (("xpu-smi", "discovery", "-j"), ("xpu-smi",)),
        ("/dev/dri/renderD{n}",),
        (),
        ("xe", "i915"),
        "load Intel's driver: sudo modprobe xe",
        "start the container with --device /dev/dri --group-add render",
    ),
    Vendor.GAUDI: Kit(
        (("hl-smi",),),
        ("/dev/accel/accel{n}",),
        (),
        ("habanalabs",),
        "install the Gaudi driver and load it: sudo modprobe habanalabs",
        "start the container with --runtime=habana -e HABANA_VISIBLE_DEVICES=all",
    ),
    Vendor.ASCEND: Kit(
        (("npu-smi", "info"), ("npu-smi", "info", "-m"), ("npu-smi", "info", "-t", "topo")),
        ("/dev/davinci{n}",),
        ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
        ("drv_pcie_host", "devdrv_device_driver"),
        "install Huawei's NPU driver and firmware; check: npu-smi info",
        "start the container with --device /dev/davinciN, /dev/davinci_manager, /dev/devmm_svm and /dev/hisi_hdc",
    ),
    Vendor.MTHREADS: Kit(
        (("mthreads-gmi", "-q", "--json"), ("mthreads-gmi",)),
        ("/dev/mtgpu.{n}", "/dev/mtgpu{n}"),
        (),
        ("mtgpu",),
        "install Moore Threads' driver and load it: sudo modprobe mtgpu",
        "start the container with --runtime=mthreads -e MTHREADS_VISIBLE_DEVICES=all",
    ),
    Vendor.HYGON: Kit(
        (("hy-smi", "--showproductname", "--showmemavailable", "--showuse", "--json"), ("hy-smi",)),
        ("/dev/dri/renderD{n}",),
        ("/dev/kfd", "/dev/mkfd"),
        ("hydcu", "hycu", "hydcu-fbc"),
        "install Hygon's DTK driver and load it: sudo modprobe hydcu",
        "start the container with --device /dev/kfd --device /dev/mkfd --device /dev/dri",
    ),
    Vendor.CAMBRICON: Kit(
        (("cnmon",),),
        ("/dev/cambricon_dev{n}",),
        ("/dev/cambricon_ctl",),
        ("cambricon_drv", "cambricon-drv", "cambricon_pci_drv"),
        "install Cambricon's driver and load it: sudo modprobe cambricon-drv",
        "start the container with --device /dev/cambricon_devN --device /dev/cambricon_ctl",
    ),
    Vendor.ILUVATAR: Kit(
        (("ixsmi",),),
        ("/dev/iluvatar{n}",),
        (),
        ("iluvatar",),
        "install Iluvatar's driver and load it: sudo modprobe iluvatar",
        "start the container with --device /dev/iluvatarN",
    ),
    Vendor.METAX: Kit(
        (("mx-smi",), ("mx-smi", "topo", "-m")),
        ("/dev/dri/renderD{n}",),
        ("/dev/mxcd",),
        ("metax",),
        "install MetaX's driver and load it: sudo modprobe metax",
        "start the container with --device /dev/mxcd --device /dev/dri",
    ),
    Vendor.ENFLAME: Kit(
        (("efsmi", "-q"), ("efsmi",)),
        ("/dev/gcu{n}",),
        (),
        ("enflame", "gcu"),
        "install Enflame's driver; check: efsmi",
        "start the container with --device /dev/gcuN",
    ),
    Vendor.KUNLUNXIN: Kit(
        (("xpu-smi",),),
        ("/dev/xpu{n}",),
        ("/dev/xpuctrl",),
        ("kunlun", "xpu"),
        "install Kunlunxin's driver; check: xpu-smi",
        "start the container with --device /dev/xpuN --device /dev/xpuctrl",
    ),
    Vendor.THEAD: Kit(
        (("ppu-smi", "--query-ppu=index,name,bus_id,driver_version,memory.total,memory.used", "--format=csv"),),
        ("/dev/alixpu_ppu{n}",),
        ("/dev/alixpu", "/dev/alixpu_ctl"),
        ("alixpu",),
        "install T-Head's PPU driver; check: ppu-smi",
        "start the container with --device /dev/alixpu_ppuN --device /dev/alixpu --device /dev/alixpu_ctl",
    ),
    Vendor.BIREN: Kit(
        (("brsmi", "gpu", "--query-gpu=index,name,memory.total,memory.used", "--format=csv"),),
        ("/dev/biren/card_{n}",),
        (),
        ("biren",),
        "install Biren's driver; check: brsmi",
        "start the container with --device /dev/biren",
    ),
}  # fmt: skip
