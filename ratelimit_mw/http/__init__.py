"""HTTP: how both middlewares answer: headers, bodies, responses under ASGI and WSGI, WebSockets.

This package is internal: its names may change in any release.
"""
