"""docs/reference.md lists the public surface, and errors.py all exceptions; both are compared with the code."""

import dataclasses
import importlib.util
import inspect
import pkgutil
import re

import pytest

import ratelimit_mw
from ratelimit_mw import errors
from tests.inside import django_app  # noqa: F401 - ratelimit_mw.drf needs the settings of a project
from tests.support.apps import ROOT

PAGE = (ROOT / "docs" / "reference.md").read_text("utf-8")
REFERENCE = importlib.util.spec_from_file_location("docs_api", ROOT / "docs" / "api.py")
API = importlib.util.module_from_spec(REFERENCE)
REFERENCE.loader.exec_module(API)
LISTED = API.public()
GOT = re.findall(r"^\| `([A-Z]\w+)` \|", PAGE, re.MULTILINE)
"""The types that an app gets from public functions."""


def modules():
    names = [info.name for info in pkgutil.walk_packages(ratelimit_mw.__path__, "ratelimit_mw.")]
    return [ratelimit_mw, *(importlib.import_module(name) for name in names if not name.endswith("__main__"))]


@pytest.mark.parametrize("module", LISTED)
def test_a_public_module_exports_the_names_on_the_page(module):
    exported = importlib.import_module(module).__all__
    assert sorted(exported) == sorted(LISTED[module])


def test_the_public_modules_are_on_the_page():
    modules = ("asgi", "wsgi", "starlette", "fastapi", "flask", "django", "drf", "errors")
    promised = {f"ratelimit_mw.{module}" for module in modules}
    assert {"ratelimit_mw", *promised} <= LISTED.keys()


def test_a_module_that_is_not_on_the_page_says_that_it_is_internal():
    silent = []
    for module in modules():
        parts = module.__name__.split(".")
        above = [".".join(parts[:length]) for length in range(2, len(parts) + 1)]
        told = any("internal" in (importlib.import_module(name).__doc__ or "").lower() for name in above)
        if not told and module.__name__ not in LISTED:
            silent.append(module.__name__)
    assert silent == []


def test_every_type_that_an_app_gets_can_be_imported_from_types():
    """The others are what a store of an app's own uses."""
    types = set(LISTED["ratelimit_mw.types"])
    assert set(GOT) | {"Ask", "Intent", "Outcome", "Quota", "Reply", "Store"} == types


def test_a_public_value_cannot_be_changed():
    public = [getattr(importlib.import_module(module), name) for module, names in LISTED.items() for name in names]
    values = [each for each in public if isinstance(each, type) and dataclasses.is_dataclass(each)]
    assert errors.Problem in values
    for each in values:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(object.__new__(each), dataclasses.fields(each)[0].name, None)


def test_a_page_of_a_module_has_its_names_and_their_members():
    page = API.page("ratelimit_mw", LISTED["ratelimit_mw"])
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == LISTED["ratelimit_mw"]
    methods = {"check", "explain", "acquire", "reset", "close"}
    assert methods <= set(re.findall(r"^\* `(\w+)\(.*\)`, `a\w+`: ", page, re.MULTILINE))


def test_a_page_shows_nothing_that_is_internal():
    pages = {path.name: path.read_text("utf-8") for path in (ROOT / "docs" / "api").glob("*.md")}
    assert [name for name, text in pages.items() if "Internal." in text] == []


def callables():
    """The public classes and functions with their methods, except for the types that an app gets and does not make."""
    found = {}
    for module, names in LISTED.items():
        for name in names:
            shown = getattr(importlib.import_module(module), name)
            if module != "ratelimit_mw.types":
                found[f"{module}.{name}"] = shown
            if name != "Store":
                members = dict(API.members(shown))
                found |= {f"{module}.{name}.{each}": members[each] for each in members}
    return [pytest.param(member, id=path) for path, member in found.items() if not isinstance(member, property)]


@pytest.mark.parametrize("found", callables())
def test_every_argument_is_documented(found):
    doc = inspect.getdoc(found) or ""
    refers = re.match(r"See `[\w.]+`|Do what `\w+` does|The awaitable twin of", doc)  # to where they are documented
    protocol = getattr(found, "_is_protocol", False)
    inherits = inspect.isclass(found) and "__init__" not in vars(found)
    table = dataclasses.is_dataclass(found) and all("flag" in each.metadata for each in dataclasses.fields(found))
    arguments = () if refers or protocol or inherits or table else inspect.signature(found).parameters
    assert doc
    assert [
        name
        for name in arguments
        if name not in {"self", "cls"} and not re.search(rf"^    {name}: |`{name}`", doc, re.MULTILINE)
    ] == []


def drawing():
    """The tree of exceptions in the docstring of errors.py: (parent, name) of each."""
    found, line_of = [], {}
    for line in errors.__doc__.splitlines():
        match = re.match(r"( {4}(?:[│ ]   )*)(?:[├└]── )?(\w[\w.]*)(?: |$)", line)
        if match and ("── " in line or re.fullmatch(r" {4}[\w.]+", line)):
            depth = len(line[: match.start(2)]) // 4
            line_of[depth] = match[2]
            if "── " in line:
                found.append((line_of[depth - 1], match[2]))
    return found


def test_the_drawing_has_every_exception_of_the_package_below_its_base():
    classes = {
        each
        for module in modules()
        for each in vars(module).values()
        if type(each) is type and issubclass(each, BaseException) and each.__module__.startswith("ratelimit_mw")
    }
    defined = sorted((each.__bases__[0].__name__, each.__name__) for each in classes)
    drawn = sorted((parent.rpartition(".")[2], name) for parent, name in drawing() if name != "ValueError")
    assert drawn == defined


def test_every_exception_of_errors_says_what_it_means():
    silent = [
        name
        for name, each in vars(errors).items()
        if inspect.isclass(each) and issubclass(each, Exception) and not each.__doc__
    ]
    assert silent == []
