"""GET certificates and POST certificates/rotate: what TLS shows, until when, and a new one from the box's authority."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING

from fastapi import APIRouter

from daemon.api.admin.access import Admin, Services, Viewer
from daemon.api.admin.answers import Answer, Body, Consequences, Item
from engine.errors import ConfigError

if TYPE_CHECKING:
    from daemon.tls.authority import CertificateFacts

router = APIRouter(prefix="/certificates", tags=["tls"])


class CertificateItem(Item):
    """kind: server, authority."""

    kind: str
    path: str
    subject: str
    issuer: str
    names: list[str]
    not_before: datetime
    not_after: datetime
    fingerprint: str


class CertificatesAnswer(Answer):
    """enabled: whether HTTP and gRPC use TLS."""

    enabled: bool
    items: list[CertificateItem]


class RotateBody(Body):
    """names: other than those of the present certificate. authority: a new authority too."""

    names: tuple[str, ...] = ()
    authority: bool = False


@router.get("")
async def get_certificates(services: Services, caller: Viewer) -> CertificatesAnswer:
    from daemon.tls.authority import Authority, facts_of  # cryptography is loaded where it is used

    def read() -> list[CertificateItem]:
        own = Authority(services.settings.state_dir / "tls")
        server = services.tls.cert_file if services.tls is not None else own.server_cert
        found = [("server", server), ("authority", own.ca_cert)]
        return [certificate_item(kind, facts_of(path)) for kind, path in found if path.exists()]

    return CertificatesAnswer(enabled=services.settings.tls.enabled, items=await asyncio.to_thread(read))


@router.post("/rotate")
async def post_rotate(
    services: Services, caller: Admin, body: RotateBody | None = None, dry_run: bool = False
) -> CertificatesAnswer | Consequences:
    """A new server certificate, used by new connections at once; those that are open keep theirs."""
    from daemon.tls.authority import Authority

    asked = body or RotateBody()
    if services.settings.tls.cert_file:
        raise ConfigError(
            f"the certificate is the site's own, {services.settings.tls.cert_file}.",
            "Replace that file: a new one is noticed within seconds.",
        )
    if dry_run:
        told = ["new connections show the new certificate at once; open ones go on"]
        if asked.authority:
            told.append("clients need the new ca.crt; it holds the old authority too, until that expires")
        return Consequences(consequences=told)
    own = Authority(services.settings.state_dir / "tls")
    old = await asyncio.to_thread(own.server_facts)
    facts = await asyncio.to_thread(own.rotate, list(asked.names) or None, authority=asked.authority)
    if services.tls is not None:
        services.tls.look()
    after = {"fingerprint": facts.fingerprint, "until": facts.not_after_at, "authority": asked.authority}
    await services.tenants.record(caller.actor, "certificate.rotate", "certificate:server", after, _facts(old))
    return await get_certificates(services, caller)


def _facts(found: CertificateFacts | None) -> dict[str, object] | None:
    return None if found is None else {"fingerprint": found.fingerprint, "until": found.not_after_at}


def certificate_item(kind: str, facts: CertificateFacts) -> CertificateItem:
    return CertificateItem(
        kind=kind,
        path=facts.path,
        subject=facts.subject,
        issuer=facts.issuer,
        names=list(facts.names),
        not_before=facts.not_before_at,
        not_after=facts.not_after_at,
        fingerprint=facts.fingerprint,
    )
