"""Apps that do work on OPTIONS, as files beside their rules. `RUNS` counts how often a handler has run."""

COUNTED = "import itertools\nRUNS = itertools.count(1)\n"

DJANGO = """
import django
from django.conf import settings
settings.configure(
    SECRET_KEY="s", ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, MIDDLEWARE={middleware}, RATELIMIT="ratelimits.yaml"
)
django.setup()
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi

def work(request):
    return HttpResponse(f"run {{next(RUNS)}}")

urlpatterns = [path("work", work)]
app = {app}
"""

STARLETTE = """
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from ratelimit_mw.asgi import RateLimitMiddleware

async def work(request):
    return PlainTextResponse(f"run {{next(RUNS)}}")

class Work:
    async def __call__(self, scope, receive, send):
        await (await work(None))(scope, receive, send)

CORS = Middleware(
    CORSMiddleware, allow_origins=["https://shop.example"], allow_methods=["*"], allow_headers=["Authorization"]
)
LIMITS = Middleware(RateLimitMiddleware, config="ratelimits.yaml")
app = Starlette(routes=[Route("/work", Work())], middleware={middleware})
"""

FASTAPI = """
from fastapi import Depends, FastAPI
from ratelimit_mw.fastapi import add_rate_limits, limited

app = FastAPI()
add_rate_limits(app, "ratelimits.yaml")

@app.api_route("/work", methods=["GET", "POST", "OPTIONS"], dependencies=[Depends(limited("work"))])
async def work():
    return f"run {next(RUNS)}"
"""

FLASK = """
from flask import Flask
from ratelimit_mw.flask import limited
from ratelimit_mw.wsgi import RateLimitMiddleware

app = Flask(__name__)

@app.route("/work", methods=["GET", "POST", "OPTIONS"])
{decorator}def work():
    return f"run {{next(RUNS)}}"

app.wsgi_app = RateLimitMiddleware(app.wsgi_app, config="ratelimits.yaml")
"""

_OURS = '["ratelimit_mw.django.RateLimitMiddleware"]'
_ASGI, _WSGI = ('Asgi(get_asgi_application(), "ratelimits.yaml")', 'Wsgi(get_wsgi_application(), "ratelimits.yaml")')

UVICORN = {
    "Starlette": STARLETTE.format(middleware="[LIMITS]"),
    "Django under ASGI": DJANGO.format(middleware="[]", app=_ASGI),
    "Django's middleware under ASGI": DJANGO.format(middleware=_OURS, app="get_asgi_application()"),
    "FastAPI's dependency": FASTAPI,
}
"""ASGI apps by name."""

GUNICORN = {
    "Flask": FLASK.format(decorator=""),
    "Flask's decorator": FLASK.format(decorator='@limited("work")\n'),
    "Django under WSGI": DJANGO.format(middleware="[]", app=_WSGI),
    "Django's middleware under WSGI": DJANGO.format(middleware=_OURS, app="get_wsgi_application()"),
}
"""WSGI apps by name."""

CORS_OUTSIDE = STARLETTE.format(middleware="[CORS, LIMITS]")
CORS_INSIDE = STARLETTE.format(middleware="[LIMITS, CORS]")
