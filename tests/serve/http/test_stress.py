"""Many clients at once: every answer is the right one, and memory stays.

200 requests; DIVEVLM_STRESS=2000 asks for more.
"""

import os
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

from tests.serve.http.conftest import turn
from tests.serve.http.process import Process
from tests.zoo import picture

REQUESTS = int(os.environ.get("DIVEVLM_STRESS", "200"))
CLIENTS = 16
GROWTH = 64 * 2**20  # bytes that may stay behind, of which one picture of this test takes a thousandth


def test_no_answer_is_lost_or_crossed(small, folder):
    """Each has a picture, a question and a budget of its own, every third is streamed."""
    with (
        Process(folder, "--keep", "6", "--queue", str(CLIENTS)) as process,
        OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0) as client,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):

        def asked(number):
            messages = [turn(f"what is in picture {number} ?", picture(number, 40, 50))]
            body = {"divevlm": {"keep": 2 + number % 7}}
            more = {"model": "small", "messages": messages, "max_tokens": 6, "extra_body": body}
            if number % 3:
                made = client.chat.completions.create(**more)
                return made.choices[0].message.content, made.divevlm
            chunks = list(client.chat.completions.create(stream=True, **more))
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks), chunks[-1].divevlm

        answers, sizes = [], []
        for begin in range(0, REQUESTS, REQUESTS // 10):
            answers += pool.map(asked, range(begin, begin + REQUESTS // 10))
            sizes.append(process.memory())

    for number, (text, report) in enumerate(answers):
        question = f"what is in picture {number} ?"
        expected, kept = small.alone(question, picture(number, 40, 50), keep=2 + number % 7, length=6)
        if number % 3 == 0:  # a stream does not bring the first bytes of a letter that never ends
            text, expected = text.rstrip("\ufffd"), expected.rstrip("\ufffd")
        assert text == expected, f"request {number}"
        assert report["samples"] == kept["samples"], f"request {number}"
    assert len({text for text, _ in answers}) > REQUESTS / 2, "answers must differ for the test to see them crossed"
    told = [f"{size / 2**20:.0f}" for size in sizes]
    print(f"{REQUESTS} requests, {CLIENTS} clients, MB after each tenth: {', '.join(told)}")  # noqa: T201
    assert sizes[-1] - sizes[0] < GROWTH, told
