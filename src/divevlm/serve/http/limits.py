"""What a request may cost, and how one that may not be served is refused."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from starlette.responses import JSONResponse


@dataclass(frozen=True)
class Limits:
    """Of one request, but for `queue`: how many requests may wait."""

    queue: int = 32
    body: int = 20_000_000  # bytes, pictures included
    images: int = 8
    pixels: int = 16_000_000  # of each picture
    prompt_tokens: int = 8192  # visual tokens included, before pruning
    new_tokens: int = 512  # also what a request gets that doesn't say
    seconds: float = 30.0  # for a request's body to arrive, and for an allowed host to send a picture

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            kinds = (int, float) if limit.name == "seconds" else (int,)
            least = 0 if limit.name == "queue" else 1
            if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value < float("inf"):
                raise ValueError(f"{limit.name} must be a number of at least {least}, got {value!r}")


class RequestError(Exception):
    """A request that gets no answer, and why."""

    def __init__(self, status: int, message: str, param: str | None = None, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status, self.param, self.headers = status, param, headers

    def response(self) -> JSONResponse:
        return JSONResponse({"error": told(self.status, str(self), self.param)}, self.status, self.headers)


def told(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """An error as OpenAI writes it."""
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(status, "invalid_request_error")
    return {
        "message": message,
        "type": kind if status < 500 else "server_error",
        "param": param,
        "code": "model_not_found" if (status, param) == (404, "model") else None,
    }


def line(error: BaseException) -> str:
    """An exception in one line of moderate length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:299] + "…"
