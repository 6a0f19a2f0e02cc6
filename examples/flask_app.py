"""gunicorn examples.flask_app:app --workers 2"""

from pathlib import Path

from flask import Flask, abort, request

from ratelimit_mw.wsgi import RateLimitMiddleware

app = Flask(__name__)
app.wsgi_app = RateLimitMiddleware(app.wsgi_app, config=Path(__file__).with_name("ratelimits.yaml"))


@app.get("/")
def index():
    return {"hello": "world"}


@app.get("/health")
def health():
    return {"status": "ok"}


@app.post("/login")
def login():
    abort(401)


@app.get("/api/items/<int:id>")
def item(id):
    return {"item": id, "remaining": request.environ["ratelimit.decision"].remaining}
