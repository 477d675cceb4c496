"""Importing LoRA adapters: which base one belongs to, and what the registry keeps of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from daemon.models.checkpoint_files import SourceFile, small_files
from daemon.models.record import ADAPTER_FORMAT, ModelFacts, ModelRecord
from engine.errors import InvalidParameter
from engine.spec import read_spec
from engine.spec.adapter_spec import CONFIG_FILE, AdapterSpec
from engine.spec.adapter_targets import adapter_targets


def base_of(adapter: AdapterSpec, named: str | None, models: Sequence[ModelRecord]) -> ModelRecord:
    """The imported model that the adapter runs on: the one named, else the one called as the adapter says.

    Raises: InvalidParameter where there is none; UnsupportedFormat where the adapter does not fit it
    """
    bases = {record.name: record for record in models if record.format != ADAPTER_FORMAT}
    names = ", ".join(sorted(bases)) or "none is imported yet"
    if named is not None and named not in bases:
        raise InvalidParameter(
            f"there is no imported model {named!r} to be a base.", f"There are: {names}.", param="base"
        )
    if named is None:
        wanted = adapter.base_model.rstrip("/").rsplit("/", 1)[-1].lower()
        alike = [name for name in bases if wanted and (name == wanted or name.rsplit("/", 1)[-1] == wanted)]
        if len(alike) != 1:
            raise InvalidParameter(
                f"{adapter.name} is an adapter of {adapter.base_model or 'a base it does not name'!r}; which imported "
                "model that is cannot be told.",
                f"Say it with --base NAME. There are: {names}.",
                param="base",
            )
        named = alike[0]
    adapter_targets(adapter, read_spec(bases[named].path))
    return bases[named]


def adapter_facts(adapter: AdapterSpec, base: ModelRecord) -> ModelFacts:
    return ModelFacts(
        format=ADAPTER_FORMAT,
        architecture=base.architecture,
        num_parameters=adapter.num_parameters,
        weight_bytes=adapter.weight_bytes,
        max_context_tokens=base.max_context_tokens,
        source_dtype=adapter.pairs[0].a.dtype,
        details={"base": base.name, "rank": adapter.rank, "modules": len(adapter.pairs), "title": adapter.name},
    )


def adapter_files(adapter: AdapterSpec, folder: Path) -> tuple[SourceFile, ...]:
    """Every file to hash and copy."""
    names = {CONFIG_FILE, Path(adapter.file).name} | small_files(folder)
    return tuple(SourceFile(folder / name, name, (folder / name).stat().st_size) for name in sorted(names))
