import asyncio

from tests.support.browser import browser


def test_the_event_loop_of_a_browser_ends_with_it():
    with browser():
        pass
    assert asyncio.run(asyncio.sleep(0, "ran")) == "ran"


def test_a_browser_runs_the_scripts_of_a_page_in_the_colours_that_the_user_prefers():
    with browser() as chromium:
        page = chromium.new_page(color_scheme="dark")
        page.set_content("<p>light</p><script>document.querySelector('p').textContent = 6 * 7</script>")
        assert page.inner_text("p") == "42"
        assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
        assert page.locator("p").bounding_box()["width"] > 0


def test_a_browser_has_fonts(chromium):
    page = chromium.new_page()
    page.set_content("<span>MMMM</span>")
    assert page.locator("span").bounding_box()["width"] > 20
