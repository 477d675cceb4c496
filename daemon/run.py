"""From settings to a running daemon: logging, the appliance, the event loop."""

from __future__ import annotations

import os

import uvloop

from daemon.settings import Settings


def serve(settings: Settings) -> None:
    """Blocks: until a signal. Raises: BayardError if it cannot start."""
    # gRPC's own logs and fork handlers: nothing here forks, and its C++ lines are no log of ours
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from daemon.api.connections import raise_open_files_limit
    from daemon.app import Appliance
    from daemon.telemetry.logs import set_up_logging

    set_up_logging(settings.log)
    raise_open_files_limit()
    appliance = Appliance(settings)
    try:
        uvloop.run(appliance.run())
    finally:
        appliance.abandon()
