"""AdapterBank: the LoRA adapters of one base, read whole and handed to the projections as those are made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.layers.adapters import AdaptedLinear, AdapterRows, LowRank
from engine.layers.linear import Linear
from engine.spec.adapter_spec import AdapterPair, AdapterSpec
from engine.spec.adapter_targets import adapter_targets
from engine.spec.model_spec import ModelSpec, TensorInfo
from engine.spec.tensor_table import Role

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class AdapterBank:
    """Owner: the model that is loaded with it."""

    def __init__(self, base: ModelSpec, adapters: Sequence[AdapterSpec]) -> None:
        """Raises: UnsupportedFormat for an adapter of another base"""
        self.numbers = {adapter.name: number for number, adapter in enumerate(adapters)}
        assert len(self.numbers) == len(adapters), [adapter.name for adapter in adapters]
        self.rows = AdapterRows()
        self._pairs: dict[Role, list[tuple[int, AdapterPair, str]]] = {}
        for number, adapter in enumerate(adapters):
            for target in adapter_targets(adapter, base):
                self._pairs.setdefault(target.role, []).append((number, target.pair, adapter.file))
        self._unused = set(self._pairs)

    def adapted(
        self,
        linear: Linear,
        roles: Sequence[str],
        layer: int,
        widths: Sequence[int],
        orders: Sequence[Tensor | None],
        device: torch.device,
        dtype: torch.dtype,
    ) -> Linear:
        """The projection of some roles side by side, with what adapters add to any of them.

        widths: outputs of each role. orders: of a role's outputs, where the model has them in another than is stored
        """
        found = [(at, *one) for at, role in enumerate(roles) for one in self._pairs.get((role, layer), ())]
        if not found:
            return linear
        parts_a, parts_b, owners = [], [], []
        for at, number, pair, file in found:
            self._unused.discard((roles[at], layer))
            b = _read(file, pair.b).to(torch.float32) * pair.scale
            order = orders[at] if at < len(orders) else None
            if order is not None:
                b = b[order]
            rows = torch.zeros(sum(widths), pair.rank)
            first = sum(widths[:at])
            rows[first : first + widths[at]] = b
            parts_a.append(_read(file, pair.a).to(dtype))
            parts_b.append(rows.to(dtype))
            owners += [number] * pair.rank
        low_rank = LowRank(
            torch.cat(parts_a).to(device), torch.cat(parts_b, dim=1).to(device), torch.tensor(owners, device=device)
        )
        return AdaptedLinear(linear, low_rank, self.rows)

    def check_all_used(self) -> None:
        """An adapter's matrix that no projection took would be ignored in silence."""
        assert not self._unused, sorted(self._unused, key=str)


def _read(file: str, info: TensorInfo) -> Tensor:
    try:
        with Path(file).open("rb") as opened:
            opened.seek(info.offset_bytes)
            raw = bytearray(opened.read(info.size_bytes))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}.", "Check the path.") from error
    if len(raw) != info.size_bytes:
        raise ConfigError(
            f"{file} ends inside {info.name}.", "The file changed after it was imported: import it again."
        )
    return torch.frombuffer(raw, dtype=_DTYPES[info.dtype]).view(info.shape)
