"""Router: which replica answers for a model's name, and why none does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView
from engine.errors import ModelNotFound, NotReady
from engine.messages import WorkerConfig, WorkerReady

if TYPE_CHECKING:
    from daemon.tenants.limits import TenantLimits
    from engine.client import EngineClient
    from engine.text import TextPipeline

TextLoader = Callable[[str], "TextPipeline"]


@dataclass(frozen=True, slots=True)
class Replica:
    """One ready worker with the text work of its model."""

    worker: str
    model: str
    client: EngineClient
    text: TextPipeline
    max_context_tokens: int
    device: str
    since_mono: float
    generates: bool = True  # False: it answers Embed alone
    embeds: bool = False
    embedding_dimensions: int = 0  # 0: it does not embed
    adapter: str = ""  # what Submit.adapter and Embed.adapter must say; "": the model itself


class Router:
    """Ready replicas by model name. Owner: the Appliance; the supervisor adds and removes. Event loop only."""

    def __init__(self, load_text: TextLoader) -> None:
        self._load_text = load_text
        self._replicas: dict[str, list[Replica]] = {}
        self.since_mono = time.monotonic()
        self._texts: dict[str, asyncio.Future[TextPipeline]] = {}  # by model path
        self.views: Callable[[], list[WorkerView]] = list
        self.imported: Callable[[], Collection[str]] = tuple
        self.ask: Callable[[str], bool] = lambda model: False  # begin to load what is loaded on demand
        self.offers: Callable[[], Mapping[str, int]] = dict  # what is loaded on demand, and its context in tokens
        self.coming: Callable[[str], NotReady | None] = lambda model: None  # why what the plan wants has no worker yet
        self.resting: Callable[[str], bool] = lambda model: False  # whether its workers sleep for want of a plan
        self.aliases: Callable[[], Mapping[str, str]] = dict  # the model that each other name means

    def models(self) -> list[str]:
        """Names that can be asked for now, sorted."""
        aliases = (alias for alias, model in self.aliases().items() if model in self._replicas)
        return sorted({*self._replicas, *aliases})

    def on_demand(self) -> dict[str, int]:
        """Names that are not there now and are loaded when they are asked for, with their context in tokens."""
        absent = {model: tokens for model, tokens in self.offers().items() if model not in self._replicas}
        return absent | {alias: absent[model] for alias, model in self.aliases().items() if model in absent}

    def replica_for(self, model: str) -> Replica:
        """The replica with the fewest requests in flight.

        Raises: NotReady while one is on its way; ModelNotFound for a name no wanted worker serves.
        """
        model = self.aliases().get(model, model)
        replicas = self._replicas.get(model)
        if replicas:
            return replicas[0] if len(replicas) == 1 else min(replicas, key=lambda replica: replica.client.inflight)
        asked = self.ask(model)
        views = [view for view in self.views() if model in (view.model, *(a.name for a in view.config.adapters))]
        sleeping = bool(views) and all(view.state is WorkerState.SLEEPING for view in views)
        if sleeping and (asked or self.resting(model)):
            views = []
        if views:
            raise _not_ready(model, views)
        if (hindered := self.coming(model)) is not None:
            raise hindered
        if asked:
            raise NotReady(f"the model {model!r} is loaded for this request.", "Try again shortly.", retry_after_s=2.0)
        if model in self.imported():
            raise ModelNotFound(
                f"the model {model!r} is imported, but the active plan does not load it.",
                "Activate a plan with it: `bayard plan list`.",
                param="model",
            )
        # Which others there are is not told here: not every key may know.
        raise ModelNotFound(f"there is no model {model!r}.", "GET /v1/models lists those there are.", param="model")

    def may_use(self, limits: TenantLimits, name: str) -> bool:
        """An alias is allowed if its model is."""
        return limits.allows_model(name) or limits.allows_model(self.aliases().get(name, name))

    def start_text(self, path: str) -> None:
        """Begin to load the tokenizer of the model at path, beside the worker's own start."""
        if path not in self._texts:
            self._texts[path] = asyncio.ensure_future(asyncio.to_thread(self._load_text, path))

    async def add(self, worker: str, config: WorkerConfig, client: EngineClient, ready: WorkerReady) -> None:
        """Send traffic to this worker from now on.

        Raises: whatever loading the tokenizer raised.
        """
        self.start_text(config.model_path)
        try:
            text = await asyncio.shield(self._texts[config.model_path])
        except Exception:  # a later start tries again
            self._texts.pop(config.model_path, None)
            raise
        replica = Replica(
            worker,
            config.model_name,
            client,
            text,
            ready.max_context_tokens,
            ready.device,
            time.monotonic(),
            ready.generates,
            ready.embeds,
            ready.embedding_dimensions,
        )
        for served in (replica, *(replace(replica, model=name, adapter=name) for name in ready.adapters)):
            self._replicas.setdefault(served.model, []).append(served)

    def remove(self, worker: str) -> None:
        """Send it nothing more. Harmless for a worker that is not here."""
        for model, replicas in list(self._replicas.items()):
            kept = [replica for replica in replicas if replica.worker != worker]
            if kept:
                self._replicas[model] = kept
            else:
                del self._replicas[model]

    def forget_text(self, path: str) -> None:
        """Drop the tokenizer of a model that no wanted worker serves any more."""
        self._texts.pop(path, None)


