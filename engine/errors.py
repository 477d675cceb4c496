"""The one tree of errors; every layer raises from it and no foreign exception crosses a border.

    BayardError            code, message, hint, retry_after_s
      ConfigError          exit 78: settings, files and folders the operator controls; StateInUse: 75, try again
      HardwareError        DeviceUnusable, DeviceLost
      PlanError            DoesNotFit, UnsupportedFormat
      RequestError         4xx: InvalidParameter, ContextTooLong, ModelNotFound, NotFound, Unauthenticated,
                           PermissionDenied, Cancelled, DeadlineExceeded
      AdmissionError       429/503: QueueFull, QuotaExceeded, TooManyAttempts, Draining, NotReady
      WorkerError          5xx: WorkerLost, WorkerStalled, NumericalFault
      StoreError           MigrationFailed, Conflict (Changed)

`code` is stable and documented in docs/errors.md; `message` says what happened, to what, with both numbers;
`hint` says the next step, as a command if there is one. This module imports nothing of Bayard.
"""

from __future__ import annotations

from typing import ClassVar


class BayardError(Exception):
    """Base of every error Bayard shows to a person or a client."""

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 1

    def __init__(
        self, message: str, hint: str = "", *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.param = param
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" + (f" {self.hint}" if self.hint else "")


class ConfigError(BayardError):
    code = "invalid_configuration"
    exit_code = 78


class StateInUse(ConfigError):
    """Another process holds the state folder, for as long as its work takes."""

    code = "state_in_use"
    exit_code = 75


class HardwareError(BayardError):
    code = "hardware_error"
    http_status = 503
    grpc_status = "UNAVAILABLE"


class DeviceUnusable(HardwareError):
    code = "device_unusable"


class DeviceLost(HardwareError):
    code = "device_lost"


class PlanError(BayardError):
    code = "plan_error"
    http_status = 400
    grpc_status = "FAILED_PRECONDITION"


class DoesNotFit(PlanError):
    code = "does_not_fit"


class UnsupportedFormat(PlanError):
    code = "unsupported_format"


class RequestError(BayardError):
    code = "invalid_request"
    http_status = 400
    grpc_status = "INVALID_ARGUMENT"


class InvalidParameter(RequestError):
    code = "invalid_parameter"


class ContextTooLong(RequestError):
    code = "context_length_exceeded"


class ModelNotFound(RequestError):
    code = "model_not_found"
    http_status = 404
    grpc_status = "NOT_FOUND"


class NotFound(RequestError):
    code = "not_found"
    http_status = 404
    grpc_status = "NOT_FOUND"


class Unauthenticated(RequestError):
    code = "invalid_api_key"
    http_status = 401
    grpc_status = "UNAUTHENTICATED"


class PermissionDenied(RequestError):
    code = "permission_denied"
    http_status = 403
    grpc_status = "PERMISSION_DENIED"


class Cancelled(RequestError):
    """An operator ended the request before it was complete."""

    code = "cancelled"
    http_status = 400
    grpc_status = "CANCELLED"


class DeadlineExceeded(RequestError):
    """The time that the client gave the request was over before it was complete."""

    code = "deadline_exceeded"
    http_status = 504
    grpc_status = "DEADLINE_EXCEEDED"


class AdmissionError(BayardError):
    code = "not_admitted"
    http_status = 503
    grpc_status = "UNAVAILABLE"


class QueueFull(AdmissionError):
    code = "queue_full"


class QuotaExceeded(AdmissionError):
    code = "quota_exceeded"
    http_status = 429
    grpc_status = "RESOURCE_EXHAUSTED"


class TooManyAttempts(AdmissionError):
    """An address tried too many wrong keys."""

    code = "too_many_attempts"
    http_status = 429
    grpc_status = "RESOURCE_EXHAUSTED"


class Draining(AdmissionError):
    code = "draining"


class NotReady(AdmissionError):
    code = "model_loading"


class WorkerError(BayardError):
    code = "worker_error"


class WorkerLost(WorkerError):
    code = "worker_lost"
    http_status = 503
    grpc_status = "UNAVAILABLE"


class WorkerStalled(WorkerError):
    code = "worker_stalled"
    http_status = 503
    grpc_status = "UNAVAILABLE"


class NumericalFault(WorkerError):
    code = "numerical_fault"


class DeviceMemoryFull(WorkerError):
    """A step needed more device memory than there was, even in its smallest form."""

    code = "device_memory_full"
    http_status = 503
    grpc_status = "RESOURCE_EXHAUSTED"


class StoreError(BayardError):
    code = "store_error"


class MigrationFailed(StoreError):
    code = "migration_failed"
    exit_code = 78


class Conflict(StoreError):
    code = "conflict"
    http_status = 400
    grpc_status = "FAILED_PRECONDITION"


class Changed(Conflict):
    """What was to be changed is no longer as the caller saw it."""

    code = "changed"
    http_status = 409
    grpc_status = "ABORTED"


def all_error_types() -> list[type[BayardError]]:
    """Every class of the tree, parents first; tests check documentation and mapping over it."""
    found: list[type[BayardError]] = [BayardError]
    for cls in found:
        found.extend(cls.__subclasses__())
    return found


def error_of(code: str, message: str, hint: str = "", *, unknown: type[BayardError] = BayardError) -> BayardError:
    """The error that another process meant, of its own class; a code this version does not know is kept in the text."""
    for kind in all_error_types():
        if kind.code == code:
            return kind(message, hint)
    return unknown(f"{code}: {message}", hint)
