"""The engine worker: `python -m engine.worker CONFIG.json`. One process a model replica.

The loop takes every command that waits, computes one step, sends one message. It works on token ids only. It ends when
told to, when its daemon is gone, or when the engine can no longer be trusted (exit 70, after a WorkerFailed event).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path

import msgspec
import zmq

from engine.builder import BuiltEngine, build_engine
from engine.core import EngineCore
from engine.devices.disk import sequential_bytes_per_s
from engine.encoder.core import EncoderCore
from engine.errors import BayardError, DeviceLost, DoesNotFit, InvalidParameter, WorkerError
from engine.kernels.outlier_misses import misses_of
from engine.messages import (
    PROTOCOL_VERSION,
    Abort,
    Command,
    Embed,
    ErrorInfo,
    Event,
    FinishReason,
    Heartbeat,
    LoadProgress,
    SetKnobs,
    Sleep,
    Slept,
    StepReport,
    Stop,
    Submit,
    TokenDelta,
    Wake,
    Woken,
    WorkerConfig,
    WorkerFailed,
    WorkerReady,
    WorkerStats,
    command_decoder,
    event_encoder,
    read_figures,
)
from engine.runner.faults import lost_device
from engine.scheduler.outbox import error_info
from engine.sleeper import Sleeper
from engine.spec import read_spec

EXIT_FAILED = 70
EXIT_CONFIG = 78
PROGRESS_EVERY_S = 0.1
COMPILING_WAIT_S = 0.005  # a grammar's end is no command: it is looked for

log = logging.getLogger("bayard.worker")


class Worker:
    """Owner of the socket's worker end and of the engine."""

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(config.endpoint)
        self._parent = os.getppid()
        self._beat = 0
        self._unprepared = True  # graphs may be left to capture
        self._stopping = False
        self._memory_mono = float("-inf")
        self._memory: dict[str, int | None] = {}
        self._last_progress_mono = 0.0
        self._last_sent_mono = 0.0

    def run(self) -> int:
        """The process's exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        try:
            engine = self._load()
            self._loop(engine)
        except (WorkerError, DeviceLost) as error:
            self._fail(error_info(error))
            return EXIT_FAILED
        except BayardError as error:
            self._fail(error_info(error))
            return EXIT_CONFIG
        except Exception as error:  # the process border: said once, then the supervisor decides
            log.exception("worker_failed")
            lost = lost_device(error, self.config.device)
            if lost is not None:
                self._fail(error_info(lost))
                return EXIT_FAILED
            self._fail(ErrorInfo("worker_error", f"{type(error).__name__}: {error}", "See the worker's log."))
            return EXIT_FAILED
        finally:
            self._socket.close()
        return 0

    def _load(self) -> BuiltEngine:
        began = time.monotonic()
        log.info("worker_starting model=%s device=%s", self.config.model_name, self.config.device)
        disk_rate = sequential_bytes_per_s(read_spec(self.config.model_path).files)
        engine = build_engine(self.config, self._progress)
        core = engine.core
        load_s = time.monotonic() - began
        log.info("worker_ready load_s=%.2f context=%d pages=%d", load_s, core.max_context_tokens, engine.num_pages)
        for note in engine.notes:
            log.warning("fallback %s", note)
        if "KV multipliers" in engine.kernels:
            log.info("kv_multipliers %s", engine.kernels["KV multipliers"])
        ready = WorkerReady(
            protocol=PROTOCOL_VERSION,
            pid=os.getpid(),
            model=self.config.model_name,
            device=self.config.device,
            max_context_tokens=core.max_context_tokens,
            kv_pages_total=engine.num_pages,
            page_tokens=engine.page_tokens,
            load_s=load_s,
            kernels=engine.kernels,
            notes=engine.notes,
            embeds=engine.embedding_dimensions > 0,
            generates=engine.generates,
            embedding_dimensions=engine.embedding_dimensions,
            adapters=engine.adapters,
            read_bytes=engine.read_bytes,
            read_s=engine.read_s,
            disk_bytes_per_s=disk_rate,
        )
        log.info("weights_read %s", read_figures(ready, self.config.weights))
        self._send(ready)
        return engine

    def _loop(self, engine: BuiltEngine) -> None:
        core = engine.core
        self._sleeper = Sleeper(core, engine.device, self._progress)
        while not self._stopping:
            idle = not core.has_work() and (self._sleeper.is_asleep or not self._unprepared)
            self._take_commands(core, wait_s=self._idle_wait_s(core) if idle else 0.0)
            self._beat += 1
            if core.has_work():
                report = core.step()
                self._send(StepReport(report.deltas, self._completed(engine, report.stats)))
            elif self._unprepared and not self._sleeper.is_asleep:
                self._unprepared = core.prepare()
            if time.monotonic() - self._last_sent_mono >= self.config.heartbeat_s:
                engine.device.synchronize()  # a device that was lost while nothing ran says so here
                self._send(Heartbeat(self._completed(engine, core.stats())))
            if os.getppid() != self._parent:
                log.error("daemon_gone parent=%d", self._parent)
                return
        core.abort_all()
        if core.has_work():
            self._send(core.step())
        log.info("worker_stopped")

    def _idle_wait_s(self, core: EngineCore | EncoderCore) -> float:
        compiling = isinstance(core, EngineCore) and core.is_compiling
        return COMPILING_WAIT_S if compiling else self.config.heartbeat_s

    def _take_commands(self, core: EngineCore | EncoderCore, wait_s: float) -> None:
        """Handle all that waits; with nothing to do, wait for the first one."""
        if not self._socket.poll(int(wait_s * 1000)):
            return
        while True:
            try:
                raw = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                command: Command = command_decoder.decode(raw)
            except msgspec.ValidationError as error:
                self._send(StepReport([_refusal(raw, error)], core.stats()))
                continue
            self._handle(core, command)

    def _handle(self, core: EngineCore | EncoderCore, command: Command) -> None:
        match command:
            case Submit(request_id=request_id) | Embed(request_id=request_id) if self._sleeper.is_asleep:
                asleep = ErrorInfo("not_ready", "The worker sleeps.", "Wake it first.")
                self._send(StepReport([TokenDelta(request_id, finish=FinishReason.ERROR, error=asleep)], core.stats()))
            case Submit():
                core.add(command)
            case Embed():
                core.embed(command)
            case Abort(request_id=request_id):
                core.abort(request_id)
            case SetKnobs(knobs=knobs):
                core.set_knobs(knobs)
                log.info("knobs %s", knobs)
            case Sleep():
                self._sleep(core)
            case Wake():
                self._wake()
            case Stop():
                self._stopping = True

    def _sleep(self, core: EngineCore | EncoderCore) -> None:
        """End what is there, then give memory back. One that sleeps already says so again."""
        core.abort_all()
        while core.has_work():
            self._send(core.step())
        try:
            slept = Slept(0.0) if self._sleeper.is_asleep else self._sleeper.sleep()
        except DoesNotFit as error:
            slept = Slept(0.0, error=error_info(error))
        log.info("slept %s", slept)
        self._send(slept)

    def _wake(self) -> None:
        try:
            woken = self._sleeper.wake() if self._sleeper.is_asleep else Woken(0.0)
        except DoesNotFit as error:
            woken = Woken(0.0, error=error_info(error))
        self._unprepared = self._unprepared or not woken.graphs_kept
        log.info("woken %s", woken)
        self._send(woken)

    def _completed(self, engine: BuiltEngine, stats: WorkerStats) -> WorkerStats:
        """With this process's beat, and its memory and device counters, looked up once a heartbeat: steps are short."""
        now = time.monotonic()
        if now - self._memory_mono >= self.config.heartbeat_s:
            self._memory_mono = now
            self._memory = {
                "rss_bytes": _rss_bytes(),
                "device_bytes": engine.device.used_bytes(),
                "outlier_misses_total": misses_of(engine.device.torch_device).total(),
            }
        return msgspec.structs.replace(stats, beat=self._beat, **self._memory)

    def _progress(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        now = time.monotonic()
        if now - self._last_progress_mono >= PROGRESS_EVERY_S or done_bytes == total_bytes:
            self._last_progress_mono = now
            self._send(LoadProgress(stage, done_bytes, total_bytes))

    def _fail(self, error: ErrorInfo) -> None:
        log.error("worker_failed code=%s %s %s", error.code, error.message, error.hint)
        self._send(WorkerFailed(error))

    def _send(self, event: Event) -> None:
        self._last_sent_mono = time.monotonic()
        self._socket.send(event_encoder.encode(event))

    def _on_signal(self, number: int, frame: object) -> None:
        self._stopping = True


def _refusal(raw: bytes, error: msgspec.ValidationError) -> TokenDelta:
    """The end of a request whose command has a field that cannot be. Raises: that error where no request is meant."""
    command = msgspec.msgpack.decode(raw)
    request_id = command.get("request_id") if isinstance(command, dict) else None
    if not isinstance(request_id, str) or command.get("type") not in ("Submit", "Embed"):
        raise error
    invalid = InvalidParameter(f"The request cannot be read: {error}.", "Send what its field may hold.")
    log.warning("request_refused id=%s %s", request_id, error)
    return TokenDelta(request_id, finish=FinishReason.ERROR, error=error_info(invalid))


def _rss_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(arguments: list[str]) -> int:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    if len(arguments) != 1:
        log.error("usage: python -m engine.worker CONFIG.json")
        return EXIT_CONFIG
    config = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=WorkerConfig)
    return Worker(config).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
