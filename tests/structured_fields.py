"""The fields RateLimit-Policy and RateLimit, as somebody else's parser of structured fields reads them."""

from http_sfv import List


def read(field):
    """The items of a field, each a name and its parameters."""
    items = List()
    items.parse(field.encode("ascii"))
    return [(item.value, dict(item.params)) for item in items]
