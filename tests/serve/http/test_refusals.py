"""What is not served, and that the reason is told."""

import base64
import http.server
import io
import struct
import threading
import zlib

import httpx
import openai
import pytest
from PIL import Image

from divevlm.serve.http.limits import Limits
from divevlm.serve.http.request import Deployed
from divevlm.serve.http.run import check
from tests.serve.http.conftest import NAME, data_url, turn
from tests.zoo import picture

IMAGE = picture(1, 30, 20)


def post(running, body, **headers):
    return httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=headers)


def with_url(url):
    return {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}],
        "max_tokens": 2,
    }


def reason(response, status=400):
    assert response.status_code == status, response.text
    return response.json()["error"]["message"]


@pytest.fixture(scope="module")
def guarded(start):
    return start(token="s3cret", body=20_000, pixels=2_000, images=2, prompt_tokens=60, new_tokens=8)


def test_without_the_token_only_the_front_page_and_health_are_open(guarded):
    for path, status in (("/", 200), ("/health", 200), ("/metrics", 401), ("/v1/models", 401), ("/explore", 401)):
        assert httpx.get(guarded.url + path).status_code == status
    for wrong in ("", "Bearer", "Bearer s3cre", "Bearer s3crets", "s3cret", "Basic s3cret"):
        assert "token" in reason(post(guarded, {}, Authorization=wrong), 401)
    assert post(guarded, {}, Authorization=b"Bearer \xff").status_code == 401
    assert guarded.ask("hi", IMAGE, max_tokens=1).usage.completion_tokens == 1


def test_the_client_is_told_about_a_wrong_key(guarded):
    wrong = openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong", max_retries=0)
    with wrong as client, pytest.raises(openai.AuthenticationError, match="token"):
        client.models.list()


