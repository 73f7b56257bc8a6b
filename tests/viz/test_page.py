"""The explorer page in a real Chromium."""

import re

import pytest
from playwright.sync_api import expect

from divevlm.viz import ask, page, settings
from tests.viz.conftest import EVIL, click_token
from tests.zoo import build, picture


def test_loads_from_a_file_alone_and_in_peace(opened, image_page):
    with opened(image_page) as shown:
        assert shown.text("h1") == "What is this?"
        shown.step(5)
        shown.page.locator("#compare").uncheck()
        outside = [url for url in shown.requests if not url.startswith(("file:", "data:"))]
        assert (shown.problems, outside) == ([], [])
        assert [url for url in shown.requests if url.startswith("file:")] == [image_page.as_uri()]


def test_576_tokens_and_64_steps_fit_in_3_megabytes(image_page):
    assert image_page.stat().st_size < 3_000_000


def test_the_slider_walks_through_the_picks(opened, image_page, asked_image):
    order = asked_image.answers[1].report.samples[0].order
    with opened(image_page) as shown:
        seen = set()
        for step in (1, 2, 40, 64):
            shown.step(step)
            assert f"Step {step} of 64: picks token {order[step - 1]} " in shown.text("#told")
            seen.add(shown.pixels())
        assert len(seen) == 4
        shown.page.locator("#back").click()
        assert "Step 63 of 64" in shown.text("#told")
        shown.page.locator("#step").press("Home")
        shown.page.locator("#step").press("ArrowRight")
        assert "Step 2 of 64" in shown.text("#told")


def test_every_map_looks_different(opened, image_page):
    with opened(image_page) as shown:
        shown.step(10)
        seen = set()
        for kind in ("kept", "scores", "energy", "alignment", "explained", "difference", "none"):
            shown.page.locator("#map").select_option(kind)
            seen.add(shown.pixels())
        assert len(seen) == 7


def test_play_goes_on_by_itself(opened, image_page):
    with opened(image_page) as shown:
        shown.step(1)
        shown.page.locator("#play").click()
        expect(shown.page.locator("#told")).to_contain_text(re.compile(r"Step ([3-9]|\d\d) of 64"))
        shown.page.locator("#play").click()
        assert shown.page.locator("#play").get_attribute("aria-pressed") == "false"


def test_a_click_says_why(opened, image_page, asked_image):
    sample = asked_image.answers[1].report.samples[0]
    trace = sample.segments[0].trace
    third = sample.order[2]
    never = next(token for token in range(576) if token not in sample.kept)
    with opened(image_page) as shown:
        shown.page.locator("#compare").uncheck()
        shown.step(3)
        click_token(shown, third)
        why = shown.text("#why-text")
        assert f"Token {third} (row {third // 24 + 1}, column {third % 24 + 1}) is picked at step 3." in why
        energy, score = (float(re.search(rf"{name} ([\d.e-]+)", why)[1]) for name in ("energy", "score"))
        assert energy == pytest.approx(float(trace.energy[2, third]), abs=0.01)
        assert score == pytest.approx(float(trace.scores[2, third]), rel=0.02)
        click_token(shown, never)
        why = shown.text("#why-text")
        assert "is not among the 64 picks" in why
        assert f"token {third} " in why
        explained = 1 - float(trace.energy[2, never] / trace.energy[0, never])
        told = float(re.search(r"explain ([\d.]+) % of its energy", why)[1])
        assert told == pytest.approx(100 * explained, abs=1.5)
        assert shown.page.locator("#why-text svg .title").all_text_contents() == [
            f"Token {never} under dive 64: score",
            f"Token {never} under dive 64: energy, alignment",
        ]


def test_words_lose_what_the_pick_explains(opened, image_page, asked_image):
    trace = asked_image.answers[1].report.samples[0].segments[0].trace
    with opened(image_page) as shown:
        shown.step(4)
        titles = shown.page.eval_on_selector_all("#words li", "items => items.map(item => item.title)")
        left = [float(re.match(r"([\d.]+) %", title)[1]) for title in titles]
        wanted = (100 * (trace.query_energy[4] / trace.query_energy[0]).sqrt()).tolist()
        assert left == pytest.approx(wanted, abs=1.1)


