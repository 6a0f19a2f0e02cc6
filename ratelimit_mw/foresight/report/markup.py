"""HTML and SVG elements that are safe by construction.

A text becomes part of a page only through `element`, which escapes it. Only a `Markup` is inserted as it is.
"""

from collections.abc import Sequence
from html import escape

from ratelimit_mw.foresight.wording import printable

_LONGEST = 600
"""The most characters of one text. A report must stay small, whatever clients have written."""

_VOID = frozenset({"input", "meta"})
_SHAPES = frozenset({"circle", "line", "path", "polyline", "rect"})


class Markup(str):
    """A text that is HTML or SVG already."""

    __slots__ = ()


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element.

    Args:
        name: The name of the element.
        children: What it contains. A text is escaped and cut, and its control characters are shown as escapes.
        attributes: The attributes. In names, `_` stands for `-`, and is ignored at the end. An attribute that is None
            or False is left out. One that is True has no value.
    """
    held = {key: value for key, value in attributes.items() if value is not None and value is not False}
    start = " ".join([name, *(_attribute(key, value) for key, value in held.items())])
    if name in _VOID:
        return Markup(f"<{start}>")
    if name in _SHAPES and not children:
        return Markup(f"<{start}/>")
    return Markup(f"<{start}>{joined(*children)}</{name}>")


def joined(*parts: object) -> Markup:
    """Return texts and elements, one after the other. Texts are escaped. A part that is None is left out."""
    held = (part for part in parts if part is not None)
    return Markup("".join(part if isinstance(part, Markup) else escape(cut(str(part))) for part in held))


def cut(text: str, longest: int = _LONGEST) -> str:
    """Return a text that a client may have written as it is shown: printable, and not too long."""
    shown = printable(text[: longest + 1])
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return name
    text = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
    return f'{name}="{escape(printable(text))}"'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """Return a line. `kind` is its class, as for all shapes."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def polyline(points: Sequence[tuple[float, float]], kind: str) -> Markup:
    """Return a line through points, which the script of the report reads."""
    return element(
        "polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=f"curve {kind}", data_line=True
    )


def circle(x: float, y: float, radius: float, kind: str, **attributes: object) -> Markup:
    """Return a circle."""
    return element("circle", cx=x, cy=y, r=radius, class_=kind, **attributes)


def text(x: float, y: float, text: str, kind: str, **attributes: object) -> Markup:
    """Return a text at a place."""
    return element("text", text, x=x, y=y, class_=kind, **attributes)


def svg(width: int, height: float, name: str, shapes: Sequence[Markup]) -> Markup:
    """Return a drawing with its shapes. `name` is read out in its place."""
    size = {"viewBox": f"0 0 {width} {height:.0f}", "width": width, "height": round(height)}
    return element("svg", joined(*shapes), role="img", aria_label=name, **size)
