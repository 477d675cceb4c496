"""A worker without a model: speaks engine.messages over ZeroMQ and answers at once. Run as `engine.worker` is:

    python -m tests.fakes.fake_worker CONFIG.json

It writes the tokens of $FAKE_REPLY_IDS in turn (a JSON list), else 1, 2, 3, ... . What it does besides is read from
$FAKE_SCRIPT, a JSON object; and again from the file $FAKE_SCRIPT_FILE, if set, whenever that changes:

    load_s          time to become ready (progress is reported)           load_stuck      never ready, no progress
    exit_at_start   exit status at once                                   fail_at_start   WorkerFailed with this message
    ttft_s          before a request's first token                        token_s         between tokens of a request
    burst           tokens a delta                                        max_context_tokens, kv_pages_total
    error           every request ends with this error code               hang            stop answering and beating
    crash_after     die by SIGKILL after so many tokens of all requests   ignore_stop     outlive Stop and SIGTERM
    say             a line for the log at start                           protocol        speak of another version
    rss_bytes       said of it while it is awake
    sleep_error     stay awake, with this message                         wake_error      stay asleep; wake_s: takes so
    allocate_bytes  take so much memory before it is ready, and say so in the log
    embeds          answer Embed too, with vectors of so many numbers

max_tokens is honoured (LENGTH); a token of stop_token_ids ends with STOP; Abort ends with ABORT. Imports no torch.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq

from engine.messages import (
    PROTOCOL_VERSION,
    Abort,
    Embed,
    ErrorInfo,
    Event,
    FinishReason,
    Heartbeat,
    Knobs,
    LoadProgress,
    SetKnobs,
    Sleep,
    Slept,
    StepReport,
    Stop,
    Submit,
    TokenDelta,
    TokenLogprob,
    Usage,
    Wake,
    Woken,
    WorkerConfig,
    WorkerFailed,
    WorkerReady,
    WorkerStats,
    command_decoder,
    event_encoder,
)


@dataclass(slots=True)
class Running:
    submit: Submit
    due_mono: float
    written: int = 0


@dataclass(slots=True)
class FakeWorker:
    config: WorkerConfig
    socket: zmq.Socket[bytes]
    script: dict[str, Any]
    reply: list[int]
    running: dict[str, Running] = field(default_factory=dict)
    ended: list[TokenDelta] = field(default_factory=list)
    step: int = 0
    beat: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    aborts: int = 0
    knobs: Knobs = field(default_factory=Knobs)
    stopping: bool = False
    asleep: bool = False
    script_mtime_ns: int = 0
    memory: list[bytearray] = field(default_factory=list)

    def send(self, event: Event) -> None:
        self.socket.send(event_encoder.encode(event))

    def load(self) -> None:
        if self.script.get("say"):
            print(self.script["say"], flush=True)
        if "exit_at_start" in self.script:
            sys.exit(int(self.script["exit_at_start"]))
        if "fail_at_start" in self.script:
            self.send(WorkerFailed(ErrorInfo("does_not_fit", self.script["fail_at_start"])))
            time.sleep(0.1)
            sys.exit(3)
        self.send(LoadProgress("reading", 0, 100))
        if self.script.get("load_stuck"):
            time.sleep(3600)
        started = time.monotonic()
        load_s = float(self.script.get("load_s", 0.0))
        while (passed := time.monotonic() - started) < load_s:
            self.send(LoadProgress("reading", int(100 * passed / load_s), 100))
            time.sleep(min(0.05, load_s))
        if taken := int(self.script.get("allocate_bytes", 0)):
            print("taking memory", flush=True)
            self.memory = [bytearray(b"x" * (1 << 20)) for _ in range(taken >> 20)]
        self.send(LoadProgress("warming", 100, 100))
        self.send(
            WorkerReady(
                int(self.script.get("protocol", PROTOCOL_VERSION)),
                os.getpid(),
                self.config.model_name,
                self.config.device,
                int(self.script.get("max_context_tokens", self.config.max_context_tokens or 2048)),
                int(self.script.get("kv_pages_total", 1024)),
                self.config.page_tokens,
                time.monotonic() - started,
                notes=["a fake without a model"],
                embeds=bool(self.script.get("embeds")),
                embedding_dimensions=int(self.script.get("embeds", 0)),
            )
        )

    def run(self) -> None:
        next_beat = 0.0
        while not self.stopping:
            self.read_script()
            if self.script.get("hang"):
                time.sleep(0.05)
                continue
            now = time.monotonic()
            dues = [one.due_mono for one in self.running.values()]
            wait_s = max(0.0, min([next_beat, *dues]) - now)
            self.beat += 1
            if self.socket.poll(int(wait_s * 1000)):
                while self.socket.poll(0):
                    self.handle(self.socket.recv())
            deltas = self.ended + self.advance()
            self.ended = []
            if deltas:
                self.step += 1
                self.send(StepReport(deltas, self.stats()))
                next_beat = time.monotonic() + self.config.heartbeat_s
            elif time.monotonic() >= next_beat:
                self.send(Heartbeat(self.stats()))
                next_beat = time.monotonic() + self.config.heartbeat_s

    def handle(self, data: bytes) -> None:
        match command_decoder.decode(data):
            case Submit(request_id=request_id) if self.asleep:
                self.ended.append(
                    TokenDelta(request_id, finish=FinishReason.ERROR, error=ErrorInfo("not_ready", "It sleeps."))
                )
            case Submit() as submit:
                self.prompt_tokens += len(submit.prompt_token_ids)
                due = time.monotonic() + float(self.script.get("ttft_s", 0.0))
                self.running[submit.request_id] = Running(submit, due)
            case Embed(request_id=request_id, prompt_token_ids=ids):
                self.prompt_tokens += len(ids)
                size = int(self.script["embeds"])
                vector = struct.pack(f"<{size}f", 1.0, *[0.0] * (size - 1))
                usage = Usage(prompt_tokens=len(ids))
                self.ended.append(TokenDelta(request_id, [], None, FinishReason.STOP, usage=usage, embedding=vector))
            case Abort(request_id=request_id):
                if (one := self.running.pop(request_id, None)) is not None:
                    self.aborts += 1
                    self.ended.append(self.last(one, [], FinishReason.ABORT))
            case SetKnobs(knobs=knobs):
                self.knobs = knobs
            case Sleep():
                error = self.script.get("sleep_error")
                self.asleep = error is None
                self.send(Slept(0.0, 1 << 20, error=ErrorInfo("does_not_fit", error) if error else None))
            case Wake():
                time.sleep(float(self.script.get("wake_s", 0.0)))
                error = self.script.get("wake_error")
                self.asleep = error is not None
                self.send(Woken(0.0, error=ErrorInfo("does_not_fit", error) if error else None))
            case Stop():
                if not self.script.get("ignore_stop"):
                    ended = [self.last(one, [], FinishReason.ABORT) for one in self.running.values()]
                    self.send(StepReport(ended, self.stats()))
                    self.stopping = True

    def advance(self) -> list[TokenDelta]:
        now = time.monotonic()
        deltas = []
        token_s = float(self.script.get("token_s", 0.0))
        burst = int(self.script.get("burst", 1))
        for one in list(self.running.values()):
            if one.due_mono > now:
                continue
            one.due_mono = now + token_s
            deltas.append(self.next_delta(one, burst))
            self.tokens += len(deltas[-1].token_ids)
            if self.script.get("crash_after") is not None and self.tokens >= self.script["crash_after"]:
                os.kill(os.getpid(), signal.SIGKILL)
        return deltas

    def next_delta(self, one: Running, burst: int) -> TokenDelta:
        sampling = one.submit.sampling
        if self.script.get("error"):
            self.running.pop(one.submit.request_id)
            error = ErrorInfo(self.script["error"], "The fake was told to fail.", "Tell it otherwise.")
            return self.last(one, [], FinishReason.ERROR, error)
        ids: list[int] = []
        finish = None
        while len(ids) < burst and finish is None:
            token = self.reply[one.written % len(self.reply)] if self.reply else one.written + 1
            stops = token in sampling.stop_token_ids and not sampling.ignore_eos
            one.written += 1
            ids.append(token)
            if stops and one.written > sampling.min_tokens:
                finish = FinishReason.STOP
            elif one.written >= sampling.max_tokens:
                finish = FinishReason.LENGTH
        if finish is not None:
            self.running.pop(one.submit.request_id)
            return self.last(one, ids, finish)
        return TokenDelta(one.submit.request_id, ids, self.logprobs(one, ids))

    def last(self, one: Running, ids: list[int], finish: FinishReason, error: ErrorInfo | None = None) -> TokenDelta:
        usage = Usage(prompt_tokens=len(one.submit.prompt_token_ids), output_tokens=one.written)
        return TokenDelta(one.submit.request_id, ids, self.logprobs(one, ids), finish, error, usage)

    def logprobs(self, one: Running, ids: list[int]) -> list[TokenLogprob] | None:
        wanted = one.submit.sampling.top_logprobs
        if wanted is None:
            return None
        return [TokenLogprob(i, -0.5, [(i + k, -0.5 - k) for k in range(wanted)]) for i in ids]

    def stats(self) -> WorkerStats:
        return WorkerStats(
            step=self.step,
            beat=self.beat,
            running=len(self.running),
            kv_pages_total=int(self.script.get("kv_pages_total", 1024)),
            kv_pages_active=len(self.running),
            page_tokens=self.config.page_tokens,
            prompt_tokens_total=self.prompt_tokens,
            output_tokens_total=self.tokens,
            aborts_total=self.aborts,
            rss_bytes=0 if self.asleep else int(self.script.get("rss_bytes", 0)),
            knobs=self.knobs,
        )

    def read_script(self) -> None:
        name = os.environ.get("FAKE_SCRIPT_FILE")
        if not name:
            return
        try:
            mtime_ns = os.stat(name).st_mtime_ns
            if mtime_ns != self.script_mtime_ns:
                self.script = {**self.script, **json.loads(Path(name).read_text())}
                self.script_mtime_ns = mtime_ns
        except (OSError, ValueError):  # not there yet, or half written: the next turn reads it
            return


def main() -> None:
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=WorkerConfig)
    script = json.loads(os.environ.get("FAKE_SCRIPT") or "{}")
    if script.get("ignore_stop"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 500)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.connect(config.endpoint)
        worker = FakeWorker(config, socket, script, json.loads(os.environ.get("FAKE_REPLY_IDS") or "[]"))
        worker.knobs = config.knobs
        worker.read_script()
        worker.load()
        worker.run()


if __name__ == "__main__":
    main()
