"""Which storages an object of the engine keeps alive on a device."""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Iterable

import torch

_CONTAINERS = (list, tuple, dict, set, frozenset, types.CellType, types.MethodType, functools.partial)


def storages_of(roots: Iterable[object], device: torch.device) -> list[torch.UntypedStorage]:
    """Those of all tensors on the device that are reached over the engine's own objects, each once, in a fixed order.

    Modules, classes and the globals of functions are not gone through: what they keep is not the object's.
    """
    found: dict[int, torch.UntypedStorage] = {}
    seen: dict[int, object] = {}  # kept, so that no number is given twice
    left = list(roots)
    while left:
        thing = left.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if isinstance(thing, torch.Tensor):
            storage = thing.untyped_storage()
            if thing.device == device and storage.nbytes():
                found.setdefault(storage.data_ptr(), storage)
        elif isinstance(thing, types.FunctionType):
            left += [cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell)]
        elif isinstance(thing, _CONTAINERS) or _is_ours(thing):
            left += gc.get_referents(thing)
    return list(found.values())


def _is_ours(thing: object) -> bool:
    if isinstance(thing, type | types.ModuleType):
        return False
    return any(base.__module__.partition(".")[0] in ("engine", "bench") for base in type(thing).__mro__)


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - the only way to know
    except ValueError:
        return False
    return True
