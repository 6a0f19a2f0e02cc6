"""Rules that are changed while the app runs: their source, who watches it, what operators set.

This package is internal: its names may change in any release.
"""
