"""lscpu's text, also in a language: keys are looked up by what they mean, colons may be full-width."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from hwdetect import jsontext
from hwdetect.host.arm import hexadecimal, implementer_name
from hwdetect.host.isa import isa_levels
from hwdetect.machine import Cpu, NumaNode
from hwdetect.text import cpu_list, integer, key_values, known, number, size_bytes

# meaning -> keys in English, Chinese, German, French, Japanese, Spanish, Portuguese, Russian and Polish, lower case
_KEYS: dict[str, tuple[str, ...]] = {
    "architecture": (
        "architecture", "架构", "architektur", "アーキテクチャ", "アーキテクチャー", "arquitectura", "arquitetura",
        "архитектура", "architektura",
    ),
    "cpus": ("cpu(s)", "cpu", "processeur(s)"),
    "online": (
        "on-line cpu(s) list", "在线 cpu 列表", "在线cpu列表", "liste der online-cpu(s)",
        "liste de processeur(s) en ligne", "オンラインになっている cpu のリスト", "lista de la(s) cpu(s) en línea",
        "lista de cpu(s) on-line", "lista aktywnych cpu",
    ),
    "threads": (
        "thread(s) per core", "每个核的线程数", "thread(s) pro kern", "thread(s) par cœur", "thread(s) par coeur",
        "コアあたりのスレッド数", "hilo(s) de procesamiento por núcleo", "thread(s) per núcleo", "потоков на ядро",
        "wątków na rdzeń",
    ),
    "cores": (
        "core(s) per socket", "每个座的核数", "每个插座的核数", "kern(e) pro sockel", "kern(e) pro socket",
        "cœur(s) par socket", "coeur(s) par socket", "ソケットあたりのコア数", "núcleo(s) por «socket»",
        "núcleo(s) por soquete", "ядер на сокет", "rdzeni na gniazdo",
    ),
    "clustered_cores": ("core(s) per cluster", "每个集群的核数", "每个簇的核数"),
    "clusters": ("cluster(s)", "集群", "簇"),
    "sockets": (
        "socket(s)", "座", "插座", "sockel", "ソケット数", "«socket(s)»", "cpu socket(s)", "soquete(s)", "сокетов",
        "gniazd",
    ),
    "nodes": (
        "numa node(s)", "numa 节点", "numa-knoten", "nœud(s) numa", "numa ノード数", "modo(s) numa", "nó(s) de numa",
        "węzłów numa",
    ),
    "vendor": (
        "vendor id", "厂商 id", "供应商 id", "anbieterkennung", "hersteller-id", "identifiant constructeur",
        "ベンダー id", "ベンダid", "id de fabricante", "id de fornecedor", "id прроизводителя", "id производителя",
        "id producenta",
    ),
    "model_name": (
        "model name", "型号名称", "modellname", "nom de modèle", "モデル名", "nombre del modelo", "nome do modelo",
        "имя модели", "nazwa modelu",
    ),
    "flags": ("flags", "标记", "标志", "markierungen", "drapaux", "フラグ", "indicadores", "opções", "флаги", "flagi"),
    "l2": ("l2 cache", "l2 缓存", "l2", "l2-cache", "cache l2", "l2 キャッシュ", "caché l2", "cache de l2"),
    "l3": ("l3 cache", "l3 缓存", "l3", "l3-cache", "cache l3", "l3 キャッシュ", "caché l3", "cache de l3"),
    "max_mhz": (
        "cpu max mhz", "cpu 最大 mhz", "maximale taktfrequenz der cpu", "cpu mhz máx.",
        "vitesse maximale du processeur en mhz",
    ),
}  # fmt: skip
_MEANING = {key: meaning for meaning, keys in _KEYS.items() for key in keys}
# "NUMA node0 CPU(s)", "CPU(s) del nodo NUMA 0": a key with that word and one number
_NODE = re.compile(r"^(?=.*numa)\D*(\d{1,5})\D*$", re.IGNORECASE)
_COLUMNS = re.compile(r"^\s*(\S.*?)(?:\s{2,}|\s(?=\d+\s*$))(\S.*?)\s*$")
_INSTANCES = re.compile(r"\((\d{1,5}) instances?\)")


def plain(text: str) -> str:
    """`lscpu -J` as the lines that lscpu prints without it."""
    whole = jsontext.load(text) if '"lscpu"' in text else None
    entries = whole.get("lscpu") if isinstance(whole, dict) else None
    return "\n".join(_fields(entries)) if isinstance(entries, list) else text


def _fields(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, dict):
            yield f"{jsontext.text_of(entry.get('field')) or ''} {jsontext.text_of(entry.get('data')) or ''}"
            below = entry.get("children")
            yield from _fields(below) if isinstance(below, list) else ()


def looks_like(text: str) -> bool:
    text = plain(text)
    meanings = {_meaning(key) for key, _ in _pairs(text)}
    return len(meanings & {"cpus", "online", "threads", "cores", "sockets", "architecture"}) >= 3


def _meaning(key: str) -> str | None:
    normal = " ".join(unicodedata.normalize("NFKC", key).lower().split())
    return _MEANING.get(normal)


def parse(text: str, source: str) -> tuple[Cpu, tuple[NumaNode, ...]]:
    """Several `Model name` blocks (unequal cores) add up; a socket count of `-` is unknown."""
    text = plain(text)
    values: dict[str, list[str]] = {}
    nodes: dict[int, NumaNode] = {}
    for key, value in _pairs(text):
        node = _NODE.match(key)
        cpus = cpu_list(value) if node else None
        if node and cpus is not None:
            nodes.setdefault(int(node.group(1)), NumaNode.of(source, node=int(node.group(1)), cpus=cpus))
            continue
        meaning = _meaning(key)
        if meaning and value and (meaning != "cpus" or value[:1].isdigit()):
            values.setdefault(meaning, []).append(value)

    def first(meaning: str) -> str | None:
        return known(values[meaning][0]) if meaning in values else None

    online = cpu_list(first("online"))
    names = list(dict.fromkeys(name for name in values.get("model_name", []) if known(name)))
    cores, sockets = _cores(values)
    vendor = first("vendor")
    maker = implementer_name(vendor) if hexadecimal(vendor) is not None else vendor
    l3 = first("l3")
    instances = _INSTANCES.search(l3 or "")
    total_cores = cores * sockets if cores and sockets else cores if "clusters" in values else None
    cpu = Cpu.of(
        source,
        model=" + ".join(names) or None,
        vendor=maker,
        architecture=first("architecture"),
        sockets=sockets,
        cores_per_socket=cores if sockets else None,
        physical_cores=total_cores,
        threads_per_core=integer(first("threads")) if len(set(values.get("threads", []))) == 1 else None,
        logical_cpus=len(online) if online else integer(first("cpus")),
        present_cpus=integer(first("cpus")),
        online=online,
        isa_levels=isa_levels(_flags(text)) or None,
        l2_cache_bytes=_per_instance(first("l2")),
        l3_cache_bytes=_per_instance(l3),
        l3_caches=int(instances.group(1)) if instances else None,
        max_mhz=number(first("max_mhz")),
    )
    return cpu, tuple(nodes[number_] for number_ in sorted(nodes))


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Keys and values; some translations have lost the colon of a key."""
    for line in text.splitlines():
        columns = _COLUMNS.match(line) if ":" not in line and "\uff1a" not in line else None
        if columns and _meaning(columns.group(1)):
            yield columns.group(1), columns.group(2)
            continue
        yield from ((key, value) for _, key, value in key_values([line]))


