"""What KServe clients ask of a model before they use it: metadata, configuration, the index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daemon.api.grpc.gen import kserve_pb2 as kp
from daemon.api.grpc.kserve_request import EMBED_INPUTS, INPUTS, OUTPUTS, VERSION, check_version
from daemon.api.grpc.kserve_tensors import TensorKind
from engine.errors import ModelNotFound, PermissionDenied

if TYPE_CHECKING:
    from daemon.api.services import Services
    from daemon.router import Replica
    from daemon.tenants.principal import Principal

PLATFORM = "bayard"
_TYPES = {"BYTES": kp.TYPE_STRING, "BOOL": kp.TYPE_BOOL, "FP32": kp.TYPE_FP32, "UINT32": kp.TYPE_UINT32}


def metadata(services: Services, principal: Principal, name: str, version: str) -> kp.ModelMetadataResponse:
    """Raises: ModelNotFound, PermissionDenied, NotReady"""
    replica = _replica(services, principal, name, version)
    answer = kp.ModelMetadataResponse(name=name, versions=[VERSION], platform=PLATFORM)
    for kind in _inputs(replica).values():
        answer.inputs.add(name=kind.name, datatype=kind.datatype, shape=kind.shape)
    for output, datatype in OUTPUTS.items():
        answer.outputs.add(name=output, datatype=datatype, shape=(-1,))
    return answer


def config(services: Services, principal: Principal, name: str, version: str) -> kp.ModelConfigResponse:
    """Raises: ModelNotFound, PermissionDenied, NotReady"""
    replica = _replica(services, principal, name, version)
    made = kp.ModelConfig(name=name, platform=PLATFORM, backend=PLATFORM, max_batch_size=0)
    made.model_transaction_policy.decoupled = replica.generates
    for kind in _inputs(replica).values():
        made.input.add(name=kind.name, data_type=_TYPES[kind.datatype], dims=kind.shape, optional=kind.optional)
    for output, datatype in OUTPUTS.items():
        made.output.add(name=output, data_type=_TYPES[datatype], dims=(-1,))
    return kp.ModelConfigResponse(config=made)


def index(services: Services, principal: Principal, *, ready: bool) -> kp.RepositoryIndexResponse:
    """The models this key may use; with ready, only those that answer now."""
    answer = kp.RepositoryIndexResponse()
    serving = {*services.router.models(), *services.router.on_demand()}  # a request loads these and waits
    waiting = {view.model: view for view in services.supervisor.views() if view.model not in serving}
    for name in sorted({*serving, *(() if ready else waiting)}):
        if services.router.may_use(principal.limits, name):
            state, reason = ("READY", "") if name in serving else ("UNAVAILABLE", str(waiting[name].state))
            answer.models.add(name=name, version=VERSION, state=state, reason=reason)
    return answer


def is_ready(services: Services, principal: Principal, name: str, version: str) -> bool:
    """Raises: ModelNotFound for a version that there is not"""
    check_version(name, version)
    return services.router.may_use(principal.limits, name) and name in {
        *services.router.models(),
        *services.router.on_demand(),
    }


def _replica(services: Services, principal: Principal, name: str, version: str) -> Replica:
    check_version(name, version)
    if not services.router.may_use(principal.limits, name):
        raise PermissionDenied(f"This key may not use the model {name[:128]!r}.", param="model_name")
    if not name:
        raise ModelNotFound("No model is named.", param="model_name")
    return services.router.replica_for(name)


def _inputs(replica: Replica) -> dict[str, TensorKind]:
    return INPUTS if replica.generates else EMBED_INPUTS
