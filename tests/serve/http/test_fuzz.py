"""Bad requests, made from good ones by a seed: each is refused with a reason, none breaks the server."""

import copy
import itertools
import json
import random
import socket
from dataclasses import fields

import httpx
import pytest

from divevlm.methods import METHODS, Method
from tests.serve.http.conftest import turn
from tests.zoo import picture

GOOD = {
    "model": "small",
    "messages": [{"role": "system", "content": "be brief"}, turn("what is this ?", picture(1, 20, 20))],
    "max_tokens": 2,
    "temperature": 0,
    "top_p": 0.5,
    "frequency_penalty": 0.1,
    "seed": 1,
    "stop": ["x"],
    "stream": False,
    "n": 1,
    "divevlm": {"method": "dive", "keep": 4, "eta": 0.5, "lam": 1.0, "layer": 1, "norm": "final", "positions": "keep"},
}
STRANGE = [
    -1,
    -0.5,
    1e300,
    10**40,
    2**63,
    [],
    {},
    [[]],
    [{}],
    {"a": 1},
    "",
    "\x00",
    "nonsense",
    "../../etc/passwd",
    "💥" * 300,
]


def places(value, path=()):
    """Where something stands in a JSON value."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def put(body, path, value):
    """At one place."""
    for key in path[:-1]:
        body = body[key]
    body[path[-1]] = value


def allowed(path, value):
    """Odd, but in order."""
    last = path[-1]
    if last in ("text", "content"):
        return isinstance(value, str)
    if last == "stop" or (len(path) > 1 and path[-2] == "stop"):
        return isinstance(value, str) and 0 < len(value) <= 64
    if last == "frequency_penalty":
        return value == -0.5
    return (last, value) in (("divevlm", {}), ("stream", False))


def bad_bodies(count, seed=0):
    """One to three changes each, all of them bad."""
    chance, found = random.Random(seed), []
    spots = list(places(GOOD))
    while len(found) < count:
        body, told = copy.deepcopy(GOOD), []
        for _ in range(chance.randint(1, 3)):
            path, value = chance.choice(spots), copy.deepcopy(chance.choice(STRANGE))
            if allowed(path, value):
                continue
            try:
                put(body, path, value)
            except (KeyError, IndexError, TypeError):
                continue  # an earlier change took that place away
            told.append((path, value))
        if told:
            found.append((told, json.dumps(body).encode()))
    return found


def garbled(count, seed=1):
    """No JSON at all: cut off, or with bytes that were changed so that it can't be read."""
    chance, whole, found = random.Random(seed), json.dumps(GOOD).encode(), []
    while len(found) < count:
        body = bytearray(whole[: chance.randrange(len(whole))]) if chance.random() < 0.5 else bytearray(whole)
        for _ in range(chance.randint(1, 20)):
            if body:
                body[chance.randrange(len(body))] = chance.randrange(256)
        try:
            json.loads(body.decode())
        except ValueError:
            found.append(([], bytes(body)))
    return found


def test_600_bad_requests_get_a_reason_each_and_the_server_lives(small):
    url, headers = f"{small.url}/v1/chat/completions", {"Content-Type": "application/json"}
    bodies = bad_bodies(450) + garbled(150)
    with httpx.Client(headers=headers, timeout=60) as client:
        assert client.post(url, content=json.dumps(GOOD).encode()).status_code == 200
        for told, body in bodies:
            answer = client.post(url, content=body)
            assert 400 <= answer.status_code < 500, (answer.status_code, answer.text[:300], told)
            message = answer.json()["error"]["message"]
            assert 0 < len(message.strip()) < 1000
        after = client.post(url, content=json.dumps(GOOD).encode())
    assert after.status_code == 200
    assert small.desk.places.taken == 0


ODD = [-1, 0, 1e-300, 1e300, 10**40, True, None, "ab", {}, [0.5], [1, 2], [1e300, None]]


@pytest.mark.parametrize("name", METHODS)
def test_a_setting_of_any_method_is_taken_or_refused_by_its_name(small, name):
    url, inherited = f"{small.url}/v1/chat/completions", {field.name for field in fields(Method)}
    settings = {field.name for field in fields(METHODS.get(name)) if field.init} - (
        inherited if name != "dive" else {"keep"}
    )
    with httpx.Client(timeout=60) as client:
        for setting, value in itertools.product(sorted(settings), ODD):
            told = {"method": name, "keep": 4, setting: value}
            answer = client.post(url, json={"messages": GOOD["messages"], "max_tokens": 1, "divevlm": told})
            assert answer.status_code in (200, 400), (answer.status_code, answer.text[:300], told)
            if answer.status_code == 400:
                assert f"{setting} " in answer.json()["error"]["message"], told


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"method": "mmtok", "tokenizer": "x"}, "tokenizer must be left out"),
        ({"method": "mmtok:tokenizer=x"}, "tokenizer must be left out"),
        ({"method": "mmtok", "padding": 5}, "padding of mmtok must be a list of 2 floats, got 5"),
        ({"method": "pdrop", "cuts": [0.5]}, "cuts of pdrop must be a list of ints, got [0.5]"),
        ({"method": "pdrop", "cuts": "ab"}, "cuts of pdrop must be a list of ints, got 'ab'"),
        ({"method": "mmtok", "alpha": 1e300}, "alpha must be 0 or from 0.0001 to 10000.0 in size, got 1e+300"),
    ],
)  # fmt: skip
def test_what_is_told_of_a_setting(small, told, reason):
    answer = httpx.post(f"{small.url}/v1/chat/completions", json={"messages": GOOD["messages"], "divevlm": told})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"divevlm: {reason}")


@pytest.mark.parametrize(("temperature", "status"), [(1e-300, 400), (1e-6, 400), (1e-5, 200), (0, 200)])
def test_temperatures_next_to_0(small, temperature, status):
    body = {"messages": GOOD["messages"], "max_tokens": 1, "temperature": temperature}
    assert httpx.post(f"{small.url}/v1/chat/completions", json=body).status_code == status


@pytest.mark.parametrize(
    "sent",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"POST /v1/chat/completions HTTP/9.9\r\n\r\n", b"\x00" * 100,
     b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
     b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
)  # fmt: skip
def test_what_is_not_http_is_turned_away(small, sent):
    with socket.create_connection(("127.0.0.1", small.port), timeout=60) as connection:
        connection.sendall(sent)
        assert connection.recv(200).startswith(b"HTTP/1.1 4")
    assert httpx.get(f"{small.url}/health").json() == {"status": "ok"}


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/explore", "/v1/none", "/../../etc/passwd", "/%00", "//"])
def test_other_ways_and_places(small, method, path):
    assert httpx.request(method, small.url + path).status_code in (404, 405)
