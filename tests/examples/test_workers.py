"""The examples in four workers that share an `lmdb://` file, under the servers and workers that apps run in."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.support.apps import ROOT, gunicorn, uvicorn
from tests.support.patience import WITHIN

RULES = """\
domain: shop
storage: {url: "lmdb://FILE", timeout: 20s, on_error: deny}
rules:
  - {name: everything, by: ip, limit: 100 per 3650 days}
"""
SERVED = [
    pytest.param((uvicorn, "starlette_app:app", ()), id="uvicorn"),
    pytest.param((gunicorn, "flask_app:app", ()), id="gunicorn sync"),
    pytest.param((gunicorn, "flask_app:app", ("--threads", "4")), id="gunicorn gthread"),
    pytest.param((gunicorn, "flask_app:app", ("-k", "gevent")), id="gunicorn gevent"),
    pytest.param((gunicorn, "flask_app:app", ("--preload",)), id="gunicorn sync, preloaded"),
    pytest.param((gunicorn, "flask_app:app", ("--preload", "-k", "gevent")), id="gunicorn gevent, preloaded"),
]


@pytest.mark.parametrize("served", SERVED)
def test_400_requests_at_once_to_four_workers_pass_100_times(served, tmp_path):
    serve, name, args = served
    module = name.partition(":")[0]
    (tmp_path / f"{module}.py").write_text((ROOT / "examples" / f"{module}.py").read_text())
    (tmp_path / "ratelimits.yaml").write_text(RULES.replace("FILE", f"{tmp_path}/limits"))
    with (
        serve(name, workers=4, cwd=tmp_path, args=args) as app,
        httpx.Client(base_url=app.url, timeout=WITHIN, limits=httpx.Limits(max_keepalive_connections=0)) as client,
        ThreadPoolExecutor(16) as pool,
    ):
        statuses = Counter(pool.map(lambda _: client.get("/api/items/7").status_code, range(400)))
    assert statuses == {200: 100, 429: 300}
