"""HTTP: how both middlewares answer: headers, bodies, responses under ASGI and WSGI, WebSockets."""