def test_settings_can_be_switched(opened, image_page, asked_image):
    answers = {answer.label: answer for answer in asked_image.answers}
    with opened(image_page) as shown:
        first = shown.pixels()
        shown.page.locator("#keep-a").select_option("16")
        assert shown.page.locator("#step").get_attribute("max") == "16"
        shown.page.locator("#keep-a").select_option("64")
        shown.page.locator("#lam-a").select_option("0")
        assert shown.pixels() != first
        order = answers["dive 64, lam 0"].report.samples[0].order
        shown.step(2)
        assert f"picks token {order[1]} " in shown.text("#told")
        shown.page.locator("#eta-a").select_option("1")  # lambda 0 with eta 1 was not run: the nearest one is
        assert shown.page.locator("#lam-a").input_value() == "1.5"
        shown.page.locator("#compare").uncheck()
        shown.page.locator("#method-a").select_option("visionzip")
        assert "no steps to walk" in shown.text("#told")
        assert not shown.page.locator("#step").is_visible()


def test_two_methods_side_by_side(opened, image_page, asked_image):
    with opened(image_page) as shown:
        shown.page.locator("#compare").uncheck()
        assert not shown.page.locator("#stage-b").is_visible()
        shown.page.locator("#compare").check()
        shown.page.locator("#method-b").select_option("random")
        assert shown.page.locator("#stage-b > canvas").is_visible()
        assert "random 64: keeps 64 of 576" in shown.text("#stage-b figcaption")
        kept = set(next(a for a in asked_image.answers if a.label == "random 64").report.samples[0].kept)
        click_token(shown, min(kept))
        assert "is kept" in shown.text("#why-text")


def test_the_keyboard_is_enough(opened, image_page):
    with opened(image_page) as shown:
        canvas = shown.page.locator("#stage-a > canvas")
        shown.page.locator("#compare").uncheck()
        canvas.focus()
        for key in ("ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
            canvas.press(key)
        assert shown.text("#why-text").startswith("Token ")
        canvas.press("Escape")
        assert shown.text("#why-text") == ""


def test_everything_to_operate_has_a_name(opened, image_page):
    with opened(image_page) as shown:
        nameless = shown.page.evaluate(
            """() => [...document.querySelectorAll("button, input, select, canvas[tabindex]")]
            .filter((e) => e.offsetParent && !e.getAttribute("aria-label"))
            .filter((e) => !(e.labels && e.labels.length) && !e.textContent.trim())
            .map((e) => e.outerHTML)"""
        )
        assert nameless == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(opened, image_page, scheme):
    with opened(image_page, color_scheme=scheme) as shown:
        ground = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 384) == (scheme == "dark")


def test_phone_width(opened, image_page, video_page):
    for path in (image_page, video_page):
        with opened(path, viewport={"width": 360, "height": 740}) as shown:
            assert shown.page.evaluate("document.documentElement.scrollWidth") == 360


def test_frames_of_a_video(opened, video_page):
    with opened(video_page) as shown:
        strip = shown.page.locator("#strip button")
        assert strip.count() == 8
        before = shown.pixels()
        strip.nth(6).click()
        assert strip.nth(6).get_attribute("aria-pressed") == "true"
        assert shown.pixels() != before
        shown.step(12)
        frame = int(re.search(r"frame (\d)", shown.text("#told"))[1])
        assert strip.nth(frame - 1).get_attribute("aria-pressed") == "true"  # the picture follows the pick
        counts = [int(text.rsplit(":", 1)[1]) for text in strip.all_inner_texts()]
        assert sum(counts) == 12


def test_untrusted_text_stays_text(opened, video_page):
    with opened(video_page) as shown:
        assert shown.text("h1") == EVIL
        assert EVIL in shown.text("#about")
        assert shown.page.title().startswith("</script>")
        assert shown.page.locator("img").count() == 0
        assert shown.page.locator("script").count() == 2
        assert shown.problems == []


def test_nothing_else_may_run(opened, image_page):
    with opened(image_page) as shown:
        shown.page.evaluate(
            """() => {
              const script = document.createElement("script");
              script.textContent = "document.title = 'owned'";
              document.body.append(script);
              new Image().src = "https://example.org/x.png";
            }"""
        )
        assert shown.page.title() != "owned"
        assert any("Content Security Policy" in problem for problem in shown.problems)


