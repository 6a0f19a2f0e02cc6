"""A store that is away, or whose URL is wrong, when a server starts: what is logged, and which start fails."""

import asyncio
import logging
import re
import ssl
import sys
import threading
from subprocess import PIPE

import pytest
import trustme

from ratelimit_mw import ConfigurationError, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as AsgiMiddleware
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.support.apps import ROOT
from tests.support.patience import WITHIN, at_most, eventually
from tests.support.processes import end, spawn
from tests.support.proxy import Proxy

RULES = [{"name": "all", "by": "ip", "limit": "1 per day"}]


def logged(caplog):
    return [record for record in caplog.records if record.name == "ratelimit_mw" and record.levelno >= logging.WARNING]


async def asgi_app(scope, receive, send):
    assert (await receive())["type"] == "lifespan.startup"
    await send({"type": "lifespan.startup.complete"})
    assert (await receive())["type"] == "lifespan.shutdown"
    await send({"type": "lifespan.shutdown.complete"})


def wsgi_app(environ, start_response):
    start_response("200 OK", [])
    return []


def start_wsgi(config):
    WsgiMiddleware(wsgi_app, config).limiter.close()


def start_asgi(config):
    """Start and stop the app, and return what it sends to the server."""

    async def main():
        sent, messages = [], iter(["lifespan.startup", "lifespan.shutdown"])

        async def receive():
            return {"type": next(messages)}

        async def send(message):
            sent.append(message)

        try:
            await AsgiMiddleware(asgi_app, config)({"type": "lifespan"}, receive, send)
        finally:
            assert sent
        return sent

    return asyncio.run(main())


@pytest.fixture(params=[start_asgi, start_wsgi], ids=["ASGI", "WSGI"])
def start(request):
    return request.param


def config_of(url, **storage):
    return {"domain": "shop", "storage": {"url": url, "timeout": "5s", **storage}, "rules": RULES}


def wrong_password(server):
    return server.url.replace("//", "//bob:wrong@"), "WRONGPASS.*correct the user and the password"


def no_password(server):
    server.config("requirepass", "secret")
    server.admin.execute_command("AUTH", "secret")
    return server.url, "NOAUTH.*write the password into the storage URL"


def no_such_database(server):
    return server.url.replace("/0", "/99"), "out of range.*the number of a database that the server has"


def tls_to_a_plain_port(server):
    return server.url.replace("redis:", "rediss:"), "the port speaks no TLS.*use redis:// instead of rediss://"


def no_rights(server):
    server.admin.execute_command("ACL", "SETUSER", "bob", "on", ">secret", "~shop:*", "+@all", "-eval", "-evalsha")
    return server.url.replace("//", "//bob:secret@"), "NOPERM.*permit the server's user the commands"


def no_sentinel(server):
    return f"redis+sentinel://127.0.0.1:{server.port}/main", "SENTINEL.*the server is no Sentinel"


FAULTS = [wrong_password, no_password, no_such_database, tls_to_a_plain_port, no_rights, no_sentinel]


@pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.__name__) for fault in FAULTS])
def test_a_fault_that_waiting_cannot_heal_is_an_error_before_the_first_request(fresh_server, start, caplog, fault):
    url, message = fault(fresh_server)
    start(config_of(url))
    (record,) = logged(caplog)
    assert record.levelname == "ERROR"
    assert re.search(message, record.getMessage())


def test_a_plain_connection_to_a_port_with_tls_is_an_error_with_the_remedy(any_server, start, caplog):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with Proxy(any_server.port, tls=context) as proxy:
        start(config_of(proxy.url.replace("rediss:", "redis:")))
    (record,) = logged(caplog)
    assert record.levelname == "ERROR"
    assert "the port speaks TLS" in record.getMessage()
    assert "use rediss:// instead of redis://" in record.getMessage()


