"""Taking in whatever an operator points at: a file or folder as it lies, or an archive that is unpacked first."""

from __future__ import annotations

import shutil
from pathlib import Path

from daemon.models.archive import is_tar, unpack
from daemon.models.copying import Cancelled, Report
from daemon.models.naming import name_from_path, place_for
from daemon.models.record import ImportProgress, ModelRecord
from daemon.models.registry import ModelRegistry, never_cancelled, no_report
from engine.errors import InvalidParameter, UnsupportedFormat
from engine.spec.place import place_of

UNPACKED = ".unpacked"


def import_any(
    registry: ModelRegistry,
    path: Path,
    name: str | None = None,
    link: bool = False,
    report: Report = no_report,
    cancelled: Cancelled = never_cancelled,
    base: str | None = None,
) -> ModelRecord:
    """As ModelRegistry.import_model, and tar archives too. Blocks. Raises: as that, and as archive.unpack"""
    path = place_of(str(path)).absolute()
    if not is_tar(path):
        return registry.import_model(path, name, link, report, cancelled, base)
    if link:
        raise InvalidParameter(
            f"{path.name} is an archive: nothing in it can be used where it lies.", "Leave --link out.", param="link"
        )
    report(ImportProgress("checking", path.name[:128], 0, 0))
    stem = path.name.removesuffix(".tgz").split(".tar")[0]
    folder = registry.folder / UNPACKED / place_for(str(path).encode())
    try:
        place = unpack(path, folder, report, cancelled)
        chosen = name or name_from_path(Path(stem) if place == folder else place)
        record = registry.import_model(place, chosen, False, report, cancelled, base)
    except UnsupportedFormat:
        shutil.rmtree(folder, ignore_errors=True)  # no other try can make it usable
        raise
    shutil.rmtree(folder, ignore_errors=True)
    return record
