from django.http import HttpResponse
from django.urls import include, path, re_path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.decorators import api_view
from rest_framework.routers import SimpleRouter
from rest_framework.viewsets import ViewSet

from ratelimit_mw.django import limited
from ratelimit_mw.drf import RateLimitThrottle


def page(request, **_):
    return HttpResponse("")


@api_view(["POST"])
def login(request):
    return HttpResponse("")


class Orders(View):
    def get(self, request):
        return HttpResponse("")

    @method_decorator(limited("mail"))
    def post(self, request):
        return HttpResponse("")


class Items(ViewSet):
    throttle_classes = (RateLimitThrottle,)
    throttle_scope = "mail"

    def list(self, request):
        return HttpResponse("")

    def create(self, request):
        return HttpResponse("")

    def retrieve(self, request, pk):
        return HttpResponse("")


router = SimpleRouter()
router.register("items", Items, basename="items")

urlpatterns = [
    path("login", login),
    path("health", page),
    path("orders", Orders.as_view()),
    path("mail/<slug:to>", limited("mail")(page)),
    path("api/", include(router.urls)),
    re_path(r"^archive/(?P<year>[0-9]{4})/$", page),
    re_path(r"^(?:a|b)/x$", page),
]
