"""What a scalar of a configuration means: YAML 1.2's plain forms, and `${NAME}` from the environment.

YAML 1.1 reads `010` as 8, `1:30` as 90 and `on` as true. Here they stay text, and a word that takes a number then
refuses them. Exponents, hexadecimal numbers, `.inf` and `.nan` stay text as well.
"""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$?\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\})?")
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})\.[0-9]{1,17}")
_WORDS: dict[str, bool | None] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}


def plain(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    return text


def expand(text: str, environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """`text` with its references read from `environ`, and what is wrong with those that can't be.

    As in a shell, a default also stands in for a variable that is set and empty. `$${NAME}` is the
    text `${NAME}`. What a variable holds is never read again: not for references, not as YAML.
    """
    if "${" not in text:
        return text, []
    wrong: list[str] = []

    def value(reference: re.Match[str]) -> str:
        if reference[0].startswith("$$"):
            return reference[0][1:]
        name, default = reference["name"], reference["default"]
        if name is None or "${" in (default or ""):
            wrong.append("a reference to the environment is ${NAME} or ${NAME:-default}, and can't hold another")
            return reference[0]
        if default is not None:
            return environ.get(name) or default
        if name not in environ:
            wrong.append(f"the environment variable {name} is not set")
            return reference[0]
        return environ[name]

    return _REFERENCE.sub(value, text), wrong
