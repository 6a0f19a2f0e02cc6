"""A Django project whose views ask for rules: `application` for WSGI, `asgi` for ASGI."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.test.utils import override_settings

from tests.inside import django_settings

_settings = {name: value for name, value in vars(django_settings).items() if name.isupper()}
if settings.configured:  # by another test of this process
    django.setup()
    override_settings(**_settings).enable()
else:
    settings.configure(**_settings)
    django.setup()

from django.contrib.auth import get_user_model  # noqa: E402
from django.contrib.auth import login as log_in  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse  # noqa: E402
from django.urls import path  # noqa: E402
from django.utils.asyncio import async_unsafe  # noqa: E402
from django.utils.decorators import method_decorator  # noqa: E402
from django.utils.functional import SimpleLazyObject  # noqa: E402
from django.views import View  # noqa: E402
from rest_framework.decorators import action, api_view, throttle_classes  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.views import APIView  # noqa: E402
from rest_framework.viewsets import ViewSet  # noqa: E402

from ratelimit_mw.django import limited  # noqa: E402
from ratelimit_mw.drf import RateLimitThrottle  # noqa: E402
from tests.inside.django_rest import Nobody, user_of  # noqa: E402


def _database():
    call_command("migrate", verbosity=0, run_syncdb=True)
    connection.close()


with ThreadPoolExecutor(1) as _thread:  # uvicorn imports this in its loop, where Django forbids it
    _thread.submit(_database).result()


def free(request):
    return HttpResponse("free")


@limited("mail")
def mail(request):
    return HttpResponse("sent", headers={"X-Own": "1"})


@limited("mail")
async def awaited(request, name):
    await asyncio.sleep(0)
    return HttpResponse(f"sent to {name}")


@limited("exports", cost=2)
def export(request):
    return HttpResponse("exported")


@method_decorator(limited("turns"), name="dispatch")
class Turns(View):
    def get(self, request):
        return HttpResponse("turned")


@limited("mail")
class Whole(View):
    def get(self, request):
        return HttpResponse("sent")

    post = get


class Below(Whole):
    def get(self, request):
        return HttpResponse("sent below")


@limited("mail")
class Awaited(View):
    async def get(self, request):
        await asyncio.sleep(0)
        return HttpResponse("sent")

    post = get


@method_decorator([limited("mail"), limited("exports")], name="dispatch")
class AwaitedByDjango(View):
    async def get(self, request):
        await asyncio.sleep(0)
        return HttpResponse("sent")

    post = get


class Methods(View):
    @limited("mail")
    def get(self, request, name):
        return HttpResponse(f"sent to {name}")

    @method_decorator(limited("mail"))
    def post(self, request, name):
        return HttpResponse(f"sent to {name}")

    def put(self, request, name):
        return HttpResponse(f"put {name}")


class AwaitedMethods(View):
    @limited("mail")
    async def get(self, request, name):
        return HttpResponse(f"sent to {name}")

    @limited("mail")
    async def post(self, request, name):
        return HttpResponse(f"sent to {name}")

    async def put(self, request, name):
        return HttpResponse(f"put {name}")


def by_hand(request):
    request.ratelimit.charge(2)
    request.ratelimit.refund(1)
    return JsonResponse({"left": request.ratelimit.check("mail").remaining})


async def awaited_by_hand(request):
    await request.ratelimit.acharge(2)
    await request.ratelimit.arefund(1)
    return JsonResponse({"left": (await request.ratelimit.acheck("mail")).remaining})


def sign_in(request, name):
    log_in(request, user_of(name), "django.contrib.auth.backends.ModelBackend")
    return HttpResponse(name)


def whoami(request):
    return HttpResponse(request.user.get_username() or "nobody")


def login(request):
    return HttpResponse(status=int(request.GET["status"]))


def held(request):
    """Yields until the file that the request names exists, and says by another one that it has begun."""
    until = request.GET.get("until")
    if until:
        Path(f"{until}.held").touch()
        while not Path(until).exists():
            yield


def slot(request):
    for _ in held(request):
        time.sleep(0.02)
    return HttpResponse("slot")


def slots(request):
    def parts():
        yield b"first"
        for _ in held(request):
            time.sleep(0.02)
        yield b"last"

    return StreamingHttpResponse(parts())


async def awaited_slots(request):
    async def parts():
        yield b"first"
        for _ in held(request):
            await asyncio.sleep(0.02)
        yield b"last"

    return StreamingHttpResponse(parts())


forever = []


async def slot_forever(request):
    forever.append(request)
    await asyncio.Event().wait()


def leaves(request):
    raise SystemExit


def fails(request):
    raise ValueError("the view's own")


class Rest(APIView):
    def get(self, request):
        return Response({"user": str(request.user)})

    post = get


class Open(Rest):
    authentication_classes = (Nobody,)


class Set(ViewSet):
    def list(self, request):
        return Response({"user": str(request.user), "action": self.action})


@api_view(["GET"])
@limited("mail")
def rest_function(request):
    return Response({"user": str(request.user)})


@limited("mail")
class RestClass(Rest):
    pass


class RestMethods(APIView):
    @limited("mail")
    def get(self, request):
        return Response({"user": str(request.user)})

    post = get


class RestSet(ViewSet):
    @limited("mail")
    def list(self, request):
        return Response({"action": self.action})

    @limited("mail")
    def create(self, request):
        return Response({"action": self.action})


class Throttled(Rest):
    throttle_classes = (RateLimitThrottle,)
    throttle_scope = "mail"


class Scoped(RateLimitThrottle):
    scope = "mail"


class Costly(RateLimitThrottle):
    scope = "exports"
    cost = 2


@api_view(["GET", "POST"])
@throttle_classes([Scoped])
def throttled_function(request):
    return Response({"user": str(request.user)})


class ThrottledSet(ViewSet):
    throttle_classes = (RateLimitThrottle,)
    throttle_scope = None  # which lets an action have its own

    def list(self, request):
        return Response({"free": True})

    @action(detail=False, methods=["get", "post"], throttle_scope="mail")
    def send(self, request):
        return Response({"sent": True})


class ThrottledTwice(Rest):
    throttle_classes = (Costly, Scoped)


class ThrottledAway(Rest):
    throttle_classes = (RateLimitThrottle,)
    throttle_scope = "away"


class Rated(RateLimitThrottle):
    rate = "2 per 10 years"
    by = "header:X-Client"


class ThrottledByRate(Rest):
    throttle_classes = (Rated,)


class ThrottledByRateToo(Rest):
    throttle_classes = (Rated,)


class ByClient(RateLimitThrottle):
    by = ("header:X-Client",)


class ThrottledByLimit(Rest):
    throttle_classes = (ByClient,)
    throttle_scope = "2 per 10 years"


class ThrottledByLimitToo(ThrottledByLimit):
    pass


class ThrottledMisspelt(Rest):
    throttle_classes = (RateLimitThrottle,)
    throttle_scope = "mial"


@limited("mial")
def misspelt(request):
    raise AssertionError("not reached")


@limited("mial")
async def awaited_misspelt(request):
    raise AssertionError("not reached")


@async_unsafe  # as Django's queries are: they fail in the thread of an event loop
def _queried(pk):
    return get_user_model()(pk=pk)


def _found(request):
    """Authenticates the request as a project of its own does: by `pk` in the query. The user is queried when used."""
    if request.GET["pk"]:
        request.user = SimpleLazyObject(lambda: _queried(int(request.GET["pk"])))


def logged_in(request):
    _found(request)
    denied = request.ratelimit.enforce("mail").denial
    return HttpResponse(status=denied.status if denied else 200)


async def awaited_logged_in(request):
    _found(request)
    denied = (await request.ratelimit.aenforce("mail")).denial
    return HttpResponse(status=denied.status if denied else 200)


@limited("3 per 10 years", key=lambda request: request.headers["X-Client"])
@limited("2 per 10 years", by="header:X-Client")
def inline(request):
    return HttpResponse("inline")


urlpatterns = [
    path("inline", inline),
    path("misspelt", misspelt),
    path("awaited-misspelt", awaited_misspelt),
    path("logged-in", logged_in),
    path("awaited-logged-in", awaited_logged_in),
    path("free", free),
    path("mail", mail),
    path("awaited/<name>", awaited),
    path("export", export),
    path("turns", Turns.as_view()),
    path("class", Whole.as_view()),
    path("subclass", Below.as_view()),
    path("awaited-class", Awaited.as_view()),
    path("awaited-by-django", AwaitedByDjango.as_view()),
    path("methods/<name>", Methods.as_view()),
    path("awaited-methods/<name>", AwaitedMethods.as_view()),
    path("by-hand", by_hand),
    path("awaited-by-hand", awaited_by_hand),
    path("sign-in/<name>", sign_in),
    path("orders", whoami),
    path("login", login),
    path("slots/whole", slot),
    path("slots/stream", slots),
    path("slots/awaited", awaited_slots),
    path("slots/forever", slot_forever),
    path("slots/exit", leaves),
    path("exit", leaves),
    path("fails", fails),
    path("rest/class", Rest.as_view()),
    path("rest/open", Open.as_view()),
    path("rest/set", Set.as_view({"get": "list"})),
    path("rest/function", rest_function),
    path("decorated/class", RestClass.as_view()),
    path("decorated/methods", RestMethods.as_view()),
    path("decorated/set", RestSet.as_view({"get": "list", "post": "create"})),
    path("throttled/class", Throttled.as_view()),
    path("throttled/function", throttled_function),
    path("throttled/set", ThrottledSet.as_view({"get": "list"})),
    path("throttled/action", ThrottledSet.as_view({"get": "send", "post": "send"}, **ThrottledSet.send.kwargs)),
    path("throttled/twice", ThrottledTwice.as_view()),
    path("throttled/away", ThrottledAway.as_view()),
    path("throttled/rate", ThrottledByRate.as_view()),
    path("throttled/rate/too", ThrottledByRateToo.as_view()),
    path("throttled/limit", ThrottledByLimit.as_view()),
    path("throttled/limit/too", ThrottledByLimitToo.as_view()),
    path("throttled/misspelt", ThrottledMisspelt.as_view()),
]

application = get_wsgi_application()
asgi = get_asgi_application()
