"""Paths: templates, and which of them a path matches."""
