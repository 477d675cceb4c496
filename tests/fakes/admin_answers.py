"""Answers of the admin API for the console's tests. A contract test holds them against the daemon's own document."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from tests.fakes.admin_transport import GIB, NOW, ago

Answers = dict[str, Any]
AS_OF = NOW.isoformat()
UP_S = 3600.0 * 24 * 41 + 11_000


def healthy() -> Answers:
    """One small model served by one worker on the CPU; two plans, one rule."""
    return {
        "status": {
            "as_of": AS_OF,
            "hostname": "bayard-01",
            "version": "0.1.0",
            "state": "serving",
            "plan": "latency",
            "workers_ready": 1,
            "workers_wanted": 1,
            "requests_running": 3,
            "requests_waiting": 4,
            "started_at": ago(UP_S),
            "reasons": [],
            "plan_reason": "rule office",
            "models": ["smollm2-135m"],
            "on_demand": [],
            "http": "http://127.0.0.1:8080",
            "grpc": "127.0.0.1:8081",
            "admin_tls": None,
        },
        "whoami": {"name": "ops@uds", "role": "admin"},
        "host": {
            "as_of": AS_OF,
            "cpu_model": "AMD EPYC 9V45",
            "hostname": "bayard-01",
            "cpus": 2,
            "cores": 2,
            "isa_levels": ["avx2", "avx512"],
            "notes": [],
            "memory_total_bytes": 24 * GIB,
            "memory_available_bytes": 17 * GIB,
            "cpu_used": 0.18,
            "uptime_s": UP_S,
            "disk_total_bytes": 100 * GIB,
            "disk_free_bytes": 38 * GIB,
        },
        "workers": {"as_of": AS_OF, "items": [worker("smollm2-0")]},
        "models": {"as_of": AS_OF, "items": [model("smollm2-135m")]},
        "plans": {
            "as_of": AS_OF,
            "items": [
                plan("latency", active=True, kv_tokens=65_536, memory_bytes=GIB * 6 // 10),
                plan("throughput", active=False, kv_tokens=262_144, memory_bytes=GIB * 16 // 10),
            ],
        },
        "accelerators": {"as_of": AS_OF, "items": []},
        "metrics/summary": {
            "as_of": AS_OF,
            "window_s": 300.0,
            "requests_done": 1204,
            "requests_failed": 0,
            "requests_rejected": 3,
            "prompt_tok_s": 18_420.0,
            "output_tok_s": 1_486.0,
            "ttft_p50_s": 0.21,
            "ttft_p95_s": 0.88,
            "itl_p50_s": 0.024,
            "itl_p95_s": 0.034,
            "kv_pages_used": 710,
            "kv_pages_cached": 220,
            "kv_pages_total": 1000,
            "prefix_hit_ratio": 0.44,
        },
        "schedule/timeline": {
            "as_of": AS_OF,
            "date": "2026-09-15",
            "timezone": "UTC",
            "items": [
                span("throughput", 43_351, 21_751, "default"),
                span("latency", 21_751, -21_449, "rule office"),
                span("throughput", -21_449, -43_049, "default"),
            ],
        },
        "events": {
            "as_of": AS_OF,
            "items": [
                transition(1, 21_660, "smollm2-0", "starting", "warming", "weights mapped"),
                transition(2, 21_600, "smollm2-0", "warming", "ready", "test vector ok in 0.4 s"),
            ],
        },
    }


def faulty() -> Answers:
    """A latched worker, one that waits for its next start, a damaged model and a device without its driver."""
    answers = healthy()
    answers["status"] |= {"state": "degraded", "workers_ready": 1, "workers_wanted": 3}
    answers["workers"]["items"] += [
        worker(
            "bge-m3-0",
            model="bge-m3",
            state="latched",
            since=ago(269),
            pid=None,
            requests_running=0,
            step_age_s=None,
            restarts_24h=5,
            memory_bytes=None,
            reason="5 fast exits; not retried until an operator acts",
            last_exit="signal 9 after 3.2 s",
            fix="raise the worker's memory limit, then R",
            log_tail=["worker_starting model=bge-m3", "weights_mapped bytes=1135542272"],
        ),
        worker(
            "qwen3-0",
            model="qwen3-0.6b",
            state="backoff",
            since=ago(12),
            pid=None,
            requests_running=0,
            step_age_s=None,
            restarts_24h=2,
            memory_bytes=None,
            reason="exit 1 after 0.4 s; next start in 4 s",
            last_exit="exit 1 after 0.4 s",
        ),
    ]
    answers["models"]["items"] += [model("bge-m3", state="damaged", verified_at=None), model("qwen3-0.6b")]
    answers["accelerators"]["items"] = [
        device(
            "nvidia0",
            name="NVIDIA H200",
            utilisation_percent=83.0,
            memory_total_bytes=140 * GIB,
            memory_used_bytes=137 * GIB,
            temperature_c=71.0,
            power_w=612.0,
            power_limit_w=700.0,
            ecc_uncorrected=0,
        ),
        device(
            "nvidia1",
            state="driver_missing",
            reason="no kernel driver is bound to 0000:41:00.0",
            fix="install the NVIDIA driver, then restart the box",
        ),
    ]
    answers["events"]["items"] += [
        transition(3, 300, "bge-m3-0", "starting", "backoff", "signal 9 after 3.2 s"),
        transition(4, 269, "bge-m3-0", "backoff", "latched", "5 fast exits; not retried until an operator acts"),
    ]
    return answers


def empty() -> Answers:
    """Just installed: nothing imported, nothing planned."""
    answers = healthy()
    answers["status"] |= {"state": "serving", "plan": None, "workers_ready": 0, "workers_wanted": 0}
    answers["status"] |= {"requests_running": 0, "requests_waiting": 0, "models": []}
    for path in ("workers", "models", "plans", "accelerators", "schedule/timeline", "events"):
        answers[path]["items"] = []
    unmeasured = dict.fromkeys(answers["metrics/summary"]) | {"as_of": AS_OF, "window_s": 300.0}
    counted = ("requests_done", "requests_failed", "requests_rejected", "prompt_tok_s", "output_tok_s")
    answers["metrics/summary"] = unmeasured | dict.fromkeys(counted, 0)
    return answers


def hostile() -> Answers:
    """Names that a terminal or a markup parser would act upon, very long ones, and wide ones."""
    answers = healthy()
    nasty = "\x1b]0;owned\x07\x1b[2J[@click=app.quit]go[/] [/b] \u202egnp.exe"
    answers["workers"]["items"] = [
        worker("\x1b[31mred", model=nasty, log_tail=[nasty, "tab\there", "x" * 400]),
        worker("模型工作者" * 10, model="模" * 200),
    ]
    answers["models"]["items"] = [model(nasty), model("長" * 400)]
    answers["events"]["items"] = [transition(1, 5, nasty, None, None, nasty)]
    answers["status"]["hostname"] = "box\x9b31m"
    return deepcopy(answers)


def worker(name: str, **changed: Any) -> dict[str, Any]:
    return {
        "id": name,
        "model": "smollm2-135m",
        "wanted": True,
        "state": "ready",
        "since": ago(21_600),
        "pid": 21_877,
        "device": "cpu",
        "requests_running": 3,
        "requests_waiting": 4,
        "step_age_s": 0.018,
        "restarts_24h": 0,
        "memory_bytes": GIB * 62 // 100,
        "memory_planned_bytes": GIB * 60 // 100,
        "log_tail": ["worker_starting model=smollm2-135m device=cpu threads=2", "worker_ready load_s=0.8"],
        "knobs": {"max_running": 8, "token_budget": 512, "prefill_chunk": 256, "prefix_cache": True},
        "kernels": {"linear": "cpu_avx512"},
        "reason": "",
        "fix": "",
        "restarts": 0,
        "retry_in_s": None,
        "kv_pages_total": 1000,
        "kv_pages_active": 710,
        "kv_pages_cached": 220,
        "page_tokens": 16,
        "max_context_tokens": 8192,
        "last_exit": None,
        "memory_at_exit_bytes": None,
        "log_path": "/var/lib/bayard/logs/smollm2-135m.log",
        "load_stage": None,
        "load_done_bytes": None,
        "load_total_bytes": None,
        "load_s": 0.8,
        "notes": [],
    } | changed


def model(name: str, **changed: Any) -> dict[str, Any]:
    return {
        "name": name,
        "state": "ready",
        "format": "gguf",
        "architecture": "llama",
        "weight_bytes": 96 << 20,
        "max_context_tokens": 8192,
        "num_parameters": 134_515_008,
        "source_dtype": "Q4_1",
        "verified_at": ago(90_000),
        "path": "/var/lib/bayard/models/smollm2-135m",
        "linked": False,
        "licence": "Apache-2.0",
        "imported_at": ago(100_000),
        "served": True,
        "plans": ["latency", "throughput"],
        "files": [{"path": "model.gguf", "size_bytes": 96 << 20, "sha256": "0" * 64}],
    } | changed


def plan(name: str, *, active: bool, kv_tokens: int, memory_bytes: int) -> dict[str, Any]:
    weights_bytes, runtime_bytes = 96 << 20, 120 << 20
    kv_bytes = memory_bytes - weights_bytes - runtime_bytes
    part = {
        "model": "smollm2-135m",
        "device": "cpu",
        "memory_bytes": memory_bytes,
        "memory_parts": [
            {"name": "weights", "size_bytes": weights_bytes, "detail": "272 tensors"},
            {"name": "KV pages", "size_bytes": kv_bytes, "detail": "fp32"},
            {"name": "runtime", "size_bytes": runtime_bytes, "detail": "measured"},
        ],
        "context_tokens": 8192,
        "kv_tokens": kv_tokens,
        "decode_tok_s": 180.0,
        "batch_tok_s": 610.0,
        "prefill_tok_s": 1400.0,
        "first_token_s": 0.12,
        "threads": 2,
        "knobs": {"max_running": 8},
        "reasons": ["threads 2: the model is alone on this box", "KV fp32: it is small beside the weights"],
        "bounds": None,
        "on_demand": None,
    }
    times = {"created_at": ago(90_000), "updated_at": ago(90_000)}
    return {"name": name, "strategy": name, "origin": "auto", "active": active, "models": [part], "notes": ""} | times


def device(number_name: str, **changed: Any) -> dict[str, Any]:
    unknown = ("name", "utilisation_percent", "memory_total_bytes", "memory_used_bytes", "temperature_c")
    return {
        **dict.fromkeys((*unknown, "power_w", "power_limit_w", "ecc_uncorrected")),
        "id": number_name,
        "vendor": "nvidia",
        "state": "usable",
        "reason": "",
        "fix": "",
    } | changed


def span(name: str, began_ago_s: float, ended_ago_s: float, reason: str) -> dict[str, Any]:
    return {"plan": name, "starts_at": ago(began_ago_s), "ends_at": ago(ended_ago_s), "reason": reason, "rule": None}


def transition(
    number: int, seconds_ago: float, subject: str, from_state: str | None, to_state: str | None, reason: str
) -> dict[str, Any]:
    return {
        "id": number,
        "at": ago(seconds_ago),
        "kind": "worker",
        "subject": subject,
        "from_state": from_state,
        "to_state": to_state,
        "reason": reason,
        "fields": {},
    }
