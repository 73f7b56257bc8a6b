"""The front page in a real Chromium, and the explorer that it shows."""

import json

import httpx
import pytest
from playwright.sync_api import expect

from tests.serve.http.conftest import turn
from tests.zoo import picture


@pytest.fixture(scope="module")
def locked(start):
    return start(token="s3cret")


def test_a_visitor_asks_and_sees_the_tokens_that_were_kept(locked, browser, tmp_path):
    file = tmp_path / "picture.png"
    picture(4, 80, 60).save(file)
    context = browser.new_context()
    page = context.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(locked.url)
    page.locator("#picture").set_input_files(file)
    page.locator("#question").fill("what <b>is</b> this ?")
    page.locator("#keep").fill("5")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("#told")).to_have_text("Authorization must be the server's token (api_key)")
    page.locator("#token").fill("s3cret")
    page.get_by_role("button", name="Ask").click()
    explorer = page.frame_locator("#explorer")
    expect(explorer.locator("h1")).to_have_text("what <b>is</b> this ?", timeout=60_000)
    expect(explorer.locator("#told")).to_contain_text("Step 5 of 5: picks token")
    context.close()
    assert problems == []


@pytest.mark.parametrize(("typed", "sent"), [("1.0", 1.0), ("1", 1), ("5e-1", 0.5), (" 0.25 ", 0.25)])
def test_keep_is_sent_as_it_is_typed(small, browser, tmp_path, typed, sent):
    file = tmp_path / "picture.png"
    picture(4, 40, 40).save(file)
    context = browser.new_context()
    page = context.new_page()
    page.goto(small.url)
    page.locator("#picture").set_input_files(file)
    page.locator("#method").fill("fastv")
    page.locator("#keep").fill("1,5")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("#told")).to_have_text("Keep must be a count (64) or a share (0.25), got 1,5")
    page.locator("#keep").fill(typed)
    with page.expect_response("**/explore") as answer:
        page.get_by_role("button", name="Ask").click()
    settings = json.loads(answer.value.request.post_data)["divevlm"]
    context.close()
    assert answer.value.status == 200
    assert (settings, type(settings["keep"])) == ({"method": "fastv", "keep": sent}, type(sent))


def test_the_explorer_is_for_requests_that_prune_a_picture(small):
    url = f"{small.url}/explore"
    for body in (
        {"messages": [turn("hi")]},
        {"messages": [turn("hi", picture(1, 30, 30))], "divevlm": {"method": "vanilla"}},
    ):
        refused = httpx.post(url, json=body)
        assert refused.status_code == 400
        assert "must have a picture and divevlm a method" in refused.json()["error"]["message"]
    made = httpx.post(
        url, json={"messages": [turn("hi", picture(1, 30, 30))], "divevlm": {"method": "fastv"}}, timeout=60
    )
    assert (made.status_code, made.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert small.ask("hi", picture(1, 30, 30), max_tokens=2).usage.completion_tokens == 2


def test_the_explorer_refuses_what_it_would_ignore(small):
    asked = turn("hi", picture(1, 30, 30))
    for more, told in (
        ({"messages": [{"role": "system", "content": "be brief"}, asked]}, "one user's message"),
        ({"messages": [asked | {"role": "assistant"}]}, "one user's message"),
        ({"temperature": 0.5}, "temperature must be left out for the explorer, got 0.5"),
        ({"stop": "x"}, "stop must be left out"),
        ({"stream": True}, "stream must be left out"),
    ):
        refused = httpx.post(f"{small.url}/explore", json={"messages": [asked]} | more, timeout=60)
        assert refused.status_code == 400, more
        assert told in refused.json()["error"]["message"]
