"""The decision maker: plans a request, makes one store call and turns the reply into a verdict.

This package is internal: its names may change in any release.
"""
