"""Pages for a real browser."""

import pytest

from divevlm.media import Video
from divevlm.viz.asking import ask
from divevlm.viz.explorer import page, settings
from tests.zoo import build, clip, picture

EVIL = "</script><script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\"><!-- & what?"


@pytest.fixture(scope="session")
def asked_image():
    """576 tokens, DIVE at 64 and 16 with other lambdas and etas, frozen scores, two methods without steps."""
    entry = build("llava_576")
    runs = settings(["dive", "dive-no-update", "random", "visionzip"], [64, 16], [0.0, 1.5], [0.8, 1.0])
    shown = [picture(3, 300, 200)]
    return ask(entry.model, entry.processor, "What is this?", shown, [("all", None), *runs], max_new_tokens=2)


@pytest.fixture(scope="session")
def image_page(asked_image, tmp_path_factory):
    path = tmp_path_factory.mktemp("image") / "page.html"
    path.write_text(page(asked_image), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def video_page(tmp_path_factory):
    """Eight frames, and a question that tries to break out."""
    entry = build("llava_onevision")
    shown = [Video(clip(3, 8, 160, 90), list(range(8)), 8, 2.0)]
    asked = ask(
        entry.model,
        entry.processor,
        EVIL,
        shown,
        [("all", None), *settings(["dive"], [12])],
        max_new_tokens=2,
        name=EVIL,
    )
    path = tmp_path_factory.mktemp("video") / "page.html"
    path.write_text(page(asked), encoding="utf-8")
    return path


class Opened:
    """A page in the browser; what it complains about and asks the outside for is noted."""

    def __init__(self, browser, path, **context):
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.problems, self.requests = [], []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("body[data-ready]")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def pixels(self, selector="#stage-a > canvas"):
        return self.page.eval_on_selector(selector, "canvas => canvas.toDataURL()")

    def step(self, number):
        self.page.locator("#step").fill(str(number))

    def text(self, selector):
        return self.page.locator(selector).inner_text()


@pytest.fixture
def opened(browser):
    def open_page(path, **context):
        return Opened(browser, path, **context)

    return open_page


def click_token(shown, token, columns=24, rows=24, box=(1 / 6, 0, 2 / 3, 1)):
    """In the middle of a cell: a picture of 3 x 2 of which the model sees the square in the middle."""
    canvas = shown.page.locator("#stage-a > canvas")
    size = canvas.bounding_box()
    x = box[0] + box[2] * (token % columns + 0.5) / columns
    y = box[1] + box[3] * (token // columns + 0.5) / rows
    canvas.click(position={"x": x * size["width"], "y": y * size["height"]})
