"""The routes, and who may use them."""

from __future__ import annotations

import hmac
from functools import partial
from importlib.resources import files

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from divevlm.serve.http.chat import Desk
from divevlm.serve.http.endpoint import Endpoint
from divevlm.serve.http.explore import explore
from divevlm.serve.http.limits import RequestError

OPEN = ("/", "/health")  # hold nothing of the model or of anybody's request
LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")


class Token:
    """Lets in who knows the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self.expected):
                headers = {"WWW-Authenticate": "Bearer"}
                refused = RequestError(401, "Authorization must be the server's token (api_key)", headers=headers)
                await refused.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)


def build(desk: Desk, token: str | None = None, host: str = "localhost") -> Starlette:
    """Without a token, only under names of this machine: other sites can't borrow a browser's way in. host: that is bound"""
    front = (files("divevlm.serve.http") / "front.html").read_text(encoding="utf-8")

    async def home(request: Request) -> Response:
        headers = {"X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"}
        return HTMLResponse(front, headers=headers)

    async def models(request: Request) -> Response:
        entry = {"id": desk.served.name, "object": "model", "created": 0, "owned_by": "divevlm"}
        settings = {"method": desk.deployed.name, "keep": desk.deployed.keep, **desk.deployed.settings}
        return JSONResponse({"object": "list", "data": [entry | {"divevlm": settings}]})

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(request: Request) -> Response:
        return Response(desk.metrics.text(), media_type="text/plain; version=0.0.4")

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path}: {error.detail}"
        return RequestError(error.status_code, message, headers=dict(error.headers or {})).response()

    routes = [
        Route("/", home),
        Route("/health", health),
        Route("/metrics", metrics),
        Route("/v1/models", models),
        Route("/v1/chat/completions", Endpoint(desk, desk.complete), methods=["POST"]),
        Route("/explore", Endpoint(desk, partial(explore, desk)), methods=["POST"]),
    ]
    names = Middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK, host])
    guard = names if token is None else Middleware(Token, token=token)
    return Starlette(routes=routes, middleware=[guard], exception_handlers={HTTPException: refused})
