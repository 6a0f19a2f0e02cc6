"""The one spelling of a path that its disguises share."""

import posixpath

# CPython's fast normpath once cut a path at a NUL, so it is given a noncharacter in its place, which no template holds.
# It is one for one: where the lengths differ, replacing takes ten times as long, and a client may send many.
_NUL, _STAND_IN = "\0", "\uffff"


def cleaned(path: str) -> str:
    """The path without empty and dot segments and without a slash at its end; "/" at least.

    A line feed at the very end goes as well: to a router made of regular expressions, `$` stands before
    it. Case and percent signs are left alone: the server has decoded the path once, and a router would
    not do it again.
    """
    if path[-1:] not in ("/", "\n", "") and path[0] == "/" and "//" not in path and "/." not in path:
        return path
    if path == "/":
        return path
    path = path.removesuffix("\n").lstrip("/")
    if _NUL in path:
        return posixpath.normpath("/" + path.replace(_NUL, _STAND_IN)).replace(_STAND_IN, _NUL)
    return posixpath.normpath("/" + path)
