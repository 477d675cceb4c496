"""PCI vendors that make accelerators, the classes theirs come in, and the names of known products."""

from __future__ import annotations

from dataclasses import dataclass

from hwdetect.accelerator import Vendor


@dataclass(frozen=True, slots=True)
class PciVendor:
    """`classes` are prefixes of the class code: 03 display, 0b40 co-processor, 12 processing accelerator."""

    vendor: Vendor
    names: tuple[str, ...]  # as pci.ids and lspci print them, lower case
    classes: tuple[str, ...]
    device_prefixes: tuple[str, ...] = ()  # only these device ids, where the vendor's others share the class


VENDORS: dict[str, PciVendor] = {
    "10de": PciVendor(Vendor.NVIDIA, ("nvidia",), ("0300", "0302")),
    "1002": PciVendor(Vendor.AMD, ("advanced micro devices", "amd/ati"), ("0300", "0302", "0380", "12")),
    "8086": PciVendor(Vendor.INTEL, ("intel corporation", "intel(r)"), ("0300", "0302", "0380")),
    "1da3": PciVendor(Vendor.GAUDI, ("habana",), ("12", "0880", "0b40")),
    # HiSilicon's compression and crypto engines share id and class with the NPUs, its iBMC is a display
    "19e5": PciVendor(Vendor.ASCEND, ("huawei", "hisilicon"), ("12",), ("d",)),
    "1ed5": PciVendor(Vendor.MTHREADS, ("moore threads",), ("0300", "0302", "0380")),
    "1d94": PciVendor(Vendor.HYGON, ("chengdu haiguang", "haiguang", "hygon"), ("0b40", "0302", "0380")),
    "cabc": PciVendor(Vendor.CAMBRICON, ("cambricon",), ("0300", "0302", "0380", "0b40", "12")),
    "1e3e": PciVendor(Vendor.ILUVATAR, ("iluvatar",), ("0302", "12")),
    "9999": PciVendor(Vendor.METAX, ("metax",), ("0300", "0302", "0380", "12")),
    "1e36": PciVendor(Vendor.ENFLAME, ("enflame",), ("12",)),
    "1d22": PciVendor(Vendor.KUNLUNXIN, ("baidu", "kunlun"), ("0b40", "12")),
    # Alibaba's other devices under this id are network cards and ports
    "1ded": PciVendor(Vendor.THEAD, ("alibaba", "t-head"), ("0300", "0302", "0380", "0b40", "12")),
}

CLASSES = {
    "vga compatible controller": "0300", "3d controller": "0302", "display controller": "0380",
    "processing accelerators": "1200", "co-processor": "0b40", "bridge": "0680", "audio device": "0403",
    "multimedia audio controller": "0401", "ethernet controller": "0200", "infiniband controller": "0207",
    "system peripheral": "0880", "encryption controller": "1080", "signal processing controller": "1180",
}  # fmt: skip

PRODUCTS = {
    "10de:1db4": "NVIDIA Tesla V100-PCIE-16GB", "10de:1db6": "NVIDIA Tesla V100-PCIE-32GB",
    "10de:1eb8": "NVIDIA Tesla T4",
    "10de:20b0": "NVIDIA A100 SXM4 40GB", "10de:20b2": "NVIDIA A100 SXM4 80GB", "10de:20bd": "NVIDIA A800 SXM4 40GB",
    "10de:2206": "NVIDIA GeForce RTX 3080", "10de:2236": "NVIDIA A10", "10de:2324": "NVIDIA H800",
    "10de:2329": "NVIDIA H20", "10de:2330": "NVIDIA H100 SXM5", "10de:2335": "NVIDIA H200 SXM",
    "10de:233b": "NVIDIA H200 NVL", "10de:2342": "NVIDIA GH200", "10de:2901": "NVIDIA B200",
    "10de:2684": "NVIDIA GeForce RTX 4090", "10de:2b85": "NVIDIA GeForce RTX 5090", "10de:26b9": "NVIDIA L40S",
    "10de:26ba": "NVIDIA L20", "10de:2bb1": "NVIDIA RTX PRO 6000", "10de:2bb4": "NVIDIA RTX PRO 6000",
    "10de:2bb5": "NVIDIA RTX PRO 6000", "10de:2e12": "NVIDIA GB10",
    "1002:738c": "AMD Instinct MI100", "1002:740c": "AMD Instinct MI250X", "1002:740f": "AMD Instinct MI210",
    "1002:74a0": "AMD Instinct MI300A", "1002:74a1": "AMD Instinct MI300X", "1002:74a2": "AMD Instinct MI308X",
    "1002:74a5": "AMD Instinct MI325X", "1002:75a0": "AMD Instinct MI350X", "1002:744c": "AMD Radeon RX 7900 XT/XTX",
    "1002:66a1": "AMD Radeon Instinct MI50/MI60", "1002:73df": "AMD Navi 22", "1002:6861": "AMD Vega 10",
    "8086:e20b": "Intel Arc B580", "8086:0bd5": "Intel Data Center GPU Max 1550",
    "8086:0bd6": "Intel Data Center GPU Max 1550", "8086:0bd9": "Intel Data Center GPU Max 1100",
    "8086:0bda": "Intel Data Center GPU Max 1100", "8086:0bdb": "Intel Data Center GPU Max 1100",
    "1da3:1000": "Intel Gaudi", "1da3:1020": "Intel Gaudi2", "1da3:1060": "Intel Gaudi3", "1da3:1063": "Intel Gaudi3",
    "19e5:d500": "Ascend 310P", "19e5:d802": "Ascend 910B", "19e5:d803": "Ascend 910C",
    "1ed5:0222": "MTT S3000", "1ed5:0201": "MTT S80", "1ed5:0323": "MTT S4000", "1ed5:0327": "MTT S4000",
    "1ed5:0328": "MTT S4000",
    "1e36:c035": "Enflame S60", "1e36:c033": "Enflame S60G", "1e36:c031": "Enflame S30", "1e36:c041": "Enflame L300",
    "1e36:c042": "Enflame L600",
    "cabc:0270": "Cambricon MLU270", "cabc:0370": "Cambricon MLU370", "1e3e:0002": "Iluvatar MR-V100",
    "9999:0a01": "MetaX C500", "1d22:3684": "Kunlun", "1d22:3685": "Kunlun2 (virtual function)",
}  # fmt: skip


def vendor_of(vendor_id: str | None, text: str = "") -> PciVendor | None:
    """By id, else by the vendor's name in the text that lspci prints."""
    if vendor_id:
        return VENDORS.get(vendor_id)
    lowered = text.lower()
    return next((v for v in VENDORS.values() if any(name in lowered for name in v.names)), None)


def vendor_id_of(vendor: Vendor) -> str | None:
    return next((key for key, value in VENDORS.items() if value.vendor is vendor), None)
