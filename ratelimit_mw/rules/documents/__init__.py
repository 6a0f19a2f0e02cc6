"""Configurations as they are written: files, YAML text and mappings, all to one tree whose values know their places."""
