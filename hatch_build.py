"""The description of the package on PyPI: README.md without the links into this repository.

PyPI resolves no relative links. When the project has a public address, name it in `[project.urls]`, and make the links
absolute here.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_IMAGE = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n\n?", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")


class Description(MetadataHookInterface):
    """Sets the field `readme`, which pyproject.toml declares as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field in the metadata of the project."""
        readme = Path(self.root, "README.md").read_text("utf-8")
        text = _LINK.sub(r"\1", _IMAGE.sub("", readme))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
