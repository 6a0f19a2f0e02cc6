"""The live page in a real browser."""

import json

import pytest
from playwright.sync_api import expect

from tests.operations.apps import TOKEN
from tests.operations.test_page_served import EACH_SERVER, serve_asgi

HOSTILE = "<img src=x onerror=\"document.title='pwned'\">\u202egnp.exe\u2066\x1b[31m</script><script>alert(1)</script>"


@pytest.fixture(scope="module")
def app():
    with serve_asgi() as served:
        yield served


class Visitor:
    """A tab, what its console says, and which data it has fetched."""

    def __init__(self, tab, url):
        self.tab, self.url = tab, url
        self.said, self.fetched, self.dialogs = [], [], []
        tab.on("console", lambda message: self.said.append(message.text))
        tab.on("pageerror", lambda error: self.said.append(str(error)))
        tab.on("request", lambda request: request.url.endswith("state.json") and self.fetched.append(request.url))
        tab.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))

    def open(self):
        self.tab.goto(f"{self.url}/_limits/")

    def text(self, selector):
        return self.tab.locator(selector).inner_text()

    def wait(self, selector, text):
        """Wait until an element has this text."""
        expect(self.tab.locator(selector)).to_have_text(text, timeout=60_000)


@pytest.fixture
def visit(chromium, app):
    contexts = []

    def visit(url=app.url, token=TOKEN, **options):
        contexts.append(chromium.new_context(http_credentials={"username": "", "password": token}, **options))
        return Visitor(contexts[-1].new_page(), url)

    yield visit
    for context in contexts:
        context.close()


def state(**changes):
    """The data of a page on which clients have written every text that they can."""
    rule = {"domain": "shop", "name": HOSTILE, "limits": [HOSTILE], "shadow": True, "bans": 2}
    rates = {"allowed": 120.25, "over": 0, "delayed": 0.004, "denied": 1.5, "shadow_denied": 0.5}
    limited = {"client": HOSTILE, "domain": "shop", "rule": HOSTILE, "reason": HOSTILE, "denials": 1732}
    return {
        "domain": HOSTILE,
        "version": HOSTILE,
        "switch": "on",
        "at": 1_700_000_000.0,
        "store": {"kind": HOSTILE, "up": True, "latency_ms": 0.4},
        "load": 0.31,
        "processes": 4,
        "shared": True,
        "rates": {"requests": 812.5, "denials": 3.2},
        "series": {"step": 10, "end": 1_700_000_000, "requests": [10, 20, 30], "denials": [0, 0, 5]},
        "limited": [limited | {"since": 1_699_999_990.0, "until": 1_700_000_048.0}],
        "rules": [rule | {"rates": rates}],
        **changes,
    }


def with_state(visitor, **changes):
    """Let the page show these data instead of those of its server."""
    body = json.dumps(state(**changes))
    visitor.tab.route("**/state.json", lambda route: route.fulfill(body=body, content_type="application/json"))
    visitor.open()
    visitor.wait("#fresh", "Live")
    return visitor


@EACH_SERVER
def test_a_denied_client_appears(serve, visit):
    with serve() as served:
        stranger = visit(served.url, "this is not the token")
        stranger.open()
        assert stranger.text("body").strip() == "The token is not right."
        visitor = visit(served.url)
        visitor.open()
        visitor.wait("#domain", "shop")
        assert visitor.text("#limited-none") == "No client is limited."
        assert visitor.text("#switch") == "Limits are enforced"
        assert visitor.text("#store") == "Memory"
        for _ in range(5):
            visitor.tab.request.get(f"{served.url}/items")
        visitor.wait("#limited-count", "1")
        row = visitor.tab.locator("#limited tbody tr").inner_text()
        assert row.split()[:4] == ["ip=127.0.0.1", "everything", "limited", "3"]
        names = visitor.tab.locator("#rules tbody td.name").all_inner_texts()
        assert [name.split() for name in names] == [["everything"], ["paths", "shadow"]]
        assert visitor.tab.locator("#rules tbody").inner_text().count("per 365 days") == 2
        assert visitor.said == []  # no violation of the policy, and no error


def test_what_clients_have_written_is_inert(visit):
    visitor = with_state(visit())
    assert visitor.tab.locator("main img, main script, main b b").count() == 0
    assert visitor.tab.title().startswith("Rate limits: <img src=x")
    shown = visitor.text("#limited td.client")
    assert shown == HOSTILE.replace("\u202e", "\\u202e").replace("\u2066", "\\u2066").replace("\x1b", "\\u001b")
    visible = visitor.text("body")
    assert not {"\u202e", "\u2066", "\x1b"} & set(visible)
    assert (visitor.said, visitor.dialogs) == ([], [])


