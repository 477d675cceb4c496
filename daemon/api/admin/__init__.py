"""The admin API: what operators, the console and the commands see and change, over a unix socket."""

from daemon.api.admin.app import build_admin_app
from daemon.api.admin.peer import PeerProtocol

__all__ = ["PeerProtocol", "build_admin_app"]
