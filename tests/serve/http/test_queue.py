"""A bounded queue: who comes too late is told when to come again, who leaves frees the place."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from divevlm.serve.http.places import Place
from tests.serve.http.conftest import Gate, turn
from tests.zoo import picture

IMAGE = picture(1, 30, 20)
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)


@pytest.fixture
def narrow(start):
    """A server where one request may wait, and its closed gate."""
    running = start(queue=1)
    gate = Gate(running.model)
    yield running, gate
    gate.open.set()
    gate.handle.remove()


@pytest.fixture
def moves(monkeypatch):
    """Released whenever somebody begins to wait, or leaves."""
    waits, leaves = threading.Semaphore(0), threading.Semaphore(0)
    turn, leave = Place.turn, Place.leave

    async def noted_turn(self):
        waits.release()
        return await turn(self)

    def noted_leave(self):
        leave(self)
        leaves.release()

    monkeypatch.setattr(Place, "turn", noted_turn)
    monkeypatch.setattr(Place, "leave", noted_leave)
    return waits, leaves


def send(running, **more):
    """A request by a client that won't wait for its answer."""
    body = json.dumps({"messages": [turn("hi", IMAGE)], "max_tokens": 60, **more}).encode()
    connection = socket.create_connection(("127.0.0.1", running.port))
    connection.sendall(HEAD % len(body) + body)
    return connection


def test_who_comes_too_late_is_sent_away_and_who_leaves_makes_room(narrow, moves):
    (running, gate), (waits, leaves) = narrow, moves
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(running.ask, "one", IMAGE, max_tokens=4)
        assert gate.entered.wait(60)
        assert waits.acquire(timeout=60)
        second = send(running)
        assert waits.acquire(timeout=60)
        with pytest.raises(openai.RateLimitError, match="try again") as late:
            running.ask("three", IMAGE)
        assert int(late.value.response.headers["Retry-After"]) >= 1
        second.close()
        assert leaves.acquire(timeout=60)
        fourth = pool.submit(running.ask, "four", IMAGE, max_tokens=4)
        assert waits.acquire(timeout=60)
        gate.open.set()
        for made, question in ((first, "one"), (fourth, "four")):
            assert made.result().choices[0].message.content == running.alone(question, IMAGE, length=4)[0]
    assert (running.desk.places.taken, running.desk.places.waiting) == (0, 0)


@pytest.mark.parametrize("stream", [False, True])
def test_the_model_stops_for_a_client_that_is_gone(narrow, moves, stream):
    (running, gate), (_, leaves) = narrow, moves
    connection = send(running, stream=stream)
    assert gate.entered.wait(60)
    (order,) = running.desk.served.manager.orders.values()
    connection.close()
    assert order.left.wait(60)
    assert leaves.acquire(timeout=60)
    gate.open.set()
    assert running.ask("hi", IMAGE, max_tokens=1).usage.completion_tokens == 1  # its turn is behind the other's
    assert gate.passes <= 3, "of the 60 that the first one asked for"
    assert order.id not in running.desk.served.manager.orders


def test_a_client_that_leaves_while_it_sends_frees_its_place(narrow, moves):
    (running, gate), (_, leaves) = narrow, moves
    gate.open.set()
    for _ in range(3):
        connection = socket.create_connection(("127.0.0.1", running.port))
        connection.sendall(HEAD % 99 + b"{")
        connection.close()
        assert leaves.acquire(timeout=60)
    assert running.desk.places.taken == 0


def test_a_body_that_does_not_come_is_not_waited_for(start):
    running = start(seconds=1)
    with socket.create_connection(("127.0.0.1", running.port)) as connection:
        connection.sendall(HEAD % 99 + b"{")
        assert connection.recv(100).startswith(b"HTTP/1.1 408 ")


def test_an_error_inside_the_model_is_told_and_the_next_request_is_served(start):
    running = start()

    def fail(*_):
        raise RuntimeError('a "quoted" secret\nof two lines')

    handle = running.model.register_forward_pre_hook(fail)
    with pytest.raises(openai.InternalServerError, match="the server's log says more"):
        running.ask("hi", IMAGE)
    with pytest.raises(openai.APIError, match="the server's log says more"):
        list(running.ask("hi", IMAGE, stream=True))
    handle.remove()
    assert running.ask("hi", IMAGE, max_tokens=2).usage.completion_tokens == 2


def test_what_happened_is_counted(start):
    running = start()
    running.ask("hi", IMAGE, max_tokens=1)
    with pytest.raises(openai.BadRequestError):
        running.ask("hi", IMAGE, max_tokens=0)
    lines = httpx.get(f"{running.url}/metrics").text.splitlines()
    for line in (
        'divevlm_requests_total{status="200"} 1.0',
        'divevlm_requests_total{status="400"} 1.0',
        "divevlm_visual_tokens_total 16.0",
        "divevlm_kept_tokens_total 6.0",
        "divevlm_waiting 0.0",
        "divevlm_running 0.0",
        "divevlm_request_seconds_count 2.0",
    ):
        assert line in lines
