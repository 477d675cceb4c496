"""The planning desk: automatic plans as models come and go, answers by name and path, measurements that correct."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from daemon.events import EventLog
from daemon.models.registry import ModelRegistry
from daemon.planning.install import EngineInstall
from daemon.planning.kv_bytes import element_bytes
from daemon.planning.measurements import Measurements
from daemon.planning.plan import Request
from daemon.planning.rates import MEASURED, DeviceRates
from daemon.planning.speed import SpeedModel
from daemon.planning.strategy import Strategy
from daemon.planning.traffic import traffic_of
from daemon.planning.worker_config import same_shape, worker_config
from daemon.settings import Settings
from daemon.store.base import utc_now
from daemon.store.session import Store
from daemon.strategy.adapting import adapt
from daemon.strategy.desk import OwnMemory, PlanningDesk
from daemon.strategy.noting import ENOUGH_STEPS
from daemon.strategy.parts import own_memory, users_of
from daemon.strategy.plans import AUTO, OPERATOR, Plans
from daemon.strategy.replanning import replan
from engine.errors import Conflict, DoesNotFit, InvalidParameter, ModelNotFound, NotFound
from engine.messages import DecodePace, WorkerReady, WorkerStats
from tests.fakes.planned_models import GIB, cpu_machine, gpu, gpu_machine
from tests.fakes.strategy_parts import FakeWorkers


class Box:
    """A desk whose machine tests change."""

    def __init__(self, store: Store, settings: Settings, events: EventLog, plans: Plans) -> None:
        self.machine = cpu_machine(16)
        self.own = OwnMemory({})
        self.drained: dict[str, str] = {}
        self.models = ModelRegistry(store, settings, events)
        self.measurements = Measurements(store)
        self.desk = PlanningDesk(
            settings,
            events,
            self.models,
            plans,
            self.measurements,
            detect=lambda: self.machine,
            own_memory=lambda: self.own,
            drained=lambda: self.drained,
            install=EngineInstall.full(),
        )
        self.models.on_imported = self.desk.add_imported


@pytest.fixture
def box(store: Store, settings: Settings, events: EventLog, plans: Plans) -> Box:
    return Box(store, settings, events, plans)


def test_first_import_makes_two_plans_that_differ_in_knobs_and_one_default(
    box: Box, plans: Plans, smollm_path: Path
) -> None:
    box.models.import_model(smollm_path, "small", link=True)
    latency, throughput = plans.get("latency"), plans.get("throughput")
    assert (latency.origin, throughput.origin, plans.default()) == (AUTO, AUTO, "latency")
    assert latency.profiles[0].model == "small"
    assert latency.profiles[0].path == str(smollm_path.resolve())
    assert same_shape(worker_config(latency.profiles[0]), worker_config(throughput.profiles[0]))
    assert latency.profiles[0].knobs != throughput.profiles[0].knobs


def test_second_model_is_added_where_it_fits_beside_the_first(box: Box, plans: Plans, smollm_path: Path) -> None:
    box.models.import_model(smollm_path, "one", link=True)
    box.models.import_model(smollm_path, "two", link=True)
    for name in ("latency", "throughput"):
        plan = plans.get(name)
        assert [profile.model for profile in plan.profiles] == ["one", "two"]
        assert plan.memory_bytes < 16 * GIB
    configs = [worker_config(plans.get(name).profiles[1]) for name in ("latency", "throughput")]
    assert same_shape(*configs)


def test_model_without_room_is_left_out_and_an_event_says_why(
    box: Box, plans: Plans, events: EventLog, smollm_path: Path
) -> None:
    box.machine = cpu_machine(1.6)
    box.models.import_model(smollm_path, "one", link=True)
    box.machine = cpu_machine(1.0)
    box.models.import_model(smollm_path, "two", link=True)
    assert [profile.model for profile in plans.get("latency").profiles] == ["one"]
    (told,) = [
        e.reason for e in events.recent() if e.kind == "plan" and e.subject == "latency" and "not added" in e.reason
    ]
    assert "two" in told
    assert "needs" in told
    assert "usable" in told


def test_plan_name_that_an_operator_took_is_left_to_the_operator(box: Box, plans: Plans, smollm_path: Path) -> None:
    box.models.import_model(smollm_path, "one", link=True)
    with pytest.raises(Conflict, match="plan latency is automatic"):
        box.desk.save("latency", Strategy.QUALITY, ["one"])
    assert plans.get("latency").origin == AUTO
    box.desk.save("latency", Strategy.QUALITY, ["one"], even_automatic=True)
    box.desk.save("latency", Strategy.QUALITY, ["one"])  # an operator's own needs no such word
    box.models.import_model(smollm_path, "two", link=True)
    assert plans.get("latency").origin == OPERATOR
    assert [p.model for p in plans.get("latency").profiles] == ["one"]
    assert [p.model for p in plans.get("throughput").profiles] == ["one", "two"]


def test_save_plans_models_beside_each_other_or_says_what_has_no_room(
    box: Box, plans: Plans, smollm_path: Path
) -> None:
    for name in ("one", "two"):
        box.models.import_model(smollm_path, name, link=True)
    plan = box.desk.save("mine", Strategy.BALANCED, ["two", "one"], context_tokens=2048, users=4)
    assert [p.model for p in plan.profiles] == ["two", "one"]
    assert all(p.kv_tokens == 8192 for p in plan.profiles)
    box.machine = cpu_machine(1.6)
    with pytest.raises(DoesNotFit, match="one cannot run here") as caught:
        box.desk.save("tight", Strategy.BALANCED, ["two", "one"], context_tokens=8192, users=2)
    assert "What would" in caught.value.hint
    with pytest.raises(InvalidParameter):
        box.desk.save("none", Strategy.LATENCY, [])
    with pytest.raises(InvalidParameter):
        box.desk.save("twice", Strategy.LATENCY, ["one", "one"])
    with pytest.raises(ModelNotFound):
        box.desk.save("unknown", Strategy.LATENCY, ["three"])
    assert {plan.name for plan in plans.all()} == {"latency", "throughput", "mine"}


def test_withdraw_leaves_other_models_and_drops_empty_plans(box: Box, plans: Plans, smollm_path: Path) -> None:
    for name in ("one", "two"):
        box.models.import_model(smollm_path, name, link=True)
    assert box.desk.withdraw("one") == ["latency", "throughput"]
    assert [p.model for p in plans.get("latency").profiles] == ["two"]
    box.desk.withdraw("two")
    assert (list(plans.all()), plans.default()) == ([], None)


def test_withdraw_is_refused_while_an_operators_plan_loads_the_model(box: Box, plans: Plans, smollm_path: Path) -> None:
    box.models.import_model(smollm_path, "one", link=True)
    box.desk.save("mine", Strategy.LATENCY, ["one"])
    with pytest.raises(Conflict, match="plan mine"):
        box.desk.withdraw("one")
    assert plans.get("latency").profile_of("one") is not None


def test_answer_by_name_and_by_path_is_the_same_but_for_the_name(box: Box, smollm_path: Path) -> None:
    box.models.import_model(smollm_path, "one", link=True)
    by_name = box.desk.answer("one", Request(Strategy.LATENCY)).chosen
    by_path = box.desk.answer(str(smollm_path), Request(Strategy.LATENCY)).chosen
    assert by_name is not None
    assert by_path is not None
    assert by_name.model == "one"
    assert by_name == by_path.with_model("one", by_name.path)
    with pytest.raises(ModelNotFound):
        box.desk.answer("on", Request(Strategy.LATENCY))


def test_own_workers_memory_is_free_for_a_new_plan(box: Box, smollm_path: Path) -> None:
    box.machine = cpu_machine(16, available_gib=1.2)
    asked = Request(Strategy.LATENCY, context_tokens=8192, users=4)
    assert box.desk.answer(str(smollm_path), asked).chosen is None
    box.own = OwnMemory({"cpu": 4 * GIB})
    assert box.desk.answer(str(smollm_path), asked).chosen is not None


def test_drained_device_is_avoided_and_automatic_plans_move_away_and_back(
    box: Box, plans: Plans, events: EventLog, smollm_path: Path
) -> None:
    box.machine = gpu_machine(gpu("one", 24.0), gpu("two", 16.0))
    box.models.import_model(smollm_path, "one", link=True)
    box.desk.save("mine", Strategy.LATENCY, ["one"])
    adapt(box.desk, plans, "latency", on=True, dwell_s=7.0)
    at_first = [profile.device for plan in plans.all() for profile in plan.profiles]
    (home,) = set(at_first)
    box.drained = {home: "nvidia is drained by ops"}
    answer = box.desk.answer("one", Request(Strategy.LATENCY))
    assert answer.chosen is not None
    assert answer.chosen.device != home
    assert any("it is drained: nvidia is drained by ops" in refusal.reason for refusal in answer.why_not)
    assert sorted(replan(box.desk, plans, events, home, "it is drained")) == ["latency", "throughput"]
    moved = {plan.name: plan.profiles[0] for plan in plans.all()}
    assert moved["latency"].device == moved["throughput"].device == answer.chosen.device
    assert same_shape(worker_config(moved["latency"]), worker_config(moved["throughput"]))
    assert moved["latency"].bounds is not None
    assert moved["latency"].bounds.dwell_s == 7.0
    assert moved["mine"].device == home, "what an operator saved stays"
    assert any(event.subject == "mine" and "save it anew" in event.reason for event in events.recent())
    box.drained = {}
    replan(box.desk, plans, events, home, "it is in use again")
    assert [profile.device for plan in plans.all() for profile in plan.profiles] == at_first
    assert replan(box.desk, plans, events, home, "it is in use again") == [], "nothing is left to move"


def test_loaded_worker_corrects_the_next_prediction_once(box: Box, smollm_path: Path) -> None:
    box.models.import_model(smollm_path, "one", link=True)
    before = box.desk.answer("one", Request(Strategy.LATENCY)).chosen
    assert before is not None
    workers = FakeWorkers({"one": msgspec.structs.replace(worker_config(before), worker_id="one")})
    (view,) = workers.views()
    loaded = replace(view, pid=7, stats=WorkerStats(rss_bytes=400 << 20))
    box.desk.note_loaded([replace(loaded, stats=WorkerStats(step=3, rss_bytes=900 << 20))])  # it has computed: too late
    box.desk.note_loaded([loaded])
    box.desk.note_loaded([replace(loaded, stats=WorkerStats(rss_bytes=450 << 20))])
    after = box.desk.answer("one", Request(Strategy.LATENCY)).chosen
    assert after is not None
    moved = after.memory.total_bytes - before.memory.total_bytes
    assert moved == box.measurements.memory_correction("one", "cpu", "stored") != 0


def test_pace_and_memory_of_a_worker_correct_later_answers_and_say_when(box: Box, smollm_path: Path) -> None:
    box.models.import_model(smollm_path, "one", link=True)
    before = box.desk.answer("one", Request(Strategy.LATENCY)).chosen
    assert before is not None
    config = msgspec.structs.replace(worker_config(before), worker_id="one")
    (view,) = FakeWorkers({"one": config}).views()
    ready = WorkerReady(3, 7, "one", "cpu", 1, 1, 16, load_s=1.0)
    spec = box.desk.spec_of("one")
    rates = box.measurements.rates(box.desk.planner().budgets[0])
    predicted = SpeedModel(spec, traffic_of(spec), rates, element_bytes(spec, config.kv_dtype)).step(1, 0, 500)
    slow = DecodePace(900, 2 * predicted.total_s, 1.0, 500.0)
    few = DecodePace(ENOUGH_STEPS - 1, 9.0, 1.0, 500.0)
    box.desk.note_loaded([replace(view, pid=7, ready=ready, stats=WorkerStats(step=900, alone=few))])
    assert box.measurements.pace("one", "cpu", "stored") is None, "too few steps tell nothing"
    for _ in range(2):
        box.desk.note_loaded([replace(view, pid=7, ready=ready, stats=WorkerStats(step=900, alone=slow))])
    after = box.desk.answer("one", Request(Strategy.LATENCY)).chosen
    assert after is not None
    assert after.speed.decode_ms == pytest.approx(2 * before.speed.decode_ms, rel=1e-6)
    assert after.speed.batch_tok_s == pytest.approx(before.speed.batch_tok_s / 2, rel=1e-6)
    (why,) = [choice.reason for choice in after.choices if choice.topic == "speed"]
    assert f"measured here on {utc_now().date().isoformat()}" in why
    assert "2.00 times" in why
    rounded = box.desk.answer("one", Request(Strategy.LATENCY, weights="int8")).chosen
    assert rounded is None or not [choice for choice in rounded.choices if choice.topic == "speed"]
    box.measurements.save_rates(rates)  # a calibration makes what was beside the old rates worthless
    again = box.desk.answer("one", Request(Strategy.LATENCY)).chosen
    assert again is not None
    assert again.speed.decode_ms == pytest.approx(before.speed.decode_ms, rel=1e-6)


def test_measured_rates_replace_shipped_ones(box: Box, smollm_path: Path) -> None:
    shipped = box.desk.answer(str(smollm_path), Request(Strategy.LATENCY))
    assert any("bayard calibrate" in note for note in shipped.notes)
    assert shipped.chosen is not None
    rates = DeviceRates("cpu", "Some CPU", 1e12, 1e13, 1e13, 1e-6, 1e-7, source=MEASURED)
    box.measurements.save_rates(rates)
    measured = box.desk.answer(str(smollm_path), Request(Strategy.LATENCY))
    assert measured.chosen is not None
    assert measured.chosen.speed.rates_source == MEASURED
    assert measured.chosen.speed.decode_tok_s > 10 * shipped.chosen.speed.decode_tok_s
    assert not any("bayard calibrate" in note for note in measured.notes)


def test_devices_are_uncalibrated_until_they_are_measured_and_only_with_memory_to_spare(box: Box) -> None:
    box.machine = gpu_machine(gpu("one", 80.0), gpu("two", 80.0, free_gib=4.0))
    assert box.desk.uncalibrated() == ["cuda:0", "cpu"]
    budget = next(b for b in box.desk.planner().budgets if b.on_cpu)
    box.measurements.save_rates(replace(box.measurements.rates(budget), source=MEASURED))
    assert box.desk.uncalibrated() == ["cuda:0"]


def test_calibrate_of_a_device_that_is_not_here_is_refused(box: Box) -> None:
    with pytest.raises(NotFound, match="cuda:9"):
        box.desk.calibrate(1.0, "cuda:9")


def test_users_and_memory_are_read_from_plans_and_workers(box: Box, plans: Plans, smollm_path: Path) -> None:
    box.models.import_model(smollm_path, "one", link=True)
    config = worker_config(plans.get("latency").profiles[0])
    views = FakeWorkers({"one": config}, rss_bytes=123).views()
    assert users_of("one", plans, views) == [
        "plan latency (automatic)",
        "plan throughput (automatic)",
        "worker one (ready)",
    ]
    assert own_memory(views).held_bytes == {"cpu": 123}
