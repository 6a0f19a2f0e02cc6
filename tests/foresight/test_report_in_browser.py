"""The page of a replay in a real browser."""

import itertools

import pytest

from ratelimit_mw.foresight.report import page as report
from tests.foresight.reports import small

SHARED = "access.log"


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return small(tmp_path_factory.mktemp("report"))


@pytest.fixture
def show(chromium, result, tmp_path):
    """A function that opens the report. The page must log nothing, and load nothing but the file."""
    problems, opened = [], []
    path = tmp_path / "report.html"
    path.write_text(report(result, [SHARED]), "utf-8")

    def open_page(**options):
        page = chromium.new_page(**options)
        opened.append(page)
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: problems.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        return page

    yield open_page
    for page in opened:
        page.close()
    assert problems == []


def said(held, place):
    """What the report says of a limit, in numbers: the limit, and the requests and clients that it denies."""
    return (
        f"At {held.limits[place]} per minute,",
        f"({held.denied[place]:,} of {held.requests:,})",
        (f"({held.clients[place]:,} of {held.all_clients:,})"),
    )


def test_the_slider_says_the_numbers_of_each_limit(show, result):
    page, (held, _) = show(), result.curves
    article = page.locator("article").first
    slider, answer = article.locator("input"), article.locator(".answer")
    slider.focus()
    slider.press("Home")
    for place in range(len(held.limits)):
        text = answer.inner_text()
        assert all(part in text for part in said(held, place)), text
        assert slider.get_attribute("aria-valuetext") == text
        assert article.locator("[data-value]").first.text_content() == f"{held.limits[place]:,}"
        slider.press("ArrowRight")
    assert said(held, -1)[0] in answer.inner_text()
    article.get_by_role("button").click()
    assert said(held, held.in_force)[0] in answer.inner_text()
    assert slider.input_value() == str(held.in_force)


def test_the_slider_names_the_clients_that_enter_and_leave(show, result):
    page, (held, _) = show(), result.curves
    article = page.locator("article").first
    slider, file = article.locator("input"), held.in_force

    def shown():
        rows = article.locator("[data-last]").all()
        (caption,) = [text.inner_text() for text in article.locator("[data-state]").all() if text.is_visible()]
        return caption.split()[2:4], [row.locator("td").first.inner_text() for row in rows if row.is_visible()]

    def expected(low, high):
        return [each.client[:60] for each in held.hit if low <= each.last < high]

    assert [each[:60] for each in shown()[1]] == expected(file, 99)
    slider.focus()
    slider.press("ArrowLeft")
    slider.press("ArrowLeft")
    assert (shown()[0], [each[:60] for each in shown()[1]]) == (["limited", "at"], expected(file - 2, file))
    slider.press("End")
    assert [each[:60] for each in shown()[1]] == expected(file, len(held.limits) - 1)
    article.get_by_role("button").click()
    assert [each[:60] for each in shown()[1]] == expected(file, 99)


def test_the_mark_stands_on_the_curve_at_each_limit(show, result):
    page = show()
    article = page.locator("article").nth(1)
    slider = article.locator("input")
    slider.focus()
    slider.press("Home")
    seen = set()
    for _ in result.curves[1].limits:
        for chart in article.locator("svg").all():
            lines = chart.locator("[data-line]").evaluate_all(
                "(lines, at) => lines.map(line => [line.points[at].x, line.points[at].y])", int(slider.input_value())
            )
            dots = chart.locator("[data-dot]").evaluate_all(
                "dots => dots.map(dot => [+dot.getAttribute('cx'), +dot.getAttribute('cy')])"
            )
            assert [pytest.approx(dot, abs=0.1) for dot in dots] == lines
            assert float(chart.locator("[data-limit]").get_attribute("x1")) == pytest.approx(lines[0][0], abs=0.1)
            seen.add(str(lines))
        slider.press("ArrowRight")
    assert len(seen) == 2 * len(result.curves[1].limits)


