"""Write the pages that are made from the code: words.md and api/*.md. `make docs` runs this.

The pages are part of the repository, so that they can be read without a build. With --check, nothing is written, and
the exit code is 1 if a page is not up to date.
"""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

import api  # noqa: E402 - beside this file; this and the package need the line above
import words  # noqa: E402


def outdated() -> dict[Path, str | None]:
    """The pages that differ from the code, each with its new text. None for a page of a module that is gone."""
    made = {DOCS / name: text for name, text in {"words.md": words.page(), **api.pages()}.items()}
    stored = {path: path.read_text("utf-8") for path in (DOCS / "words.md", *DOCS.glob("api/*.md")) if path.exists()}
    gone: dict[Path, str | None] = dict.fromkeys(stored.keys() - made.keys())
    return gone | {path: text for path, text in made.items() if stored.get(path) != text}


def write() -> None:
    """Write the pages that differ, and delete those of modules that are gone."""
    (DOCS / "api").mkdir(exist_ok=True)
    for path, text in outdated().items():
        if text is None:
            path.unlink()
        else:
            path.write_text(text, "utf-8")


if __name__ == "__main__":
    if "--check" in sys.argv:
        names = sorted(path.relative_to(DOCS).as_posix() for path in outdated())
        sys.exit(f"not up to date, run `make docs`: {', '.join(names)}" if names else 0)
    write()
