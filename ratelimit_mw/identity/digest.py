"""Keyed hashes of what must not be read in a counter's key: tokens, cookies, names of users."""

from base64 import urlsafe_b64encode
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b

_CACHED = 256  # characters; the cache must not grow with the length of what clients send


def digester(secret: str, domain: str) -> Callable[[str], str]:
    """A function from a text to 20 characters of [A-Za-z0-9_-], the same in every process that has the secret.

    Without a secret the domain stands in. That keeps texts out of sight, but whoever knows the domain
    can check a guess.
    """
    material = b"secret:" + secret.encode() if secret else b"domain:" + domain.encode()
    keyed = blake2b(digest_size=15, key=blake2b(material, digest_size=32).digest(), person=b"ratelimit_mw")

    def digest(text: str) -> str:
        state = keyed.copy()
        state.update(text.encode("utf-8", "surrogatepass"))
        return urlsafe_b64encode(state.digest()).decode("ascii")

    cached = lru_cache(maxsize=2048)(digest)
    return lambda text: cached(text) if len(text) <= _CACHED else digest(text)
