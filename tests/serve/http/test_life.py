"""The command from its start to its end."""

import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from openai import APIConnectionError, OpenAI

from divevlm.cli import main
from tests.serve.http.conftest import turn
from tests.serve.http.process import Process
from tests.zoo import picture

COUNTS = ("divevlm_waiting", "divevlm_running", 'divevlm_requests_total{status="200"}')


def counts(process):
    """How many requests wait, run and are done."""
    values = dict(line.rsplit(" ", 1) for line in httpx.get(f"{process.url}/metrics").text.splitlines())
    return [float(values.get(name, 0)) for name in COUNTS]


def test_sigterm_answers_what_is_here_and_takes_nothing_new(folder):
    """Six requests: one is running, the others wait. Each is answered; the process ends well."""
    with (
        Process(folder, "--keep", "6", "--drain", "900") as process,
        OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0) as client,
        ThreadPoolExecutor(6) as pool,
    ):
        assert process.first.startswith("small at http://127.0.0.1:")

        def ask(number):
            messages = [turn(f"question {number}", picture(number, 40, 40))]
            return client.chat.completions.create(model="small", messages=messages, max_tokens=200)

        asked = [pool.submit(ask, number) for number in range(6)]
        while sum(now := counts(process)) < 6:
            pass
        assert now[0] > 0, "nobody waits: the test is too slow"
        process.run.send_signal(signal.SIGTERM)
        assert [one.result().usage.completion_tokens for one in asked] == [200] * 6
        with pytest.raises(APIConnectionError):
            ask(7)
        assert process.run.wait(60) == 0
        assert process.run.stdout.read() == "drained\n"


def test_another_address_of_this_machine_answers_to_its_name(folder):
    with Process(folder, "--host", "127.0.0.2") as process:
        assert process.url.startswith("http://127.0.0.2:")
        assert httpx.get(f"{process.url}/health").json() == {"status": "ok"}
        assert httpx.get(f"{process.url}/health", headers={"Host": "evil.example"}).status_code == 400


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--host", "0.0.0.0"], "--host must be of this machine (127.0.0.1) without a token, got '0.0.0.0'"),
        (["--port", "70000"], "--port must be from 0 to 65535, got 70000"),
        (["--drain", "nan"], "--drain must be"),
        (["--queue", "-1"], "queue must be a number of at least 0, got -1"),
        (["--method", "dove"], "did you mean 'dive'?"),
        (["--method", "dive:layer=99"], "layer must be a block number from 0 to 3"),
        (["--token-file", "no/such/file"], "no/such/file"),
        (["--model", "no/such/model"], "model must be an embedded one"),
        (["--model", "no/such/model"], "got 'no/such/model': no such folder"),
        (["--attn", "flash_attention_2"], "that loads with attention flash_attention_2, got "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_option_is_one_line(folder, options, told, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(["serve", "--device", "cpu", "--model", str(folder), *options]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("divevlm: ")]
    assert told in line


def test_a_port_that_is_taken_is_one_line(folder, small, capsys):
    options = ["--model", str(folder), "--device", "cpu", "--port", str(small.port)]
    assert main(["serve", *options]) == 2
    assert "in use" in capsys.readouterr().err
