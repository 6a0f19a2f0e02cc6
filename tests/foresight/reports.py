"""Results of replays and what-if curves, for the tests of the report."""

from collections import Counter

from ratelimit_mw.foresight.clients import Client
from ratelimit_mw.foresight.results import Curve
from tests.foresight.test_replay import line, replayed

HOSTILE = "<script>window.hacked=1</script><img/src=x/onerror=window.hacked=1>"
"""What a client may write as its user. A user in a log has no spaces."""

RULES = (
    {"name": "everything", "limit": "2 per minute"},
    {"name": "users <b>", "by": "user", "limit": "1 per hour", "shadow": True},
)


def small(tmp_path, **options):
    """The result of a small log, in which a client has written HTML and control characters, with two curves."""
    lines = [line(second, f"192.0.2.{client}") for client in range(1, 5) for second in range(0, 60, 5 * client)]
    lines += [line(second, f"198.51.100.{second}", user=HOSTILE, path="/\u202e%00") for second in range(60, 80)]
    lines.append("\x1b[31m</script><script>window.hacked=1</script>\u202e\n")
    path = tmp_path / "access.log"
    path.write_text("".join(lines), "utf-8")
    result = replayed(path, *RULES, sections={"client": {"secret": "s"}}, **options)
    result.curves = [
        curve(),
        curve("users <b>", why_replayed="it bans", shadow=True, limits=(2, 5, 9)),
    ]
    return result


def curve(rule="everything", limits=None, windows=None, **words):
    """The curve of a fixed window of 5 per minute. Each client has one window, with so many requests."""
    windows = windows or [1] * 1500 + [2] * 300 + [4] * 70 + [9] * 20 + [40, 41, 250]
    limits = limits or tuple(range(1, 12)) + tuple(range(15, 255, 5))
    found = {
        "rule": rule,
        "shadow": False,
        "quota": "5 per minute",
        "algorithm": "fixed_window",
        "why_replayed": "",
        "limit": 5,
        "limits": limits,
        "denied": tuple(sum(max(0, size - limit) for size in windows) for limit in limits),
        "clients": tuple(sum(size > limit for size in windows) for limit in limits),
        "requests": sum(windows),
        "all_clients": len(windows),
        "peaks": tuple(sorted(Counter(windows).items())),
        "hit": tuple(
            Client(
                f"ip=192.0.2.{place}" if place else f"user={HOSTILE}",
                sum(limit < windows[-1 - place] for limit in limits) - 1,
                windows[-1 - place],
                windows[-1 - place],
                f"/{HOSTILE} 90 %",
                "200",
                HOSTILE,
                "program",
                "its user agent says curl",
            )
            for place in range(min(30, len(windows)))
            if limits[0] < windows[-1 - place]
        ),
    }
    return Curve(**(found | words))
