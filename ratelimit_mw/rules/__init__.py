"""Compiled rules: they turn a request into the counters that it must ask.

This package is internal: its names may change in any release.
"""
