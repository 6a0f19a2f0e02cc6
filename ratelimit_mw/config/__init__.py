"""From a configuration to rules: YAML text → a tree that knows its places → the values of words → a rule set.

This package is internal: its names may change in any release.
"""
