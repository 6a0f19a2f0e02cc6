"""gunicorn examples.django_app:application --workers 2

A whole Django project in one file. In yours, the two last lines are what wsgi.py gets.
"""

from pathlib import Path

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from ratelimit_mw.wsgi import RateLimitMiddleware

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"])


def index(request):
    return JsonResponse({"hello": "world"})


def health(request):
    return JsonResponse({"status": "ok"})


@csrf_exempt
def login(request):
    return JsonResponse({"message": "Wrong password"}, status=401)


def item(request, id):
    return JsonResponse({"item": id, "remaining": request.environ["ratelimit.decision"].remaining})


urlpatterns = [
    path("", index),
    path("health", health),
    path("login", login),
    path("api/items/<int:id>", item),
]

application = get_wsgi_application()
application = RateLimitMiddleware(application, config=Path(__file__).with_name("ratelimits.yaml"))
