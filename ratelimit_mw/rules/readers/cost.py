"""`cost`: what one request takes. A number, or where a number is found: in the request, or in its response."""

import logging
import re
from collections.abc import Callable
from typing import NamedTuple

from ratelimit_mw.identity.attributes import Attributes, Reader
from ratelimit_mw.model import CostAfter
from ratelimit_mw.rules.compiled import Weigh
from ratelimit_mw.rules.documents.tree import Node, Problems, Scalar, kind, near, quoted
from ratelimit_mw.rules.readers.limits import MOST
from ratelimit_mw.rules.readers.values import TOKEN, whole
from ratelimit_mw.rules.readers.wrong import Wrong

_log = logging.getLogger("ratelimit_mw")

_NAME = re.compile("[A-Za-z_]")
_SOURCES = ("scope:", "environ:", "python:")
_RESPONSE = "response:"
_FORM = "write a whole number, an attribute, python:package.module:function or response:X-Cost"


class Cost(NamedTuple):
    """`fixed`, or what `source` says; a request whose source says nothing costs 1, which is `fixed` then."""

    fixed: int = 1
    source: str = ""

    @property
    def header(self) -> str:
        """The response's header that says it, in lower case; empty where none does."""
        return self.source.removeprefix(_RESPONSE).strip().lower() if self.source.startswith(_RESPONSE) else ""


def read_cost(node: Node) -> Cost:
    """The cost that `node` states. Raises `Wrong`."""
    if not isinstance(node, Scalar) or not isinstance(node.value, str) or not _NAME.match(node.text.strip()):
        fixed = whole(node)
        if fixed < 0:
            raise Wrong.at(None, f"{kind(node)} is too small", "at least 0")
        if fixed > MOST:
            raise Wrong.at(None, f"{kind(node)} is too large", f"at most {MOST}")
        return Cost(fixed)
    cost = Cost(1, node.text.strip())
    if cost.source.startswith(_RESPONSE) and not TOKEN.fullmatch(cost.header):
        raise Wrong.at(None, f"{quoted(cost.header)} is no name of a header", "as response:X-Cost")
    return cost


def compile_cost(cost: Cost, node: Node, attributes: Attributes, problems: Problems) -> Weigh | None:
    """What finds a request's cost in the request; None where it is fixed, or known from the response only."""
    source = cost.source
    if not source or cost.header:
        return None
    if source.startswith(_SOURCES):
        try:
            return _weighing(attributes.source(source), source)
        except ValueError as error:
            problems.add(node.place, str(error))
    elif attributes.known(source) and not source.startswith("path:"):
        return _weighing(attributes.reader(source), source)
    else:
        names = [name for name in attributes.names() if name != "path:N"]
        problems.add(node.place, f"there is no attribute {quoted(source)}", near(source, names) or _FORM)
    return None


def cost_after(cost: Cost) -> CostAfter | None:
    """What finds a request's cost in the headers of its response; None where it was known before."""
    header = cost.header
    if not header:
        return None
    number = _Number(cost.source)

    def find(read: Callable[[str], str | None]) -> int:
        return number.of(read(header))

    return find


def _weighing(read: Reader, source: str) -> Weigh:
    number = _Number(source)
    return lambda request: number.of(read(request))


class _Number:
    """Reads costs, and logs the first that is none: without its text, for that may be anybody's."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._said = False

    def of(self, text: str | None) -> int:
        if text is None:
            return 1
        digits = text.strip()
        if digits.isascii() and digits.isdigit():
            # One more than the most is a cost that no limit admits.
            return min(int(digits.lstrip("0")[:11] or "0"), MOST + 1)
        if not self._said:
            self._said = True
            _log.warning("cost: %s: what is no whole number from 0 on counts as 1 (said once)", self._source)
        return 1