def test_the_figures_are_in_words_that_people_read(visit):
    visitor = with_state(visit())
    assert visitor.text("#requests") == "813"
    assert visitor.text("#share") == "· 5 of 60 in 1 min"
    assert visitor.text("#load") == "31 %"
    assert visitor.text("#latency") == "up · 0.4 ms"
    assert visitor.text("#processes") == "4 processes"
    limited = visitor.tab.locator("#limited tbody td").all_inner_texts()
    assert limited[3:] == ["1,732", "10 s ago", "48 s"]
    rule = visitor.tab.locator("#rules tbody td").all_inner_texts()
    assert rule[2:7] == ["120", "0", "< 0.01", "1.5 (0.5)", "2"]


@pytest.mark.parametrize(
    ("changes", "selector", "words"),
    [
        ({"switch": "off"}, "#switch", "Switched off: all requests pass"),
        ({"switch": "shadow"}, "#switch", "Switched to shadow: nothing is denied"),
        ({"store": {"kind": "redis", "up": False, "latency_ms": None}}, "#latency", "unavailable"),
        ({"shared": False, "processes": 1}, "#processes", "only this process is shown"),
        ({"load": None}, "#load-note", "not measured: no rule needs it"),
        ({"version": None}, "#version", "without a version"),
        ({"rules": []}, "#rules-none", "The file has no rules."),
        ({"series": {"step": 10, "end": 0, "requests": [], "denials": []}}, "#requests-top", "at most 0"),
    ],
)
def test_what_is_out_of_the_ordinary_is_said_in_words(visit, changes, selector, words):
    visitor = with_state(visit(), **changes)
    assert visitor.text(selector) == words
    assert visitor.said == []


def hide(visitor, hidden):
    """Tell the page that its tab is hidden or shown, as a browser does."""
    script = "hidden => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
    visitor.tab.evaluate(script + " document.dispatchEvent(new Event('visibilitychange')); }", hidden)


def test_a_hidden_tab_fetches_nothing(visit):
    visitor = visit()
    visitor.tab.clock.install()
    with_state(visitor)
    with visitor.tab.expect_event("requestfinished"):  # the browser tells of it later than the clock has run
        visitor.tab.clock.run_for(2_100)
    seen = len(visitor.fetched)
    assert seen == 2
    hide(visitor, True)
    visitor.tab.clock.run_for(60_000)
    assert visitor.text("#fresh") == "Paused"
    assert len(visitor.fetched) == seen
    hide(visitor, False)
    visitor.wait("#fresh", "Live")
    assert len(visitor.fetched) == seen + 1


def test_a_failed_fetch_is_said_and_its_old_numbers_are_marked(visit):
    visitor = visit()
    visitor.tab.clock.install()
    with_state(visitor)
    visitor.tab.unroute("**/state.json")
    visitor.tab.route("**/state.json", lambda route: route.abort())
    visitor.tab.clock.run_for(2_100)
    visitor.wait("#trouble", "The server does not answer.")
    visitor.tab.clock.run_for(10_000)
    assert "The server does not answer. These numbers are 1" in visitor.text("#trouble")
    assert visitor.text("#fresh") == "Stale"
    visitor.tab.unroute("**/state.json")  # the server answers again
    visitor.tab.clock.run_for(2_100)
    visitor.wait("#domain", "shop")
    assert visitor.tab.locator("#trouble").is_hidden()


def test_data_that_cannot_be_read_are_said(visit):
    visitor = visit()
    visitor.tab.route("**/state.json", lambda route: route.fulfill(body="{}", content_type="application/json"))
    visitor.open()
    visitor.wait("#trouble", "The answer of the server cannot be read.")


def test_a_token_that_is_no_longer_right_is_said_and_no_more_is_fetched(visit):
    visitor = visit()
    visitor.tab.clock.install()
    with_state(visitor)
    visitor.tab.unroute("**/state.json")
    visitor.tab.route("**/state.json", lambda route: (visitor.fetched.append(1), route.fulfill(status=401)))
    visitor.tab.clock.run_for(2_100)
    visitor.wait("#trouble", "The token is no longer right. Reload this page.")
    seen = len(visitor.fetched)
    visitor.tab.clock.run_for(60_000)
    assert len(visitor.fetched) == seen


CONTRAST = """() => {
  const light = text => {
    const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map(each => each / 255)
      .map(each => each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, other) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  const ground = light(getComputedStyle(document.querySelector("article")).backgroundColor);
  return [...document.querySelectorAll("main td, main th, main p, main h2, main .badge")]
    .map(each => ratio(ground, light(getComputedStyle(each).color)));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_readable_on_a_phone(visit, scheme):
    """By its width, its contrast (4.5 is the AA level of WCAG 2), and the names of cells that lose their columns."""
    visitor = with_state(visit(viewport={"width": 360, "height": 800}, color_scheme=scheme))
    assert visitor.tab.evaluate("document.documentElement.scrollWidth") <= 360
    assert min(visitor.tab.evaluate(CONTRAST)) >= 4.5
    dark = visitor.tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 22, 29)"
    assert dark is (scheme == "dark")
    cell = visitor.tab.get_by_role("cell").nth(3)
    assert cell.evaluate("each => getComputedStyle(each, '::before').content") == '"Denials"'
    assert visitor.tab.get_by_role("columnheader").count() == 13