def test_a_bodys_limit(guarded):
    body = b" " * 20_001
    headers = {"Authorization": "Bearer s3cret", "Content-Type": "application/json"}
    url = f"{guarded.url}/v1/chat/completions"
    assert "20000 bytes, got 20001 or more" in reason(httpx.post(url, content=body, headers=headers), 413)
    assert "20000 bytes" in reason(httpx.post(url, content=b" " * 30_000_000, headers=headers), 413)
    pieces = (b" " * 100_000 for _ in range(300))  # of a length that is not told before
    assert "20000 bytes" in reason(httpx.post(url, content=pieces, headers=headers), 413)
    assert "token" in reason(httpx.post(url, content=b" " * 30_000_000), 401)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"messages": [turn("hi", picture(1, 50, 41))]}, "2000 pixels, got 50 x 41"),
        ({"messages": [turn("hi", IMAGE, IMAGE, IMAGE)]}, "at most 2 pictures, got 3"),
        ({"messages": [turn("hi", IMAGE)], "max_tokens": 9}, "max_tokens must be at most 8, got 9"),
        ({"messages": [turn("hi", IMAGE)], "max_completion_tokens": 9}, "max_tokens must be at most 8, got 9"),
        ({"messages": [turn("hi" * 30, IMAGE)]}, "at most 60 tokens, got 8"),
        ({"messages": [turn("hi" * 1000)]}, "at most 60 tokens, got 2000 characters"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_limits(guarded, body, told):
    assert told in reason(post(guarded, body, Authorization="Bearer s3cret"))


def test_what_the_model_cannot_read_is_refused(start):
    running = start(prompt_tokens=100_000)
    assert "4096 tokens" in reason(post(running, {"messages": [turn("x" * 4050)]}))


def test_a_small_file_of_many_pixels_is_never_unpacked(small):
    file = io.BytesIO()
    Image.new("1", (9_000, 9_000)).save(file, "PNG")
    assert len(file.getvalue()) < 20_000
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    assert "got 9000 x 9000" in reason(post(small, with_url(url)))
    larger = file.getvalue()[:16] + struct.pack(">II", 60_000, 60_000) + file.getvalue()[24:29]
    larger += struct.pack(">I", zlib.crc32(larger[12:29])) + file.getvalue()[33:]
    url = f"data:image/png;base64,{base64.b64encode(larger).decode()}"
    assert "decompression bomb" in reason(post(small, with_url(url)))


@pytest.mark.parametrize(
    "url",
    ["/etc/hostname", "file:///etc/hostname", "http://127.0.0.1:1/a.png", "https://example.org/a.png", "ftp://x/y", "",
     "data:image/png,abc", "data:image/png;base64,%%%", "data:;base64,", "data:image/png;base64,AAAA", "iVBORw0KGgo="],
)  # fmt: skip
def test_only_data_urls_are_pictures(small, url):
    assert reason(post(small, with_url(url))).startswith("image_url must be ")


def test_broken_and_unwelcome_files(small):
    good = io.BytesIO()
    picture(1, 64, 64).save(good, "PNG")
    cut = good.getvalue()[: len(good.getvalue()) // 2]
    broken = f"data:image/png;base64,{base64.b64encode(cut).decode()}"
    assert "broken" in reason(post(small, with_url(broken)))
    assert "PNG, JPEG" in reason(post(small, with_url(data_url(IMAGE, "TIFF"))))
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        assert post(small, with_url(data_url(IMAGE, kind))).status_code == 200


@pytest.fixture(scope="module")
def host():
    """Pictures at an address; /away leads elsewhere."""
    file = io.BytesIO()
    IMAGE.save(file, "PNG")

    class Pictures(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(302 if self.path == "/away" else 200)
            self.send_header("Location", "/picture")
            self.end_headers()
            self.wfile.write(file.getvalue() + b" " * {"/large": 10_000_000, "/some": 600_000}.get(self.path, 0))

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pictures) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_host_that_is_named_is_asked_for_pictures_and_no_other(start, small, host):
    allowed = start(hosts=[host], body=1_000_000)
    expected = post(allowed, with_url(data_url(IMAGE))).json()["choices"]
    assert post(allowed, with_url(f"http://{host}/picture")).json()["choices"] == expected
    assert "data URL" in reason(post(small, with_url(f"http://{host}/picture")))
    assert "status 302" in reason(post(allowed, with_url(f"http://{host}/away")))
    assert "at most 1000000 bytes" in reason(post(allowed, with_url(f"http://{host}/large")))
    few = {"messages": with_url(f"http://{host}/some")["messages"] * 2, "max_tokens": 1}
    assert "at most 1000000 bytes with the request's other pictures" in reason(post(allowed, few))
    assert post(allowed, few | {"messages": few["messages"][:1]}).status_code == 200
    name = host.split(":")[0]
    for url in (
        f"http://{name}/picture",
        f"http://{host}@example.org/",
        f"http://u:p@{host}/picture",
        "http://[::1",
        "/etc/hostname",
    ):
        assert reason(post(allowed, with_url(url))).startswith("image_url must be ")


def test_no_other_model_is_loaded_and_the_served_one_stays(small):
    body = {"messages": [turn("hi", IMAGE)], "max_tokens": 2}
    assert f"model must be '{NAME}'" in reason(post(small, body | {"model": "some/other"}), 404)
    with pytest.raises(openai.NotFoundError, match="the one that is served here"):
        small.client.chat.completions.create(model="some/other", messages=[turn("hi", IMAGE)])
    for path in ("load_model", "reset", "v1/responses", "v1/completions", "v1/audio/transcriptions", "v1/systemone"):
        assert httpx.post(f"{small.url}/{path}", json={"model": "some/other"}).status_code == 404
    assert len(small.desk.served.models.loaded_models) == 1
    assert post(small, body).status_code == 200


def test_pages_of_other_sites_cannot_ask(small):
    """Without a token a browser on this machine must not be a way in."""
    url, body = (
        f"{small.url}/v1/chat/completions",
        b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}',
    )
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        assert "application/json" in reason(httpx.post(url, content=body, headers={"Content-Type": kind}), 415)
    assert httpx.options(url, headers={"Origin": "https://evil.example"}).status_code == 405
    rebound = {"Content-Type": "application/json", "Host": "evil.example"}
    assert httpx.post(url, content=body, headers=rebound).status_code == 400
    assert httpx.post(url, content=body, headers={"Content-Type": "application/json"}).status_code == 200


def test_settings_that_do_not_go_with_the_model(small):
    for setting, told in (
        ({"keep": 0}, "keep must be a count"),
        ({"method": "dove"}, "did you mean 'dive'"),
        ({"layer": 99}, "layer must be"),
        ({"etta": 1}, "options of dive"),
        ({"method": "vanilla", "keep": 3}, "vanilla has no settings"),
        ({"scope": ["image"]}, "divevlm"),
        ({"method": 3}, "method must be"),
    ):
        assert told in reason(post(small, {"messages": [turn("hi", IMAGE)], "divevlm": setting}))


@pytest.mark.parametrize(("error", "logged"), [(ValueError("odd"), 0), (AttributeError("odd"), 1)])
def test_what_may_be_our_fault_is_logged(small, monkeypatch, caplog, error, logged):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr(small.desk.served.handler, "_build_generation_config", broken)
    told = reason(post(small, {"messages": [turn("hi", IMAGE)]}))
    assert told == f"the model's processor refuses this request: {type(error).__name__}: odd"
    found = [record for record in caplog.records if record.name == "divevlm.serve"]
    assert [record.exc_info[1] for record in found] == [error] * logged


def test_other_machines_need_a_token():
    check("127.0.0.1", 80, None)
    check("::1", 80, None)
    check("0.0.0.0", 80, "abc")
    with pytest.raises(ValueError, match="--host must be of this machine .* got '0.0.0.0'"):
        check("0.0.0.0", 80, None)
    for token in ("", " a", "a\nb", "ä"):
        with pytest.raises(ValueError, match="the token must be one line"):
            check("127.0.0.1", 80, token)


def test_limits_and_methods_of_a_deployment_are_checked():
    with pytest.raises(ValueError, match="queue must be a number of at least 0, got -1"):
        Limits(queue=-1)
    with pytest.raises(ValueError, match="pixels must be a number of at least 1, got 0"):
        Limits(pixels=0)
    with pytest.raises(ValueError, match="keep must be"):
        Deployed("dive", 0)
