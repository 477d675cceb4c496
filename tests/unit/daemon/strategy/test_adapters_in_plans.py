"""Adapters from import to deletion: their base is found, its plans take them along, its worker is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from daemon.events import EventLog
from daemon.models.registry import ModelRegistry
from daemon.planning.measurements import Measurements
from daemon.planning.strategy import Strategy
from daemon.planning.worker_config import same_shape, worker_config
from daemon.settings import Settings
from daemon.store.session import Store
from daemon.strategy.desk import PlanningDesk
from daemon.strategy.parts import users_of
from daemon.strategy.plans import Plans
from engine.errors import Conflict, InvalidParameter, UnsupportedFormat
from engine.messages import AdapterSource
from tests.fakes.adapters import write_adapter
from tests.fakes.family_models import saved_model
from tests.fakes.planned_models import cpu_machine


@pytest.fixture
def models(store: Store, settings: Settings, events: EventLog, plans: Plans) -> ModelRegistry:
    registry = ModelRegistry(store, settings, events)
    desk = PlanningDesk(settings, events, registry, plans, Measurements(store), detect=lambda: cpu_machine(16))
    registry.on_imported, registry.on_adapter = desk.add_imported, desk.add_adapter
    registry.users_of = lambda name: users_of(name, plans, [])
    registry.desk = desk  # type: ignore[attr-defined]
    return registry


@pytest.fixture
def base(tmp_path: Path) -> Path:
    saved_model("llama", tmp_path / "base")
    return tmp_path / "base"


def adapter(tmp_path: Path, name: str = "polite", **stated: object) -> Path:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    return write_adapter(tmp_path / name, model, **stated)  # type: ignore[arg-type]


def test_imported_adapter_is_copied_and_joins_the_plans_of_its_base(
    models: ModelRegistry, plans: Plans, base: Path, tmp_path: Path
) -> None:
    models.import_model(base)
    before = worker_config(plans.get("latency").profiles[0])
    record = models.import_model(adapter(tmp_path, base_model_name_or_path="someone/Base"))
    assert (record.name, record.base, record.format, record.architecture) == ("polite", "base", "lora", "llama")
    assert {file.path for file in record.files} == {"adapter_config.json", "adapter_model.safetensors"}
    assert models.verify("polite")[1] == []
    assert plans.using("polite") == plans.using("base") == ["latency", "throughput"]
    profile = plans.get("latency").profiles[0]
    assert worker_config(profile).adapters == (AdapterSource("polite", record.path),)
    assert not same_shape(before, worker_config(profile))
    assert profile.memory.of("adapters") >= record.weight_bytes
    saved = models.desk.save("mine", Strategy.LATENCY, ["base"])  # type: ignore[attr-defined]
    assert [one.name for one in saved.profiles[0].adapters] == ["polite"]


def test_adapter_whose_base_cannot_be_told_asks_for_it(models: ModelRegistry, base: Path, tmp_path: Path) -> None:
    models.import_model(base)
    folder = adapter(tmp_path, base_model_name_or_path="someone/else")
    with pytest.raises(InvalidParameter, match="cannot be told"):
        models.import_model(folder)
    with pytest.raises(InvalidParameter, match="imported model 'other'"):
        models.import_model(folder, base="other")
    assert models.import_model(folder, base="base").base == "base"
    with pytest.raises(InvalidParameter, match="no adapter, so it has no base"):
        models.import_model(base, "again", base="base")


def test_adapter_of_another_model_leaves_nothing_behind(models: ModelRegistry, base: Path, tmp_path: Path) -> None:
    models.import_model(base)
    folder = adapter(tmp_path)
    save_file(
        {f"base_model.model.model.layers.0.self_attn.q_proj.lora_{side}.weight": torch.zeros(4, 4) for side in "AB"},
        folder / "adapter_model.safetensors",
    )
    with pytest.raises(UnsupportedFormat, match="trained on another base"):
        models.import_model(folder, base="base")
    assert models.names() == ["base"]


def test_base_and_adapter_go_in_order_and_a_plan_names_bases(
    models: ModelRegistry, plans: Plans, base: Path, tmp_path: Path
) -> None:
    models.import_model(base)
    models.import_model(adapter(tmp_path), base="base")
    desk: PlanningDesk = models.desk  # type: ignore[attr-defined]
    with pytest.raises(InvalidParameter, match="adapter of base"):
        desk.save("mine", Strategy.LATENCY, ["polite"])
    with pytest.raises(UnsupportedFormat, match="runs on its base"):
        desk.spec_of("polite")
    with pytest.raises(Conflict, match="adapter polite"):
        models.delete("base")
    with pytest.raises(Conflict, match="plan latency"):
        models.delete("polite")
    with pytest.raises(Conflict, match="base of polite"):
        desk.withdraw("base")
    assert plans.using("base") == ["latency", "throughput"]
    assert desk.withdraw("polite") == ["latency", "throughput"]
    assert plans.get("latency").profiles[0].adapters == ()
    assert plans.get("latency").profiles[0].memory.of("adapters") == 0
    models.delete("polite")
    assert models.names() == ["base"]
