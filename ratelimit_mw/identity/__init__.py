"""Find out who sent a request: read its attributes, and build the identity of each counter from them.

A request is an ASGI scope, a WSGI environ or a mapping of attributes.

This package is internal: its names may change in any release.
"""
