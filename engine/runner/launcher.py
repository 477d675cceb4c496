"""Launching a step with as much of it as there is memory for."""

from __future__ import annotations

import logging
from collections.abc import Callable

from engine.devices import Device
from engine.errors import BayardError, DeviceMemoryFull
from engine.runner.faults import MemoryCaution, is_out_of_memory, smaller
from engine.runner.launched import LaunchedStep
from engine.runner.runner import ModelRunner
from engine.scheduler.chunk import ScheduledChunk
from engine.scheduler.request import Request, RequestState

log = logging.getLogger("bayard.engine")


class Launcher:
    """Owner: the engine.

    settle: read the step before, so that all tokens are on the host; give_up: end a request with an error
    """

    def __init__(
        self,
        runner: ModelRunner,
        device: Device,
        least_tokens: int,
        settle: Callable[[], None],
        give_up: Callable[[Request, BayardError], None],
    ) -> None:
        self.caution = MemoryCaution()
        self._runner = runner
        self._device = device
        self._least_tokens = least_tokens  # no slice of a prompt is made shorter
        self._settle = settle
        self._give_up = give_up

    def launch(self, chunks: list[ScheduledChunk]) -> LaunchedStep | None:
        """Queue the step. Where memory is short: with half of each prompt's slice, then with half the requests.

        None: nothing of it is left. Raises: whatever else the step fails with.
        """
        while chunks:
            try:
                return self._runner.launch(chunks)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                log.warning("step_out_of_memory requests=%d %s", len(chunks), error)
            chunks = self._less(chunks)
        return None

    def _less(self, chunks: list[ScheduledChunk]) -> list[ScheduledChunk]:
        self._settle()  # a step that runs again must find its tokens on the host
        self._device.release_unused()
        going = [chunk for chunk in chunks if chunk.request.state is RequestState.RUNNING]
        self.caution.short(going, self._least_tokens)
        for chunk in going:
            self._runner.release(chunk.request)  # what it has on the device may be half of a step ahead
        less = smaller(going, self._least_tokens)
        if less is None and going:
            request = going[0].request
            log.error("request_given_up request=%s", request.id)
            self._give_up(
                request,
                DeviceMemoryFull(
                    f"The smallest step of this request alone needs more memory than {self._device.torch_device} "
                    "has free.",
                    "Send it again when less runs; lower the plan's KV cache or its chunk if it stays.",
                ),
            )
        return less or []
