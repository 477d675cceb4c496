"""Traces: a span a request with its parts, nothing of its text, and nothing at all without the setting."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from daemon.api.http import build_app
from daemon.telemetry.tracing import Tracing
from engine.errors import ConfigError
from tests.fakes.fake_services import MODEL, fake_services, http_server


async def test_request_is_a_span_with_its_parts(tmp_path: Path) -> None:
    spans = InMemorySpanExporter()
    tracing = Tracing("", spans)
    body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "a secret"}]}
    async with fake_services(tmp_path) as services:
        services.serving.settlement.spans = tracing
        headers = {"authorization": f"Bearer {services.key}"}
        async with (
            http_server(build_app(services)) as url,
            httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as http,
        ):
            assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
            services.engine.fail_after = 1
            await http.post("/v1/chat/completions", json=body)
    tracing.close()
    found = spans.get_finished_spans()
    good, bad = [span for span in found if span.name == "request"]
    parts = [span for span in found if span.parent is not None and span.parent.span_id == good.context.span_id]
    assert [span.name for span in parts] == ["until first token", "decode"]
    assert good.start_time == parts[0].start_time <= parts[1].start_time <= good.end_time
    assert good.attributes is not None
    assert good.attributes["gen_ai.usage.output_tokens"] == 4
    assert good.attributes["bayard.outcome"] == "length"
    assert not bad.status.is_ok
    assert "secret" not in "".join(span.to_json() for span in found)


def test_setting_without_the_packages_is_a_matter_of_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"bayard\[tracing\]"):
        Tracing("http://127.0.0.1:1/v1/traces")
