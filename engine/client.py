"""The daemon's side of the border: one EngineClient a worker process. No torch.

Every request submitted here gets exactly one terminal TokenDelta: from the worker, or from `fail_all` when the worker
is lost. Streams are unbounded queues of small messages; a reader that went away aborts its request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

import msgspec
import zmq
import zmq.asyncio

from engine.errors import InvalidParameter, WorkerLost
from engine.messages import (
    Abort,
    Command,
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
    Wake,
    Woken,
    WorkerFailed,
    WorkerReady,
    WorkerStats,
    command_encoder,
    event_decoder,
)

NO_WORKER = ErrorInfo("worker_lost", "The worker is not there.", "Try again in a moment.")


class EngineClient:
    """Owner of the endpoint's daemon end. All methods are called on one event loop."""

    def __init__(self, endpoint: str, context: zmq.asyncio.Context | None = None) -> None:
        self.endpoint = endpoint
        self.stats: WorkerStats | None = None
        self.submitted_total = 0  # requests that a worker was asked for
        self.last_progress_mono = time.monotonic()  # moves when the worker's loop or its loading does
        self.on_progress: Callable[[LoadProgress], None] | None = None
        self.on_failed: Callable[[WorkerFailed], None] | None = None
        self.on_stats: Callable[[WorkerStats], None] | None = None
        self._context = context or zmq.asyncio.Context.instance()
        self._socket: zmq.asyncio.Socket | None = None
        self._reader: asyncio.Task[None] | None = None
        self._streams: dict[str, asyncio.Queue[TokenDelta]] = {}
        self._ready: asyncio.Future[WorkerReady] | None = None
        self._closed_with: ErrorInfo | None = None
        self._asked: list[tuple[type[Slept] | type[Woken], asyncio.Future[Slept | Woken]]] = []

    @property
    def ready(self) -> asyncio.Future[WorkerReady]:
        """Done when the worker can serve. Only after start()."""
        assert self._ready is not None, "start() comes first"
        return self._ready

    @property
    def inflight(self) -> int:
        return len(self._streams)

    async def start(self) -> None:
        """Bind the endpoint and listen. The worker may be spawned before or after."""
        self._ready = asyncio.get_running_loop().create_future()
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.bind(self.endpoint)
        self._socket = socket
        self._reader = asyncio.create_task(self._read(socket), name=f"engine-client {self.endpoint}")

    def submit(self, submit: Submit) -> AsyncIterator[TokenDelta]:
        """Send the request and yield its deltas up to the terminal one. Leaving early aborts it in the worker.

        Raises: InvalidParameter, with the first delta, for a number or a text that no message can hold
        """
        return self._exchange(submit)

    async def embed(self, embed: Embed) -> TokenDelta:
        """One text's embedding: its terminal delta, with `embedding` and STOP, or with `error`, or with ABORT.

        Blocks: until the worker has answered or is lost. Cancelling aborts it in the worker.
        """
        async with aclosing(self._exchange(embed)) as deltas:
            async for delta in deltas:
                if delta.finish is not None:
                    return delta
        raise AssertionError(f"{embed.request_id} ended without a terminal delta")

    async def _exchange(self, submit: Submit | Embed) -> AsyncGenerator[TokenDelta, None]:
        queue: asyncio.Queue[TokenDelta] = asyncio.Queue()
        written = _written(submit)
        if self._closed_with is not None:
            yield TokenDelta(submit.request_id, finish=FinishReason.ERROR, error=self._closed_with)
            return
        self._streams[submit.request_id] = queue
        self.submitted_total += 1
        finished = False
        try:
            if not await self._put(written):
                finished = True
                yield TokenDelta(submit.request_id, finish=FinishReason.ERROR, error=NO_WORKER)
            while not finished:
                delta = await queue.get()
                finished = delta.finish is not None
                yield delta
        finally:
            self._streams.pop(submit.request_id, None)
            if not finished and self._closed_with is None:
                await self.abort(submit.request_id)

    async def abort(self, request_id: str) -> None:
        """Nothing happens if the worker is gone: so is the request."""
        await self._send(Abort(request_id))

    async def set_knobs(self, knobs: Knobs) -> None:
        """Raises: WorkerLost if there is no worker to tell."""
        if not await self._send(SetKnobs(knobs)):
            raise WorkerLost(
                "The worker is not there to take new knobs.", "It takes them from its profile when it starts."
            )

    async def sleep(self) -> Slept:
        """Let the worker give its memory back; `error` in the answer says why it did not.

        Blocks: until it has, or is lost. Raises: WorkerLost
        """
        answer = await self._ask(Sleep(), Slept)
        assert isinstance(answer, Slept)
        return answer

    async def wake(self) -> Woken:
        """The way back. Blocks: until it serves again, or is lost. Raises: WorkerLost"""
        answer = await self._ask(Wake(), Woken)
        assert isinstance(answer, Woken)
        return answer

    async def _ask(self, command: Sleep | Wake, answer: type[Slept] | type[Woken]) -> Slept | Woken:
        waiting: asyncio.Future[Slept | Woken] = asyncio.get_running_loop().create_future()
        self._asked.append((answer, waiting))
        if self._closed_with is not None or not await self._send(command):
            waiting.cancel()
            raise WorkerLost("The worker is not there to sleep or wake.", "Look at its state.")
        try:
            return await waiting
        except asyncio.CancelledError:
            if self._closed_with is not None and waiting.cancelled():
                raise WorkerLost("The worker was lost meanwhile.", "Look at its state.") from None
            raise

    async def stop(self) -> None:
        """Ask the worker to end; close() follows when it has. Nothing happens if it is gone already."""
        await self._send(Stop())

    def fail_all(self, error: ErrorInfo) -> None:
        """The worker is lost: end every open stream with this error, and every later submit at once."""
        self._closed_with = error
        for request_id, queue in self._streams.items():
            queue.put_nowait(TokenDelta(request_id, finish=FinishReason.ERROR, error=error))
        self._streams = {}
        for _, waiting in self._asked:
            waiting.cancel()
        if self._ready is not None and not self._ready.done():
            self._ready.cancel()

    async def close(self) -> None:
        """Stop listening and free the endpoint. Open streams end with an error."""
        if self._closed_with is None:
            self.fail_all(ErrorInfo("worker_lost", "The worker was stopped.", "Try again."))
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])
        if self._socket is not None:
            self._socket.close(linger=0)

    async def _send(self, command: Command) -> bool:
        return await self._put(command_encoder.encode(command))

    async def _put(self, written: bytes) -> bool:
        """False: no worker is connected. Never waits for one: a dead worker must not hold its callers."""
        if self._socket is None or self._socket.closed:
            return False
        try:
            await self._socket.send(written, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    async def _read(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            try:
                event = event_decoder.decode(await socket.recv())
            except msgspec.MsgspecError as error:
                # What it says can no longer be followed: end its streams, and let the supervisor replace it.
                info = ErrorInfo("worker_error", f"The worker sent what is not a message: {error}.", "See its log.")
                self.fail_all(info)
                self._handle(WorkerFailed(info))
                return
            self._handle(event)

    def _handle(self, event: Event) -> None:
        match event:
            case StepReport(deltas=deltas, stats=stats):
                self._note_stats(stats)
                for delta in deltas:
                    queue = self._streams.get(delta.request_id)
                    if queue is not None:  # None: the reader went away
                        queue.put_nowait(delta)
            case Heartbeat(stats=stats):
                self._note_stats(stats)
            case LoadProgress():
                self.last_progress_mono = time.monotonic()
                if self.on_progress is not None:
                    self.on_progress(event)
            case WorkerReady():
                self.last_progress_mono = time.monotonic()
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(event)
            case Slept() | Woken():
                self.last_progress_mono = time.monotonic()
                for answer, waiting in self._asked:
                    if isinstance(event, answer) and not waiting.done():
                        waiting.set_result(event)
                self._asked = [asked for asked in self._asked if not asked[1].done()]
            case WorkerFailed():
                if self.on_failed is not None:
                    self.on_failed(event)

    def _note_stats(self, stats: WorkerStats) -> None:
        if self.stats is None or (stats.step, stats.beat) != (self.stats.step, self.stats.beat):
            self.last_progress_mono = time.monotonic()
        self.stats = stats
        if self.on_stats is not None:
            self.on_stats(stats)


def _written(request: Submit | Embed) -> bytes:
    """Raises: InvalidParameter; the APIs' own bounds come first, and name the field"""
    try:
        return command_encoder.encode(request)
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidParameter(
            f"The request holds what cannot be told to a worker: {error}.", "Use numbers of at most 63 bits."
        ) from None
