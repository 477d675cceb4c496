"""The registry: importing, listing, verifying and deleting models. Owner of tables models and model_files."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from daemon.events import EventLog
from daemon.models.adapters import adapter_facts, adapter_files, base_of
from daemon.models.checkpoint_files import SourceFile, files_of, licence_text, refuse_foreign
from daemon.models.copying import Cancelled, Report, Transfer, fsync_folder
from daemon.models.naming import check_model_name, folder_of, name_from_path
from daemon.models.record import FileRecord, ImportProgress, ModelFacts, ModelRecord, ModelState
from daemon.settings import Settings
from daemon.store.base import utc_now
from daemon.store.schema import Model, ModelAlias, ModelFile
from daemon.store.session import Store
from engine.errors import Conflict, InvalidParameter, ModelNotFound, StoreError
from engine.spec import read_spec
from engine.spec.adapter_spec import is_adapter, read_adapter
from engine.spec.model_spec import CheckpointFormat, ModelSpec
from engine.spec.packed_names import packed_files_of
from engine.spec.place import place_of

_PARTIAL = ".partial"


def no_report(progress: ImportProgress) -> None:
    """For callers that show nothing."""


def never_cancelled() -> bool:
    return False


class ModelRegistry:
    """Blocks: every method waits for the store or the disk. Call from threads, never from the event loop.

    on_imported is called after a model became visible; users_of names what keeps one from being deleted.
    """

    def __init__(self, store: Store, settings: Settings, events: EventLog) -> None:
        self._store = store
        self._folder = settings.models_dir
        self._packed_dir = settings.packed_dir
        self._events = events
        self._busy: set[str] = set()
        self._busy_lock = threading.Lock()
        self.on_imported: Callable[[ModelRecord, ModelSpec], None] = lambda record, spec: None
        self.on_adapter: Callable[[ModelRecord], None] = lambda record: None  # the same of an adapter
        self.users_of: Callable[[str], list[str]] = lambda name: []

    @property
    def folder(self) -> Path:
        """Where copies of models are kept."""
        return self._folder

    def all(self) -> Sequence[ModelRecord]:
        return self._store.read_sync(_all)

    def names(self) -> list[str]:
        return self._store.read_sync(lambda session: list(session.scalars(select(Model.name).order_by(Model.name))))

    def get(self, name: str) -> ModelRecord:
        """Raises: ModelNotFound, naming the nearest."""
        found = self._store.read_sync(lambda session: _find(session, name))
        if found is None:
            raise self._unknown(name)
        return found

    def import_model(
        self,
        path: Path,
        name: str | None = None,
        link: bool = False,
        report: Report = no_report,
        cancelled: Cancelled = never_cancelled,
        base: str | None = None,
    ) -> ModelRecord:
        """Check, hash and take in a checkpoint or an adapter; it is visible only when all of that is done.

        base: the imported model that an adapter runs on; None: the one it names itself
        Raises: UnsupportedFormat, NotFound, InvalidParameter; Conflict for a name that is taken or when cancelled;
        StoreError for a disk that is full or a file that changes meanwhile.
        """
        path = place_of(str(path)).absolute()
        report(ImportProgress("checking", path.name[:128], 0, 0))
        refuse_foreign(path)
        files, _, _ = self._looked_at(path, base)
        chosen = check_model_name(name) if name is not None else name_from_path(path)
        with self._reserved(chosen):
            if chosen in self.names():
                raise Conflict(
                    f"there is a model {chosen} already.",
                    f"Give another with --name, or `bayard models delete {chosen}`.",
                )
            self._store.read_sync(lambda session: _refuse_alias(session, chosen))
            total_bytes = sum(file.size_bytes for file in files)
            if link:
                records = Transfer("hashing", total_bytes, report, cancelled).hash_files(files)
                place = path.resolve()
            else:
                records, place = self._copy(chosen, path, files, total_bytes, report, cancelled)
            _, facts, spec = self._looked_at(place, base)  # what is kept, not what was looked at first
            record = self._insert(chosen, facts, place, link, records, licence_text(path))
        how = "linked in place" if link else "copied"
        self._events.publish(
            "model", chosen, None, record.state.value, f"imported from {path}, {how}", size_bytes=total_bytes
        )
        if spec is None:
            self.on_adapter(record)
        else:
            self.on_imported(record, spec)
        return record

    def adapters_of(self, name: str) -> list[ModelRecord]:
        """The imported adapters of a base, by name."""
        return [record for record in self.all() if record.base == name]

    def _looked_at(self, path: Path, base: str | None) -> tuple[tuple[SourceFile, ...], ModelFacts, ModelSpec | None]:
        """What lies at a path: its files, what its headers say, and no spec for an adapter. Raises: as import_model."""
        if is_adapter(path):
            adapter = read_adapter(path)
            return adapter_files(adapter, path), adapter_facts(adapter, base_of(adapter, base, self.all())), None
        if base is not None:
            raise InvalidParameter(f"{path.name} is no adapter, so it has no base.", "Leave --base out.", param="base")
        spec = read_spec(path)
        return files_of(spec, path), _facts(spec), spec

    def verify(
        self, name: str, report: Report = no_report, cancelled: Cancelled = never_cancelled
    ) -> tuple[ModelRecord, list[str]]:
        """Hash every file again; the record as it is now, and a sentence for each file that is not as imported.

        Raises: ModelNotFound; Conflict when cancelled.
        """
        record = self.get(name)
        base = _base(record)
        problems: list[str] = []
        present: list[SourceFile] = []
        for file in record.files:
            try:
                size = (base / file.path).stat().st_size
            except OSError as error:
                problems.append(f"{file.path}: {error.strerror or error}")
                continue
            if size != file.size_bytes:
                problems.append(f"{file.path} has {size:,} bytes; it had {file.size_bytes:,}")
            else:
                present.append(SourceFile(base / file.path, file.path, size))
        transfer = Transfer("verifying", sum(f.size_bytes for f in present), report, cancelled)
        expected = {file.path: file.sha256 for file in record.files}
        for found in transfer.hash_files(present):
            if found.sha256 != expected[found.path]:
                problems.append(f"{found.path} has SHA-256 {found.sha256}; it had {expected[found.path]}")
        state = ModelState.DAMAGED if problems else ModelState.READY
        now = utc_now()
        self._store.write_sync(lambda session: _set_state(session, name, state, now))
        if state is not record.state:
            reason = "; ".join(problems) or "every digest is as imported"
            self._events.publish("model", name, record.state.value, state.value, reason)
        return replace(record, state=state, verified_at=now), problems

    def delete(self, name: str) -> None:
        """Forget a model and remove its copy; linked files are left where they are.

        Raises: ModelNotFound; Conflict while something uses it, naming what.
        """
        record = self.get(name)
        with self._reserved(name):
            users = self.users_of(name) + [f"adapter {adapter.name}" for adapter in self.adapters_of(name)]
            if users:
                raise Conflict(
                    f"model {name} is used by {', '.join(users)}.",
                    f"`bayard models delete {name} --unload` takes it out of use first.",
                )
            self._store.write_sync(lambda session: session.execute(delete(Model).where(Model.name == name)) and None)
            for packed in packed_files_of(record.path, self._packed_dir):
                packed.unlink(missing_ok=True)
            if not record.linked:
                self._remove_copy(name)
        self._events.publish("model", name, record.state.value, None, "deleted by an operator")

    def spec_of(self, name: str) -> ModelSpec:
        """Raises: ModelNotFound, UnsupportedFormat when the files were damaged since."""
        return read_spec(self.get(name).path)

    def _copy(
        self,
        name: str,
        path: Path,
        files: Sequence[SourceFile],
        total_bytes: int,
        report: Report,
        cancelled: Cancelled,
    ) -> tuple[list[FileRecord], Path]:
        partial = self._folder / _PARTIAL / folder_of(name)
        final = self._folder / folder_of(name)
        try:
            partial.parent.mkdir(parents=True, exist_ok=True)
            if final.exists():  # a crash fell between the rename and the row: no row owns these files
                shutil.rmtree(final)
            records = Transfer("copying", total_bytes, report, cancelled).copy_files(files, partial)
            os.rename(partial, final)
            fsync_folder(self._folder)
        except OSError as error:
            raise StoreError(
                f"the copy into {self._folder} failed: {error.strerror or error}.",
                "Check the folder's owner and the disk, or use the files where they lie with --link.",
            ) from error
        return records, final if path.is_dir() else final / path.name

    def _insert(
        self, name: str, facts: ModelFacts, place: Path, link: bool, files: Sequence[FileRecord], licence: str | None
    ) -> ModelRecord:
        def write(session: Session) -> ModelRecord:
            _refuse_alias(session, name)  # it may have been set while the files were read
            row = Model(
                name=name,
                state=ModelState.READY.value,
                format=facts.format,
                architecture=facts.architecture,
                path=str(place),
                linked=link,
                num_parameters=facts.num_parameters,
                weight_bytes=facts.weight_bytes,
                max_context_tokens=facts.max_context_tokens,
                source_dtype=facts.source_dtype,
                licence=licence,
                details_json=json.dumps(facts.details),
                imported_at=utc_now(),
            )
            session.add(row)
            session.flush()
            for file in files:
                session.add(ModelFile(model_id=row.id, path=file.path, size_bytes=file.size_bytes, sha256=file.sha256))
            session.flush()
            return _record(session, row)

        return self._store.write_sync(write)

    def _remove_copy(self, name: str) -> None:
        """Out of sight first, then off the disk, so that no half-removed model is ever seen."""
        final = self._folder / folder_of(name)
        if not final.exists():
            return
        doomed = self._folder / _PARTIAL / (folder_of(name) + ".deleted")
        doomed.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(doomed, ignore_errors=True)
        os.rename(final, doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    @contextmanager
    def _reserved(self, name: str) -> Iterator[None]:
        with self._busy_lock:
            if name in self._busy:
                raise Conflict(f"model {name} is being imported or deleted now.", "Wait for that to end.")
            self._busy.add(name)
        try:
            yield
        finally:
            with self._busy_lock:
                self._busy.discard(name)

    def _unknown(self, name: str) -> ModelNotFound:
        names = self.names()
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(names) or 'none yet'}."
        return ModelNotFound(f"there is no imported model {name[:128]!r}.", hint, param="model")


def _base(record: ModelRecord) -> Path:
    path = Path(record.path)
    return path.parent if record.format == CheckpointFormat.GGUF.value else path


def _facts(spec: ModelSpec) -> ModelFacts:
    return ModelFacts(
        format=spec.format.value,
        architecture=spec.architecture,
        num_parameters=spec.num_parameters,
        weight_bytes=spec.weight_bytes,
        max_context_tokens=spec.max_context_tokens,
        source_dtype=spec.source_dtype,
        details={"title": spec.name, "layers": len(spec.layers), "tensors": len(spec.tensors)},
    )


def _all(session: Session) -> list[ModelRecord]:
    return [_record(session, row) for row in session.scalars(select(Model).order_by(Model.name)).all()]


def _find(session: Session, name: str) -> ModelRecord | None:
    row = session.scalars(select(Model).where(Model.name == name)).first()
    return None if row is None else _record(session, row)


def _refuse_alias(session: Session, name: str) -> None:
    """Raises: Conflict for a name whose requests go to another model."""
    alias = session.get(ModelAlias, name)
    if alias is not None:
        raise Conflict(
            f"{name} is an alias of {alias.model}.", f"Give another name, or `bayard models unalias {name}` first."
        )


def _set_state(session: Session, name: str, state: ModelState, at: datetime) -> None:
    row = session.scalars(select(Model).where(Model.name == name)).first()
    if row is not None:
        row.state = state.value
        row.verified_at = at


def _record(session: Session, row: Model) -> ModelRecord:
    files = session.scalars(select(ModelFile).where(ModelFile.model_id == row.id).order_by(ModelFile.path))
    return ModelRecord(
        name=row.name,
        state=ModelState(row.state),
        format=row.format,
        architecture=row.architecture,
        path=row.path,
        linked=row.linked,
        num_parameters=row.num_parameters,
        weight_bytes=row.weight_bytes,
        max_context_tokens=row.max_context_tokens,
        source_dtype=row.source_dtype,
        licence=row.licence,
        imported_at=row.imported_at,
        verified_at=row.verified_at,
        files=tuple(FileRecord(file.path, file.size_bytes, file.sha256) for file in files),
        details=json.loads(row.details_json),
    )