def _flags(text: str) -> frozenset[str]:
    """The flags, also where they go on over lines cut at a terminal's width, which cuts words in two."""
    lines = iter(text.splitlines())
    for line in lines:
        pair = next(iter(_pairs(line)), None)
        if pair is not None and _meaning(pair[0]) == "flags":
            parts = [pair[1]]
            for more in lines:
                if not more[:1].isspace() or ":" in more:
                    break
                parts.append(more.strip())
            return frozenset(" ".join(parts).split()) | frozenset("".join(parts).split())
    return frozenset()


def _cores(values: dict[str, list[str]]) -> tuple[int | None, int | None]:
    """Cores per socket, added over unequal kinds, and sockets."""
    counts = [integer(value) for value in values.get("cores", [])]
    measured = [count for count in counts if count is not None]
    sockets = integer(values["sockets"][0]) if "sockets" in values else None
    kinds = len(dict.fromkeys(values.get("model_name", []))) or 1
    if measured:
        return sum(measured[:kinds]), sockets
    per_cluster = integer(values["clustered_cores"][0]) if "clustered_cores" in values else None
    clusters = integer(values["clusters"][0]) if "clusters" in values else None
    return (per_cluster * clusters if per_cluster and clusters else None), sockets


def _per_instance(text: str | None) -> int | None:
    """Newer versions print the sum and how many there are, older ones one instance's size."""
    size = size_bytes(text)
    instances = _INSTANCES.search(text or "")
    return size // max(1, int(instances.group(1))) if size is not None and instances else size
