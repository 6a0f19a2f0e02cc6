"""What the documentation shows is what a user copies: its YAML blocks, and the snippets of its tables."""

import re
import subprocess
import sys

import jsonschema
import pytest
import yaml

from bench.pages import BLOCK
from ratelimit_mw.config.file import json_schema
from tests.support.apps import ROOT
from tests.support.rules import load_rules

PAGES = sorted((ROOT / "docs").glob("*.md"))
KINDS = re.findall(
    r"^\| \[([\w ]+)\]\(([\w-]+)\.md(?:#([\w-]+))?\) \| `([^`]+)` \|",
    (ROOT / "docs" / "rules.md").read_text(),
    re.MULTILINE,
)


def module(page, name):
    """The text of a Python block that begins with the name of its file."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    (found,) = re.findall(rf"^```python\n(# {name}\n.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return found


def blocks():
    for page in PAGES:
        found = re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
        for number, text in enumerate(found):
            if re.match("# (examples/service/|Traefik|at the end of)", text):  # other tests read these
                continue
            yield pytest.param(text, id=f"{page.stem}-{number}")


@pytest.mark.parametrize("text", list(blocks()))
def test_yaml_of_the_docs_loads(text, tmp_path, monkeypatch):
    (tmp_path / "mysite").mkdir()
    (tmp_path / "mysite" / "capacity.py").write_text("def load():\n    return 0.5\n")
    (tmp_path / "mysite" / "denials.py").write_text(module("headers-and-bodies", "mysite/denials.py"))
    (tmp_path / "mysite" / "plans.py").write_text("def limit_of(scope):\n    return '5 per minute'\n")
    (tmp_path / "mysite" / "responses.py").write_text(module("costs", "mysite/responses.py"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop_fastapi", raising=False)  # as another test wrote it
    (tmp_path / "shop_auth.py").write_text(module("identity", "shop_auth.py"))
    (tmp_path / "shop_fastapi.py").write_text("def user_of(scope):\n    return None\n")
    monkeypatch.setenv("SHARD", "a")
    path = tmp_path / "ratelimits.yaml"
    path.write_text(text)
    assert load_rules(path).domain


@pytest.mark.parametrize("text", [block for block in blocks() if str(block.id).startswith("headers-and-bodies")])
def test_editors_take_what_is_said_of_responses(text):
    assert jsonschema.Draft202012Validator(json_schema()).is_valid(yaml.safe_load(text))


@pytest.mark.parametrize(("kind", "page", "section", "snippet"), KINDS)
def test_every_kind_of_rule_loads_and_has_its_section(kind, page, section, snippet):
    words = yaml.safe_load(snippet if snippet[0] == "{" else f"{{{snippet}}}")
    (part,) = load_rules({"domain": "shop", "rules": [{"name": kind, "limit": "100 per minute", **words}]}).parts
    assert [rule.rule.name for rule in part.compiled] == [kind]
    headings = re.findall(r"^## (.*)$", (ROOT / "docs" / f"{page}.md").read_text(), re.MULTILINE)
    assert section in ["", *(heading.lower().replace(" ", "-") for heading in headings)]


def test_the_kinds_were_found():
    assert len(KINDS) >= 12


def test_no_two_decisions_have_one_number():
    pages = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    titles = [page.read_text().partition("\n")[0] for page in pages]
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    assert [int(title[2:].partition(".")[0]) for title in titles] == list(range(1, len(pages) + 1))


def test_every_command_stands_in_the_table_of_commands():
    pytest.importorskip("typer")
    from typer.main import get_command

    from ratelimit_mw.cli.app import app

    rows = re.findall(r"^\| `(.*?) \|", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE)
    assert set(get_command(app).commands) <= {re.split(r"[^\w-]", row)[0] for row in rows}


def test_the_pages_that_are_made_from_the_code_are_up_to_date():
    done = subprocess.run(
        [sys.executable, "docs/pages.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_documentation_has_30_000_words_at_most():
    """Those that are written by hand, without the decisions for contributors in adr/ and the tables of measurements."""
    texts = [BLOCK.sub("", page.read_text("utf-8")) for page in PAGES if page.name != "words.md"]
    assert sum(len(text.split()) for text in texts) <= 30_000


INDEX = (ROOT / "docs" / "index.md").read_text()


def test_every_page_is_in_the_index():
    trees = re.findall(r"^```{toctree}\n(.*?)^```$", INDEX, re.MULTILINE | re.DOTALL)
    listed = [re.sub(r".*<(.*)>", r"\1", line) for tree in trees for line in tree.split("\n\n")[1].splitlines()]
    assert {page.stem for page in PAGES} <= {*listed, "index"}
    assert sorted(set(listed)) == sorted(listed)
    assert all(":caption: " in tree for tree in trees)


def test_every_relative_link_of_the_documentation_leads_to_a_file_and_a_section():
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^()\s:]+)\)", page.read_text())
        if not leads_somewhere(page, target)
    ]
    assert broken == []


def leads_somewhere(page, target):
    """Whether a relative link of a page leads to a file and, if it names a section, to a heading or an anchor in it."""
    name, _, section = target.partition("#")
    found = page.parent / name if name else page
    if not found.is_file():
        return False
    if not section:
        return True
    text = found.read_text()
    headings = [heading.replace("`", "").lower() for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    slugs = [re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in headings]
    return section in [*slugs, *re.findall(r'<a id="([\w-]+)">', text)]
