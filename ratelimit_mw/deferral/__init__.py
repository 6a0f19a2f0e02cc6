"""Requests that are put off instead of refused: a queue in Redis, and what both shells do with it.

This package is internal: its names may change in any release.
"""
