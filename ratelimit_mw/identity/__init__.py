"""Find out who sent a request: read its attributes, and build the identity of each counter from them.

A request is an ASGI scope, a WSGI environ or a mapping of attributes.

This package is internal: its names may change in any release.
"""

from ratelimit_mw.identity.attributes import Attributes, Reader, canonical_name
from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest
from ratelimit_mw.identity.identifier import Identifier, identifier
from ratelimit_mw.identity.path_forms import cleaned
from ratelimit_mw.identity.request import MappingRequest, Request

__all__ = [
    "AsgiRequest",
    "Attributes",
    "Identifier",
    "MappingRequest",
    "Reader",
    "Request",
    "WsgiRequest",
    "canonical_name",
    "cleaned",
    "identifier",
]
