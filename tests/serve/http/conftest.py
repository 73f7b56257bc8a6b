"""Servers of small models in threads, real clients, and what the engine answers alone."""

import base64
import copy
import io
import socket
import threading

import pytest
import torch
import uvicorn
from openai import OpenAI

from divevlm import prune
from divevlm.loading import source_of
from divevlm.models import family_of
from divevlm.prompts import Prompt, inputs
from divevlm.serve.http.app import build
from divevlm.serve.http.limits import Limits
from divevlm.serve.http.run import desk_of
from divevlm.viz.asking import GREEDY
from tests import zoo

NAME = "small"


def data_url(image, kind="PNG"):
    file = io.BytesIO()
    image.save(file, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def turn(question, *images):
    """A user's message."""
    parts = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in images]
    return {"role": "user", "content": [*parts, {"type": "text", "text": question}]}


class Running:
    """A server in a thread of this process."""

    def __init__(self, desk, token=None):
        self.desk, self.model, self.processor = desk, desk.served.model, desk.served.processor
        self.copy = copy.deepcopy(self.model)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = uvicorn.Server(uvicorn.Config(build(desk, token), log_level="warning"))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})
        self.thread.start()
        self.client = OpenAI(base_url=f"{self.url}/v1", api_key=token or "none", max_retries=0, timeout=120)

    def ask(self, question, *images, **more):
        return self.client.chat.completions.create(model=NAME, messages=[turn(question, *images)], **more)

    def stop(self):
        self.client.close()
        self.server.should_exit = True
        self.thread.join()
        self.socket.close()

    def alone(self, question, *images, method="dive", keep=6, length=8, **settings):
        """What the engine makes of it, without a server: the text, and the report."""
        arguments = inputs(self.processor, family_of(self.copy), [Prompt.of(question, images)])
        with torch.inference_mode(), prune(self.copy, method, keep, **settings) as session:
            made = self.copy.generate(**arguments, max_new_tokens=length, **GREEDY)
        text = self.processor.tokenizer.decode(made[0, arguments["input_ids"].shape[1] :], skip_special_tokens=True)
        return text, session.report.to_dict()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A random model of 16 visual tokens a picture. It never stops by itself."""
    entry, path = zoo.build("llava"), tmp_path_factory.mktemp("small")
    entry.model.save_pretrained(path)
    entry.processor.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def start(folder):
    """start(token=..., hosts=..., any limit=...) -> Running"""
    started = []

    def begin(source=None, token=None, hosts=(), keep=6, **limits):
        desk = desk_of(
            str(source or folder), NAME, "dive", keep, Limits(**({"new_tokens": 64} | limits)), hosts, device="cpu"
        )
        started.append(Running(desk, token))
        return started[-1]

    yield begin
    for running in started:
        running.stop()


@pytest.fixture(scope="session")
def small(start):
    return start()


@pytest.fixture(scope="session")
def tiny(start):
    """The embedded model, which gives real answers."""
    return start(source_of("tiny-llava"), keep=64)


class Gate:
    """Holds every forward pass of a model until it is opened; counts them."""

    def __init__(self, model):
        self.entered, self.open, self.passes = threading.Event(), threading.Event(), 0
        self.handle = model.register_forward_pre_hook(self.wait)

    def wait(self, *_):
        self.passes += 1
        self.entered.set()
        assert self.open.wait(60)
