"""CONTRIBUTING.md: the map has every folder, each link of "A request's life" leads to a name, every test asserts."""

import ast
import re
import subprocess

import pytest

from tests.support.apps import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
(MAP,) = re.findall(r"^```\n(cli/.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
(LIFE,) = re.findall(r"^## A request's life\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
LINKS = re.findall(r"\[`([\w.]+)`\]\(([\w/.]+)\)", LIFE)


def test_the_map_has_every_folder_and_every_module_of_the_package():
    package = ROOT / "ratelimit_mw"
    folders, parent = set(), ""
    for line in MAP.splitlines():
        for name in re.findall(r"(\w+)/", re.split(r" {3,}", line.strip())[0]):
            parent = "" if not line.startswith(" ") else parent
            folders.add(f"{parent}{name}")
            parent = f"{name}/" if not line.startswith(" ") else parent
    found = [path for path in package.rglob("*") if path.is_dir() and list(path.glob("*.py"))]
    assert folders == {path.relative_to(package).as_posix() for path in found}
    modules = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    assert modules <= set(re.findall(r"\w+", MAP))


def test_the_guide_names_every_folder_of_the_project():
    folders = {path.parent.name for path in ROOT.glob("[a-z]*/*.py")}
    assert folders >= {"bench", "docs", "examples", "ratelimit_mw", "tests"}
    assert [name for name in folders if f"`{name}/" not in PAGE] == []


def test_the_links_were_found():
    assert len(LINKS) > 25


@pytest.mark.parametrize(("name", "path"), LINKS)
def test_a_link_leads_to_a_name_in_a_file(name, path):
    file = ROOT / path
    if file.suffix == ".lua":
        assert name == file.name
        assert file.is_file()
    else:
        assert name in set(names(ast.parse(file.read_text("utf-8"))))


def names(tree, prefix=""):
    """The classes and functions of a module, with the methods of classes as Class.method."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}"
            if isinstance(node, ast.ClassDef):
                yield from names(node, f"{node.name}.")


def test_what_make_quick_runs_exists():
    printed = subprocess.run(["make", "-n", "quick"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = re.findall(r" (tests/\S+)", printed)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


def calls(function):
    """The names of what a function calls, without the objects that they belong to."""
    found = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in found}


def test_every_test_asserts_something():
    """By an `assert` of its own, by `pytest.raises`, or by calling a function of the tests that has an `assert`."""
    nodes = [node for path in (ROOT / "tests").rglob("*.py") for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    asserts = {node for node in functions if any(isinstance(part, ast.Assert) for part in ast.walk(node))}
    helpers = {node.name for node in asserts} | {"raises"}
    tests = [node for node in functions if node.name.startswith("test_") and node not in asserts]
    assert [test.name for test in tests if not calls(test) & helpers] == []
