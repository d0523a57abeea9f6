"""Errors as OpenAI's clients expect them: a status, and JSON that says what was wrong."""

from __future__ import annotations

from typing import Any

from hybridge.cache.errors import CapacityError, HybridgeError


class ApiError(Exception):
    """A request that cannot be answered. kind: such as ``invalid_request_error``; param: the field that is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        *,
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param, self.code = status, message, kind, param, code

    def to_dict(self) -> dict[str, Any]:
        """Return the body of the response."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error of a request that asks for what cannot be."""
    return ApiError(400, message, param=param, code=code)


def of_hybridge(error: HybridgeError) -> ApiError:
    """Return what a client is told of an error of ours: a caller's mistake, or ours."""
    if isinstance(error, CapacityError):
        return invalid(str(error), "messages", "context_length_exceeded")
    if error.exit_code == 2:
        return invalid(str(error))
    return ApiError(500, str(error), "server_error")
