import httpx
import pytest

from tests.support.apps import AppExited, gunicorn, uvicorn

ASGI = """
import os
async def app(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": os.environ["GREETING"].encode()})
"""
WSGI = """
import os
def app(environ, start_response):
    start_response("200 OK", [])
    return [os.environ["GREETING"].encode()]
"""
EACH = pytest.mark.parametrize(
    ("serve", "source"), [pytest.param(uvicorn, ASGI, id="uvicorn"), pytest.param(gunicorn, WSGI, id="gunicorn")]
)


@EACH
@pytest.mark.parametrize("workers", [1, 2])
def test_an_app_is_served_by_as_many_workers_as_asked_for(tmp_path, serve, source, workers):
    (tmp_path / "served.py").write_text(source)
    with serve("served:app", workers=workers, cwd=tmp_path, env={"GREETING": "hello"}) as app:
        assert httpx.get(app.url).text == "hello"
        assert len(app.pids) == workers
    assert app.process.poll() is not None


@EACH
def test_an_app_that_cannot_be_loaded_is_reported_with_its_reason(tmp_path, serve, source):
    (tmp_path / "served.py").write_text("raise RuntimeError('no such luck')")
    with pytest.raises(AppExited, match="no such luck") as caught, serve("served:app", cwd=tmp_path):
        pass
    assert caught.value.status != 0
