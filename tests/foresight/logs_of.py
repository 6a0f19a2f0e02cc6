"""The logs of this folder: the same eight requests, in one file for each format."""

from contextlib import closing
from pathlib import Path

from ratelimit_mw.foresight.logs import Log, Order
from ratelimit_mw.foresight.logs.entry import Unreadable

LOGS = Path(__file__).parent / "logs"
START = 1_772_366_400_000_000
"""The time of the first request, 2026-03-01 12:00:00 UTC, in microseconds."""

FORMATS = {
    "combined.log": "auto",
    "common.log": "auto",
    "main.log": "auto",
    "vhost_combined.log": "auto",
    "uvicorn.log": "auto",
    "nginx.json": "auto",
    "caddy.json": "auto",
    "traefik.json": "auto",
    "envoy.json": "auto",
    "csv.csv": "auto",
    **dict.fromkeys(("alb.log", "cloudfront.log", "google.json", "cloudflare.json", "ingress-nginx.log"), "auto"),
    **dict.fromkeys(("haproxy.log", "traefik.log", "envoy.log", "istio.log", "iis.log"), "auto"),
    **dict.fromkeys(("kubernetes.log", "docker.log", "compose.log", "combined_more.log"), "auto"),
    "nginx_timed.log": '$msec $request_time $remote_addr "$remote_user" $request_method "$request_uri" $status "$host"',
    "apache_timed.log": '%t %h %u "%m" "%U" "%q" %>s %D "%{Host}i"',
}
"""The `--format` of each log."""


def entries(path, wanted=(), *, form="auto", places=None, disorder=60, spread=False):
    """All requests of a log, in order of time, and the log itself."""
    with closing(Log(str(path), Unreadable())) as log:
        log.detect(form, places or {})
        return [entry for batch in Order(disorder, spread=spread).ordered(log.entries(wanted)) for entry in batch], log
