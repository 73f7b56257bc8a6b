"""The JSON of a chat request, checked: what transformers' handler would ignore or trip over is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from divevlm.checks import require, whole
from divevlm.methods import Method, method_of, parse
from divevlm.serve.http.limits import Limits, RequestError, line

COLDEST = 1e-5  # divided by less, scores overflow
SIZES = (1e-4, 1e4)  # of a setting


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Text(Part):
    type: Literal["text"]
    text: str


class Url(Part):
    url: str
    detail: Literal["auto"] = "auto"


class Picture(Part):
    type: Literal["image_url"]
    image_url: Url


class Message(Part):
    role: Literal["system", "user", "assistant"]
    content: str | list[Annotated[Text | Picture, Field(discriminator="type")]]


class StreamOptions(Part):
    include_usage: bool = True  # the last chunk has it in any case


def _not_next_to_0(temperature: float | None) -> float | None:
    if temperature is not None and 0 < temperature < COLDEST:
        raise ValueError(f"must be 0 (greedy) or at least {COLDEST}")
    return temperature


class Chat(Part):
    """What `/v1/chat/completions` takes."""

    messages: Annotated[list[Message], Field(min_length=1)]
    model: str | None = None
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    temperature: Annotated[float | None, Field(ge=0, le=2), AfterValidator(_not_next_to_0)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    frequency_penalty: Annotated[float | None, Field(gt=-1, le=2)] = None
    seed: Annotated[int | None, Field(ge=0, lt=2**63)] = None
    stop: (
        Annotated[str, Field(min_length=1, max_length=64)]
        | Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(min_length=1, max_length=4)]
        | None
    ) = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    user: str | None = None
    divevlm: dict[str, JsonValue] = {}

    @property
    def length(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def urls(self) -> list[str]:
        """Of the pictures, as they come."""
        lists = [message.content for message in self.messages if not isinstance(message.content, str)]
        return [part.image_url.url for parts in lists for part in parts if isinstance(part, Picture)]

    @property
    def characters(self) -> int:
        """Of its text."""
        texts = [message.content for message in self.messages]
        return sum(
            len(text) if isinstance(text, str) else sum(len(part.text) for part in text if isinstance(part, Text))
            for text in texts
        )


def read(body: bytes, name: str, limits: Limits) -> Chat:
    """name: of the model that is served"""
    try:
        chat = Chat.model_validate_json(body)
    except ValidationError as error:
        raise RequestError(400, *_first(error)) from None
    if chat.model not in (None, name):
        raise RequestError(404, f"model must be {name!r}, the one that is served here, got {chat.model!r:.80}", "model")
    asked = chat.length or 1
    if asked > limits.new_tokens:
        raise RequestError(400, f"max_tokens must be at most {limits.new_tokens}, got {asked}", "max_tokens")
    if len(chat.urls) > limits.images:
        raise RequestError(
            400, f"messages must have at most {limits.images} pictures, got {len(chat.urls)}", "messages"
        )
    if chat.characters > 32 * limits.prompt_tokens:  # no tokenizer makes that few of so many
        most = f"{limits.prompt_tokens} tokens"
        raise RequestError(400, f"messages must have at most {most}, got {chat.characters} characters", "messages")
    return chat


def _first(error: ValidationError) -> tuple[str, str]:
    """What is wrong, and with which parameter."""
    found = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in found["loc"]) or "body"
    shown = repr(found["input"])
    given = "" if found["type"] == "missing" else f", got {shown if len(shown) <= 60 else shown[:59] + '…'}"
    return f"{where}: {found['msg']}{given}", where


def _check(setting: str, value: Any, hint: Any) -> None:
    """A request brings numbers and words, no objects, and no number that takes half precision to infinity or 0."""
    require(hint is not Any, setting, value, "left out: what it takes is no number and no word")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if float in (hint, *get_args(hint)):
        least, most = SIZES
        ok = not value or least <= abs(value) <= most
        require(ok, setting, value, f"0 or from {least} to {most} in size")
    else:
        whole(setting, value, 0)


class Deployed:
    """The method of a deployment, and what a request may make of it."""

    def __init__(self, method: str = "dive", keep: int | float = 64) -> None:
        self.name, self.settings = parse(method)
        self.keep = keep
        self.method()

    def method(self, asked: dict[str, Any] | None = None) -> Method | None:
        """asked: {"method": ..., "keep": ..., any setting: ...}. Another method has its own settings. None: no pruning"""
        given = dict(asked or {})
        name, keep = given.pop("method", self.name), given.pop("keep", self.keep)
        if name == "vanilla":
            if given or "keep" in (asked or {}):
                raise ValueError(f"vanilla has no settings, got {', '.join(sorted({*(asked or {})} - {'method'}))}")
            return None
        settings = self.settings | given if name == self.name else given
        method = method_of(name, keep, settings)
        for setting in {**settings, **parse(name)[1]}:
            _check(setting, getattr(method, setting), get_type_hints(type(method))[setting])
        return method

    def asked(self, chat: Chat) -> Method | None:
        try:
            return self.method(chat.divevlm)
        except (ValueError, TypeError) as error:
            raise RequestError(400, f"divevlm: {line(error)}", "divevlm") from None
