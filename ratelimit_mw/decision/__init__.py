"""The decision maker: from a request to its plan, one call to the store, and what follows from it.

This package is internal: its names may change in any release.
"""
