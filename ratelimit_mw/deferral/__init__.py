"""Deferred requests: a request over its limit is queued in Redis instead of refused, and a worker replays it later.

This package is internal: its names may change in any release.
"""
