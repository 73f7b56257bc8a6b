"""What the explorer page shows at once: two selections, answers, an explanation beside the picture, an address to send."""

import itertools
import re

import pytest

from divevlm.viz import page
from tests.viz.conftest import click_token


def test_it_opens_at_the_end_with_a_baseline_beside(opened, image_page):
    with opened(image_page) as shown:
        assert shown.text("#told").startswith("Step 64 of 64")
        assert shown.text("#stage-a figcaption").startswith("dive 64: keeps 64 of 576")
        assert shown.text("#stage-b figcaption").startswith("dive-no-update 64: keeps 64 of 576")
        assert shown.page.locator("#map").input_value() == "kept"
        stages = [shown.page.locator(f"#stage-{side} canvas").bounding_box() for side in "ab"]
        assert stages[0]["y"] == stages[1]["y"]


def test_kept_tokens_are_bright_and_the_others_dim(opened, image_page, asked_image):
    kept = asked_image.answers[1].report.samples[0].kept
    never = next(token for token in range(576) if token not in kept)
    light = """([canvas, token]) => {
        const x = canvas.width * (1 / 6 + (2 / 3) * ((token % 24) + 0.5) / 24);
        const y = canvas.height * (Math.floor(token / 24) + 0.5) / 24;
        const draw = (kind) => {
            document.getElementById("map").value = kind;
            drawAll();
            return [...canvas.getContext("2d").getImageData(x - 7, y - 7, 1, 1).data];
        };
        const plain = draw("none"), dimmed = draw("kept"), sum = ([r, g, b]) => r + g + b;
        return sum(dimmed) / sum(plain);
    }"""
    with opened(image_page) as shown:
        canvas = shown.page.locator("#stage-b > canvas").element_handle()
        shown.page.locator("#method-b").select_option("random")
        drawn = set(next(a for a in asked_image.answers if a.label == "random 64").report.samples[0].kept)
        assert shown.page.evaluate(light, [canvas, next(t for t in range(576) if t not in drawn)]) < 0.5
        assert shown.page.evaluate(light, [canvas, min(drawn)]) == 1
        canvas = shown.page.locator("#stage-a > canvas").element_handle()
        assert shown.page.evaluate(light, [canvas, never]) < 0.5


def test_the_explanation_stands_beside_the_picture(opened, image_page, asked_image):
    with opened(image_page, viewport={"width": 1280, "height": 800}) as shown:
        click_token(shown, asked_image.answers[1].report.samples[0].order[3])
        why, picture = (
            shown.page.locator(name).bounding_box() for name in ("#why-text p >> nth=0", "#stage-b > canvas")
        )
        assert why["x"] > picture["x"] + picture["width"]
        assert why["y"] < 800
        assert "picked at step 4." in shown.text("#why-text")
    with opened(image_page, viewport={"width": 390, "height": 844}, has_touch=True) as shown:
        click_token(shown, asked_image.answers[1].report.samples[0].order[3])
        why, picture = (
            shown.page.locator(name).bounding_box() for name in ("#why-text p >> nth=0", "#stage-a > canvas")
        )
        assert 0 < why["y"] < 844
        assert 0 < picture["y"] < why["y"]  # both are on the screen
        shown.page.locator("#close").click()
        assert shown.text("#why-text") == ""


def test_the_address_holds_what_is_shown(opened, image_page, asked_image):
    order = asked_image.answers[1].report.samples[0].order
    with opened(image_page) as shown:
        shown.page.locator("#method-b").select_option("random")
        shown.step(9)
        shown.page.locator("#map").select_option("energy")
        click_token(shown, order[3])
        address, why, told = shown.page.url, shown.text("#why-text"), shown.text("#told")
        shown.page.goto("about:blank")
        shown.page.goto(address)
        shown.page.wait_for_selector("body[data-ready]")
        assert (shown.text("#why-text"), shown.text("#told")) == (why, told)
        assert shown.page.locator("#map").input_value() == "energy"
        assert shown.text("#stage-b figcaption").startswith("random 64")
        for wrong in ("#step=999&token=-1&a=nobody&map=x", "#step=1e3&token=576&panel=7", "#%%%"):
            shown.page.goto("about:blank")
            shown.page.goto(image_page.as_uri() + wrong)
            shown.page.wait_for_selector("body[data-ready]")
            assert shown.text("#told").startswith("Step 64 of 64")
        assert shown.problems == []


def test_a_click_on_an_answer_shows_its_selection(opened, image_page):
    with opened(image_page) as shown:
        shown.page.get_by_role("button", name="Show visionzip 16").click()
        assert shown.text("#stage-a figcaption").startswith("visionzip 16")
        shown.page.locator("tr", has_text="random 16").locator("td.answer").click()
        assert shown.text("#stage-a figcaption").startswith("random 16")
        shown.page.get_by_role("button", name="Put dive 16 beside", exact=True).click()
        assert shown.text("#stage-b figcaption").startswith("dive 16:")
        assert shown.page.locator("tr[aria-current]").count() == 2