def load_text_of(path: str) -> TextPipeline:
    """The tokenizer and chat template of the model at path. Blocks: about a second."""
    from engine.spec import read_spec
    from engine.text import load_text

    return load_text(read_spec(Path(path)))


def _not_ready(model: str, views: list[WorkerView]) -> NotReady:
    view = min(views, key=lambda view: _NEARNESS.get(view.state, 10))
    if view.state in (WorkerState.STARTING, WorkerState.WARMING):
        progress = view.progress
        how_far = ""
        if progress is not None and progress.total_bytes:
            share = 100 * progress.done_bytes / progress.total_bytes
            how_far = f" ({progress.stage}, {share:.0f} % of {progress.total_bytes / 2**20:.0f} MiB)"
        return NotReady(f"the model {model!r} is {view.state}{how_far}.", "Try again shortly.", retry_after_s=2.0)
    if view.state is WorkerState.LATCHED:
        return NotReady(
            f"the model {model!r} is down: {view.reason}.",
            f"An operator can look at `bayard status` and restart worker {view.name}.",
            retry_after_s=60.0,
        )
    if view.state is WorkerState.SLEEPING and view.pid is None:
        return NotReady(
            f"the model {model!r} is not ready: its worker was put to sleep ({view.reason}).",
            f"An operator can wake worker {view.name}: `bayard workers wake {view.name}`.",
            retry_after_s=60.0,
        )
    wait_s = view.retry_in_s if view.retry_in_s is not None else 1.0
    return NotReady(
        f"the model {model!r} is not ready: {_PAUSES.get(view.state, view.state)}.",
        "Try again shortly.",
        retry_after_s=max(1.0, wait_s),
    )


_PAUSES = {
    WorkerState.LOST: "its worker was lost and will be started again",
    WorkerState.BACKOFF: "its worker was lost and is about to be started again",
    WorkerState.DRAINING: "its worker finishes what runs before it ends",
    WorkerState.STOPPING: "its worker is ending",
    WorkerState.SLEEPING: "its worker makes room for another, which is coming",
}


_NEARNESS = {
    WorkerState.READY: 0,
    WorkerState.WARMING: 1,
    WorkerState.STARTING: 2,
    WorkerState.BACKOFF: 3,
    WorkerState.LOST: 4,
    WorkerState.STOPPED: 5,
    WorkerState.DRAINING: 6,
    WorkerState.SLEEPING: 7,
    WorkerState.STOPPING: 8,
    WorkerState.LATCHED: 9,
}
