"""A module that a rules file may name, and that can't be imported."""

raise RuntimeError("no database at import")
