"""What admin routes ask for: the caller with the needed role, and the appliance's services."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request

from daemon.api.admin.peer import AdminRole, Caller, requires
from daemon.api.admin.services import AdminServices


def _services(request: Request) -> AdminServices:
    return cast(AdminServices, request.app.state.services)


Services = Annotated[AdminServices, Depends(_services)]
Viewer = Annotated[Caller, Depends(requires(AdminRole.VIEWER))]
Operator = Annotated[Caller, Depends(requires(AdminRole.OPERATOR))]
Admin = Annotated[Caller, Depends(requires(AdminRole.ADMIN))]
