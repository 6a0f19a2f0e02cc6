"""Which of several media types a client would rather have (RFC 9110, section 12.5.1)."""

import re
from collections.abc import Sequence

_QUALITY = re.compile(r"q\s*=\s*(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)", re.IGNORECASE)


def preferred(accept: str, offers: Sequence[Sequence[str]]) -> int:
    """The place of the offer that `accept` likes best; of those it likes alike, and where it likes none, the first.

    An offer may go by several media types. Parameters of a type are not compared, and a range whose `q` can't be
    read is one that is not accepted.
    """
    ranges: dict[str, float] = {}
    for written in accept.lower().split(","):
        media, *parameters = (part.strip() for part in written.split(";"))
        ranges.setdefault(media, _quality(parameters))
    liking = [max(_liked(media, ranges) for media in types) for types in offers]
    return liking.index(max(liking))


def _quality(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q") and parameter[1:].lstrip().startswith("="):
            found = _QUALITY.fullmatch(parameter)
            return float(found[1]) if found else 0.0
    return 1.0


def _liked(media: str, ranges: dict[str, float]) -> float:
    """The quality that the most specific range gives."""
    for matching in (media, f"{media.partition('/')[0]}/*", "*/*"):
        if matching in ranges:
            return ranges[matching]
    return 0.0