def test_any_two_methods_beside_each_other(opened, image_page):
    with opened(image_page) as shown:
        names = shown.page.locator("#method-a option").all_text_contents()
        assert names == ["dive", "dive-no-update", "random", "visionzip"]
        for one, other in itertools.permutations(names, 2):
            shown.page.locator("#method-a").select_option(one)
            shown.page.locator("#method-b").select_option(other)
            assert shown.text("#stage-a figcaption").startswith(f"{one} 64")
            assert shown.text("#stage-b figcaption").startswith(f"{other} 64")
            legends = shown.page.locator(".legend").filter(visible=True).all_inner_texts()
            assert [text.split() for text in legends] == [
                ["kept", "dropped", *(["this", "pick"] if name.startswith("dive") else [])] for name in (one, other)
            ]
        assert shown.problems == []


def test_what_is_left_after_each_pick(opened, image_page, asked_image):
    trace = asked_image.answers[1].report.samples[0].segments[0].trace
    with opened(image_page) as shown:
        chart = shown.page.locator("#course-chart svg")
        chart.scroll_into_view_if_needed()
        size = chart.bounding_box()
        chart.hover(position={"x": size["width"] * 0.5, "y": size["height"] * 0.6})
        note = shown.text("#course-note")
        step = int(re.match(r"After (\d+) picks", note)[1])
        assert 20 < step < 44
        visual, prompt = (float(share) for share in re.findall(r"([\d.]+) % of the", note))
        for share, energy in ((visual, trace.energy), (prompt, trace.query_energy)):
            assert share == pytest.approx(100 * float(energy[step].sum() / energy[0].sum()), abs=0.6)
        chart.click(position={"x": size["width"] * 0.5, "y": size["height"] * 0.6})
        assert shown.text("#told").startswith(f"Step {step} of 64")


def test_the_right_answer_is_marked(opened, asked_image, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page(asked_image, asked_image.answers[1].text.upper() + "."), encoding="utf-8")
    with opened(path) as shown:
        assert "correct" in shown.text("#stage-a figcaption .right")
        right = sum(answer.text == asked_image.answers[1].text for answer in asked_image.answers)
        assert shown.page.locator("#answers .right").count() == right
        assert shown.page.locator("#answers .wrong").count() == len(asked_image.answers) - right


def test_no_two_pictures_of_the_same_selection(opened, image_page):
    """A click on the answer that stands beside swaps the two."""
    with opened(image_page) as shown:
        shown.page.get_by_role("button", name="Show dive-no-update 64").click()
        assert shown.text("#stage-a figcaption").startswith("dive-no-update 64:")
        assert shown.text("#stage-b figcaption").startswith("dive 64:")


def test_the_words_follow_the_pointer_over_the_chart(opened, image_page, asked_image):
    trace = asked_image.answers[1].report.samples[0].segments[0].trace
    with opened(image_page) as shown:
        assert shown.text("#course-title") == "What is left under dive 64, step by step"
        titles = "items => items.map(item => parseFloat(item.title))"
        atend = shown.page.eval_on_selector_all("#words li", titles)
        chart = shown.page.locator("#course-chart svg")
        chart.scroll_into_view_if_needed()
        size = chart.bounding_box()
        chart.hover(position={"x": size["width"] * 0.2, "y": size["height"] * 0.6})
        step = int(re.match(r"After (\d+) picks", shown.text("#course-note"))[1])
        left = shown.page.eval_on_selector_all("#words li", titles)
        assert left == pytest.approx(
            (100 * (trace.query_energy[step] / trace.query_energy[0]).sqrt()).tolist(), abs=1.1
        )
        named = re.findall(r"(\S+) (?:\d+) %[,.]", shown.text("#course-note").split("Most open words: ")[1])
        assert named
        assert all(word[0].isalnum() for word in named)
        shown.page.mouse.move(0, 0)
        assert shown.page.eval_on_selector_all("#words li", titles) == atend
        assert shown.text("#told").startswith("Step 64 of 64")  # looking changes nothing


@pytest.mark.parametrize("size", [(390, 844), (844, 390)])
def test_fingers_have_room(opened, image_page, size):
    view = {"width": size[0], "height": size[1]}
    with opened(image_page, viewport=view, has_touch=True, is_mobile=True) as shown:
        click_token(shown, 290)
        small = shown.page.evaluate(
            """() => [...document.querySelectorAll("button, input, select")].filter((e) => e.getClientRects().length)
            .map((e) => [e.id || e.textContent, (e.closest("label") ?? e).getBoundingClientRect()])
            .filter(([, box]) => box.width < 40 || box.height < 40).map(([name]) => name)"""
        )
        assert small == []
        for name in ("#answers", "#course-chart svg", "#why"):
            box = shown.page.locator(name).bounding_box()
            assert box["x"] >= 0, name
            assert box["x"] + box["width"] <= size[0], name
        assert shown.page.evaluate("getComputedStyle(document.querySelector('#course-chart svg')).width") == (
            shown.page.evaluate("document.querySelector('#course-chart svg').viewBox.baseVal.width + 'px'")
        )  # letters are as large as they are written


def test_a_finger_reaches_every_token(opened, image_page):
    with opened(image_page, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True) as shown:
        click_token(shown, 290)
        for way, token in (("Right", 291), ("Down", 315), ("Left", 314), ("Up", 290)):
            shown.page.get_by_role("button", name=f"{way} by one token").tap()
            assert shown.text("#why-text p >> nth=0").startswith(f"Token {token} ")
            assert f"token={token}" in shown.page.url