def test_a_server_that_is_away_is_a_warning_before_the_first_request(start, caplog):
    start(config_of("redis://127.0.0.1:1/0"))
    (record,) = logged(caplog)
    assert record.levelname == "WARNING"
    assert "is away" in record.getMessage()


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:1/0", "redis+cluster://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/main"]
)
def test_a_required_store_that_is_away_fails_the_first_start_and_nothing_goes_on_trying(start, url):
    with pytest.raises(StoreUnavailable, match=r"storage\.required is true, and the store is away .*refused"):
        start(config_of(url, required=True))
    eventually(lambda: not any(thread.name == "ratelimit_mw breaker" for thread in threading.enumerate()))


def test_a_required_file_that_cannot_be_used_fails_the_first_start(start, tmp_path):
    with pytest.raises(StoreUnavailable, match=r"storage\.required is true, and the store is away .*folder"):
        start(config_of(f"lmdb://{tmp_path}/none/shop.lmdb", required=True))


def test_a_required_file_is_not_created_at_the_start(start, tmp_path, caplog):
    start(config_of(f"lmdb://{tmp_path}/shop.lmdb", required=True))
    assert (logged(caplog), list(tmp_path.iterdir())) == ([], [])


def test_a_required_store_that_answers_lets_the_server_start(any_server, start, caplog):
    start(config_of(any_server.url, required=True))
    assert logged(caplog) == []


def test_a_wsgi_app_that_starts_inside_an_event_loop_does_not_wait_for_that_loop(any_server):
    async def main():
        async with RateLimiter(config_of(any_server.url, timeout="60s")) as limiter:
            await limiter.acheck({"ip": "192.0.2.1"})  # the loop has a connection
            with at_most(30):
                WsgiMiddleware(wsgi_app, limiter=limiter)
            return limiter.check({"ip": "192.0.2.1"}).allowed

    assert asyncio.run(main()) is False


@pytest.mark.parametrize("given", ["file", "argument", "rules"])
def test_a_path_that_is_no_number_of_a_database_is_refused_with_its_line(tmp_path, given):
    file = tmp_path / "limits.yaml"
    url = "redis://localhost:6379/shop"
    written = url if given == "file" else "memory://"
    file.write_text(f"domain: shop\nstorage:\n  url: {written}\nrules: [{{name: a, by: ip, limit: 1/day}}]\n", "utf-8")
    with pytest.raises(ConfigurationError, match="'shop' is not the number of a database") as error:
        RateLimiter(url if given == "rules" else file, storage=url if given == "argument" else None)
    assert "redis://localhost:6379/0" in str(error.value)
    if given == "file":
        assert error.value.problems[0].line == 3


WORKERS = """
import os, sys
from ratelimit_mw import RateLimiter
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.wsgi import RateLimitMiddleware

def worker(url):
    \"\"\"What becomes of a worker that is forked now, as gunicorn forks it.\"\"\"
    child = os.fork()
    if not child:
        storage = {"url": url, "required": True}
        rules = [{"name": "all", "by": "ip", "limit": "1 per day"}]
        try:
            RateLimitMiddleware(lambda *_: [], {"domain": "shop", "storage": storage, "rules": rules})
        except StoreUnavailable:
            os._exit(3)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

port = sys.argv[1]
print(worker("redis://127.0.0.1:1/0"), worker(f"redis://127.0.0.1:{port}/0"), flush=True)
sys.stdin.readline()
print(worker(f"redis://127.0.0.1:{port}/0"), flush=True)
"""


def test_a_worker_that_is_started_again_does_not_fail(fresh_server):
    command = [sys.executable, "-c", WORKERS, str(fresh_server.port)]
    with spawn(command, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        try:
            assert process.stdout.readline() == b"3 0\n"  # the first start, and one with the store
            fresh_server.kill()
            out, _ = process.communicate(b"\n", timeout=WITHIN)
        finally:
            end(process)
    assert out == b"0\n"  # again, without the store
