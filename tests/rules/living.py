"""What the tests of living rules have in common."""


def text(limit="5 per minute", *, domain="d", name="a", **more):
    """A file of one rule by ip; `more` are further sections, as flow mappings."""
    lines = [f"domain: {domain}", *(f"{key}: {value}" for key, value in more.items())]
    return "\n".join([*lines, "rules:", f"  - {{name: {name}, by: ip, limit: {limit}}}", ""])


def limit_of(limiter, **client):
    """The limit that holds for a client, by a look that charges nothing."""
    return limiter.peek(client or {"ip": "192.0.2.1"}).limit
