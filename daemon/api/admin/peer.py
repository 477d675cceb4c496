"""Who is at the other end: on the socket the kernel tells the peer's user, on the TLS port a key tells the role."""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from fastapi import Request
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from daemon.tenants.principal import Actor, Need, Role
from engine.errors import PermissionDenied

if TYPE_CHECKING:
    from daemon.tenants.service import TenantService

_UCRED = struct.Struct("3i")  # pid, uid, gid
_PEER_MARK = "uid:"


class AdminRole(IntEnum):
    """Each may what those below it may."""

    NONE = 0
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Caller:
    name: str
    role: AdminRole
    origin: str = "socket"

    @property
    def actor(self) -> Actor:
        return Actor(self.name, self.origin)


class PeerProtocol(HttpToolsProtocol):
    """uvicorn's protocol for the admin socket; puts the peer's uid and pid where a TCP peer's address would be."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        found: socket.socket | None = transport.get_extra_info("socket")
        if found is not None and found.family == socket.AF_UNIX:
            pid, uid, _ = _UCRED.unpack(found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
            self.client = (f"{_PEER_MARK}{uid}", pid)


def caller_of(client: tuple[str, int] | None, own_uid: int) -> Caller:
    """root and the daemon's own user are admins; anyone else, and anyone without proof, is nobody."""
    if client is None or not client[0].startswith(_PEER_MARK):
        return Caller("unknown", AdminRole.NONE)
    uid = int(client[0].removeprefix(_PEER_MARK))
    role = AdminRole.ADMIN if uid in (0, own_uid) else AdminRole.NONE
    return Caller(f"{_user_name(uid)}@uds", role)


def _caller_by_key(request: Request, client: tuple[str, int] | None) -> Caller:
    """Raises: Unauthenticated, PermissionDenied, TooManyAttempts"""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    tenants: TenantService = request.app.state.services.tenants
    address = client[0] if client else None
    principal = tenants.identify(secret.strip() if kind.lower() == "bearer" else None, address, Need.ADMINISTRATION)
    role = AdminRole.ADMIN if principal.role is Role.ADMIN else AdminRole.OPERATOR
    return Caller(f"{principal.key_prefix}..@{principal.tenant_name}", role, f"tls {address or 'unknown'}")


def requires(role: AdminRole) -> Callable[[Request], Caller]:
    """The dependency that every admin route declares; a route without one is found by a test."""

    def check(request: Request) -> Caller:
        client = request.scope.get("client")
        by_key = request.scope["scheme"] == "https"  # the TLS port: whoever connects has to show an admin key
        caller = _caller_by_key(request, client) if by_key else caller_of(client, os.getuid())
        if caller.role < role:
            raise PermissionDenied(
                f"{caller.name} has the role {caller.role.name.lower()}; this needs {role.name.lower()}.",
                "Use a key of that role." if by_key else "Run it as root or as the daemon's own user.",
            )
        return caller

    check.needed_role = role  # type: ignore[attr-defined]  # what the test of all routes reads
    return check


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid{uid}"