def test_a_click_on_the_chart_takes_the_nearest_limit(show, result):
    page, (held, _) = show(), result.curves
    chart = page.locator("article svg").first
    point = chart.locator("[data-line]").first.evaluate("line => [line.points[2].x, line.points[2].y]")
    chart.click(position={"x": point[0] + 1, "y": point[1]})
    assert said(held, 2)[0] in page.locator(".answer").first.inner_text()


def test_without_javascript_all_is_shown_but_the_slider(show, result):
    page, (held, _) = show(java_script_enabled=False), result.curves
    answer = page.locator(".answer").first.inner_text()
    assert all(part in answer for part in said(held, held.in_force))
    assert not page.locator("input").first.is_visible()
    assert page.locator("article svg").first.is_visible()
    page.locator("summary").first.click()
    assert page.locator("article tbody tr").first.is_visible()


@pytest.mark.parametrize(("width", "shown", "hidden"), [(1100, ".wide", ".narrow"), (375, ".narrow", ".wide")])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_fits_the_screen_in_light_and_dark(show, width, shown, hidden, scheme):
    page = show(viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator(f"{shown} svg").first.is_visible()
    assert not page.locator(f"{hidden} svg").first.is_visible()
    style = "getComputedStyle(document.body)"
    ink, paper = (brightness(page.evaluate(f"{style}.{name}")) for name in ("color", "backgroundColor"))
    assert (ink < 60 and paper > 200) if scheme == "light" else (ink > 200 and paper < 60)


def brightness(color):
    return sum(map(int, color.partition("(")[2].rstrip(")").split(",")[:3])) / 3


@pytest.mark.parametrize("width", [1100, 375])
def test_no_labels_of_a_chart_overlap(show, width):
    page = show(viewport={"width": width, "height": 800})
    slider = page.locator("article input").first
    slider.focus()
    for key in ("Home", "End"):
        slider.press(key)
        for chart in filter(lambda chart: chart.is_visible(), page.locator("svg").all()):
            frame = chart.bounding_box()
            boxes = [(text.text_content(), text.bounding_box()) for text in chart.locator("text").all()]
            assert len(boxes) > 4
            for name, box in boxes:
                assert box["x"] >= frame["x"] - 1, name
                assert box["x"] + box["width"] <= frame["x"] + frame["width"] + 1, name
            pairs = itertools.combinations(boxes, 2)
            assert [(one[0], other[0]) for one, other in pairs if overlap(one[1], other[1])] == []


def overlap(one, other):
    return all(
        one[at] + one[size] > other[at] + 1 and other[at] + other[size] > one[at] + 1
        for at, size in (("x", "width"), ("y", "height"))
    )


def test_what_a_client_wrote_is_inert(show):
    page = show()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1
    assert page.locator("section b").count() == 2 * len(page.locator(".answer").all()) + 2  # only those of the answers
    assert page.locator("h2 + .scroll .client", has_text="<script>window.hacked=1</script>").count() == 1


def test_the_policy_blocks_what_would_be_inserted_into_the_page(chromium, result, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(
        report(result, [SHARED]).replace("<h1>", '<h1><img src="x"><script>window.hacked=1</script>'), "utf-8"
    )
    page = chromium.new_page()
    blocked = []
    page.on("console", lambda message: blocked.append(message.text))
    page.goto(path.as_uri())
    assert page.locator("article .controls").first.is_visible()  # the script of the report has run
    assert page.evaluate("window.hacked") is None
    assert sorted({word for text in blocked for word in ("image", "inline script") if word in text}) == [
        "image",
        "inline script",
    ]
    page.close()


def test_a_page_for_paper_shows_the_wide_charts_and_no_controls(show):
    page = show(viewport={"width": 700, "height": 900})
    page.emulate_media(media="print")
    assert page.locator(".wide svg").first.is_visible()
    assert not page.locator(".controls").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 700
