"""`${NAME}` and `${NAME:-default}` in the values of a configuration."""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$?\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\})?")


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
