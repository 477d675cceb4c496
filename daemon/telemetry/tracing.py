"""OpenTelemetry traces, where the setting names a collector: a span a request, and below it waiting and decoding.

The packages are an extra, `bayard[tracing]`; nothing of them is imported without the setting.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from daemon import __version__
from engine.errors import ConfigError

if TYPE_CHECKING:
    from daemon.serving.live import LiveRequest
    from daemon.serving.settlement import Ending

FLUSH_MS = 2_000


class SpanSink(Protocol):
    """What ended requests are told to."""

    def ended(self, live: LiveRequest, ending: Ending) -> None: ...


class Tracing:
    """Spans are made when a request has ended, from the times it kept, and sent by a thread of the library.

    Owner: the Appliance. exporter: for tests; None sends to the endpoint over OTLP and HTTP
    Raises: ConfigError if the packages are not there
    """

    def __init__(self, endpoint: str, exporter: Any = None) -> None:
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            if exporter is None:
                from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

                exporter = OTLPSpanExporter(endpoint=endpoint)
        except ImportError as error:
            raise ConfigError(
                f"tracing.endpoint is set, and a package is missing: {error}.",
                "Install bayard[tracing], or leave the setting empty.",
            ) from error
        resource = Resource.create({"service.name": "bayard", "service.version": __version__})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("bayard")

    def ended(self, live: LiveRequest, ending: Ending) -> None:
        """Never the request's text, and of its tenant nothing but what the log has too."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        now_ns, now_mono = time.time_ns(), time.monotonic()

        def at(mono: float) -> int:
            return now_ns - int((now_mono - mono) * 1e9)

        usage = ending.usage
        attributes: dict[str, str | int | float] = {
            "gen_ai.request.model": live.model,
            "gen_ai.response.id": live.id,
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "bayard.cached_tokens": usage.cached_tokens,
            "bayard.device_s": usage.device_s,
            "bayard.outcome": ending.outcome,
            "bayard.worker": live.worker or "",
            "bayard.tenant": live.tenant,
            "bayard.origin": live.origin,
        }
        span = self._tracer.start_span(
            "request", kind=SpanKind.SERVER, start_time=at(live.started_mono), attributes=attributes
        )
        first = live.first_token_mono
        within = set_span_in_context(span)
        waiting = self._tracer.start_span("until first token", context=within, start_time=at(live.started_mono))
        waiting.end(at(first if first is not None else now_mono))
        if first is not None:
            self._tracer.start_span("decode", context=within, start_time=at(first)).end(now_ns)
        if ending.error is not None:
            span.set_status(Status(StatusCode.ERROR, ending.error.code))
        span.end(now_ns)

    def close(self) -> None:
        """Send what is left. Blocks: for FLUSH_MS at most"""
        self._provider.force_flush(FLUSH_MS)
        self._provider.shutdown()
