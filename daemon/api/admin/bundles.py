"""POST bundles/imports: take in a signed bundle of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter

from daemon.api.admin.access import Admin, Services
from daemon.api.admin.answers import Body
from daemon.api.admin.operations import OperationAnswer, operation_item
from daemon.models.copying import Cancelled, Report
from engine.errors import InvalidParameter

router = APIRouter(prefix="/bundles", tags=["models"])
TRUSTED = "trusted-keys"


class BundleBody(Body):
    """path lies on the daemon's machine. trust: public keys as PEM, besides those in the folder trusted-keys."""

    path: str
    trust: tuple[str, ...] = ()


@router.post("/imports", status_code=202)
async def post_bundle(body: BundleBody, services: Services, caller: Admin) -> OperationAnswer:
    """Begin an import; look at operations/{id} for its progress."""
    from daemon.models.bundle import import_bundle  # cryptography is loaded where it is used
    from daemon.models.signing import parse_public, trusted_keys

    path = Path(body.path)
    if not path.is_absolute():
        raise InvalidParameter(
            f"The path {body.path!r} is not absolute.", "Send it as the daemon sees it.", param="path"
        )
    given = [parse_public(pem.encode(), "a key of trust") for pem in body.trust]
    folder = services.settings.state_dir / TRUSTED

    def work(report: Report, cancelled: Cancelled) -> dict[str, Any]:
        content = import_bundle(services.models, path, given + trusted_keys(folder), report, cancelled)
        return {
            "imported": list(content.imported),
            "already_here": list(content.already_here),
            "signed_by": content.signed_by,
        }

    operation = services.operations.start("bundle", path.name, work)
    await services.tenants.record(caller.actor, "bundle.import", f"path:{path}", {"given_keys": len(given)})
    return OperationAnswer(item=operation_item(operation))
