"""From what stands in a document to its tree."""

from collections.abc import Mapping

from ratelimit_mw.rules.documents import mapping_tree, yaml_tree
from ratelimit_mw.rules.documents.document import LARGEST, Document
from ratelimit_mw.rules.documents.tree import Node, Place, Problems


def parse(document: Document, environ: Mapping[str, str], problems: Problems) -> Node | None:
    """The tree of a document, or None where there is none to be had; then a problem says why."""
    file, content = document
    if isinstance(content, Mapping):
        return mapping_tree.convert(content, environ, problems)
    text = _decoded(file, content, problems)
    if text is None:
        return None
    tree = yaml_tree.parse(text, file, environ, problems)
    if tree is None and not problems:
        problems.add(Place(file=file, line=1, column=1), "the file is empty", "it needs at least domain and rules")
    return tree


def _decoded(file: str, content: bytes, problems: Problems) -> str | None:
    place = Place(file=file)
    if len(content) > LARGEST:
        problems.add(place, f"larger than {LARGEST // 2**20} MB")
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        message = f"not UTF-8: the byte 0x{content[error.start]:02x} can't be read"
        problems.add(place._replace(line=line, column=column), message, "save the file as UTF-8")
        return None
