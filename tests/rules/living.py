"""What the tests of living rules have in common."""

import time


def eventually(what, within=5.0, every=0.005):
    """Return once `what()` is true; what is never so fails the test."""
    deadline = time.monotonic() + within
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(every)
    return found


def text(limit="5 per minute", *, domain="d", name="a", **more):
    """A file of one rule by ip; `more` are further sections, as flow mappings."""
    lines = [f"domain: {domain}", *(f"{key}: {value}" for key, value in more.items())]
    return "\n".join([*lines, "rules:", f"  - {{name: {name}, by: ip, limit: {limit}}}", ""])


def limit_of(limiter, **client):
    """The limit that holds for a client, by a look that charges nothing."""
    return limiter.peek(client or {"ip": "192.0.2.1"}).limit
