"""The process: a socket, a server, an orderly end."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable, Collection
from typing import Any

import torch
import uvicorn

from divevlm.core.select import select
from divevlm.serve.http.app import build
from divevlm.serve.http.chat import Desk
from divevlm.serve.http.limits import Limits, RequestError
from divevlm.serve.http.model import Served
from divevlm.serve.http.request import Deployed


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check(host: str, port: int, token: str | None) -> None:
    """Before a model is loaded."""
    if not 0 <= port < 2**16:
        raise ValueError(f"--port must be from 0 to 65535, got {port}")
    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token != ""):
        raise ValueError("the token must be one line of printable ASCII characters, got something else")
    if token is None and not is_loopback(host):
        raise ValueError(f"--host must be of this machine (127.0.0.1) without a token, got {host!r}: set --token-file")


def desk_of(
    source: str, name: str, method: str, keep: int | float, limits: Limits, hosts: Collection[str] = (), **options: Any
) -> Desk:
    """Load the model. options: of transformers' ModelManager"""
    deployed = Deployed(method, keep)
    served = Served(source, name, limits, **options)
    try:
        served.session(deployed.method())
    except RequestError as refused:
        raise ValueError(str(refused)) from None
    rows = torch.arange(584.0 * 8).view(-1, 8).sin()
    select(rows[8:], rows[:8], 4)  # compiles the loop: the first request needn't wait for it
    return Desk(served, deployed, limits, hosts)


def serve(desk: Desk, host: str, port: int, token: str | None, drain: float, ready: Callable[[str], object]) -> None:
    """Until SIGTERM or SIGINT; what is under way or waits by then is answered, for `drain` seconds at most."""
    check(host, port, token)
    config = uvicorn.Config(
        build(desk, token, host),
        log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=max(1, round(drain)),
    )  # fmt: skip
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn hands the signal on when all is done
    try:
        with socket.create_server((host, port), family=family) as bound:
            shown, number = bound.getsockname()[:2]
            ready(f"http://{f'[{shown}]' if ':' in shown else shown}:{number}")
            uvicorn.Server(config).run(sockets=[bound])
    finally:
        signal.signal(signal.SIGTERM, before)
