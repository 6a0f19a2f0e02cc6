"""Envoy's descriptors: their words in the rules file, the tree along which entries are matched, and lists of them.

The words are read with the configuration, the tree is part of a rule set, and lists are decided by the engine.

This package is internal: its names may change in any release.
"""
