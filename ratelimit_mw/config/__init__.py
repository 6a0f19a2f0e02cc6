"""Reads a configuration: YAML text → a tree of values with their places → the values of words → a rule set.

This package is internal: its names may change in any release.
"""