def test_methods_without_steps_and_budgets_above_everything(opened, tmp_path):
    entry = build("llava")
    for methods, keeps in ((["random", "fastv"], [4]), (["dive"], [99])):
        runs = settings(methods, keeps)
        asked = ask(entry.model, entry.processor, "What?", [picture(1, 60, 60)], runs, max_new_tokens=1)
        path = tmp_path / "page.html"
        path.write_text(page(asked), encoding="utf-8")
        with opened(path) as shown:
            assert "no steps to walk" in shown.text("#told")
            assert ("keeps all 16 tokens" in shown.text("#told")) == (methods == ["dive"])
            assert not shown.page.locator(".steps button, .steps input").filter(visible=True).count()
            shown.page.locator("#map").select_option("difference")
            shown.page.locator("#stage-a > canvas").click()
            assert re.search(r"is (kept|dropped)", shown.text("#why-text"))
            assert shown.problems == []


def test_the_smaller_budget_is_walked_where_the_larger_keeps_everything(opened, tmp_path):
    entry = build("llava")
    runs = settings(["dive"], [99, 0.25])
    asked = ask(entry.model, entry.processor, "What?", [picture(1, 60, 60)], runs, max_new_tokens=1)
    order = asked.answers[1].report.samples[0].order
    path = tmp_path / "page.html"
    path.write_text(page(asked), encoding="utf-8")
    with opened(path) as shown:
        seen = set()
        for step, token in enumerate(order, 1):
            shown.step(step)
            assert f"Step {step} of 4: picks token {token} " in shown.text("#told")
            seen.add(shown.pixels())
        assert len(seen) == 4
        shown.page.locator("#play").click()
        shown.page.locator("#keep-a").select_option("16")
        assert shown.text("#told").startswith("dive 99 keeps all 16 tokens: there is nothing to choose")
        assert not shown.page.locator(".steps button, .steps input").filter(visible=True).count()
        assert shown.page.locator("#play").get_attribute("aria-pressed") == "false"
        shown.page.locator("#stage-a > canvas").click()
        assert "is kept. The budget is enough for all 16 tokens." in shown.text("#why-text")
        shown.page.locator("#compare").check()  # beside it stands one that can be walked
        shown.page.locator("#keep-b").select_option("4")
        shown.step(2)
        assert f"Step 2 of 4 (dive 0.25): picks token {order[1]} " in shown.text("#told")
        assert shown.problems == []


def test_a_smaller_budget_shows_its_own_steps_only(opened, image_page, asked_image):
    """It shares the maps of the larger one."""
    order = next(a for a in asked_image.answers if a.label == "dive 64").report.samples[0].order
    with opened(image_page) as shown:
        shown.page.locator("#keep-a").select_option("16")
        shown.step(16)
        click_token(shown, order[40])
        assert "is not among the 16 picks" in shown.text("#why-text")
        labels = shown.page.locator("#why-text svg text").all_text_contents()
        assert "16" in labels
        assert not {"41", "64"} & set(labels)


def test_an_image_that_keeps_all_its_tokens_has_no_steps(opened, tmp_path):
    """Two images, one of them with fewer tokens than the budget."""
    entry = build("qwen2_vl")
    shown_pictures = [picture(1, 56, 56), picture(2, 168, 168)]
    runs = list(settings(["dive"], [8]))
    asked = ask(entry.model, entry.processor, "What?", shown_pictures, runs, max_new_tokens=1)
    small, large = asked.answers[0].report.samples[0].segments
    assert small.trace is None
    assert len(small.order) < 8 == len(large.order)
    path = tmp_path / "page.html"
    path.write_text(page(asked), encoding="utf-8")
    with opened(path) as shown:
        shown.step(2)
        assert shown.text("#told").startswith(f"Step 2 of 8: picks token {large.order[1]} ")
        assert " and " not in shown.text("#told")
        counts = [int(text.rsplit(":", 1)[1]) for text in shown.page.locator("#strip button").all_inner_texts()]
        assert counts == [len(small.order), 2]
        assert shown.problems == []
