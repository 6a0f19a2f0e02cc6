"""HTTP: what all middlewares share to answer requests: headers, denials, responses and WebSockets.

This package is internal: its names may change in any release.
"""
