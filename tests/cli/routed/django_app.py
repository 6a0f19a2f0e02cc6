"""A Django project with includes, class-based views, regular expressions and view sets of REST framework."""

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application

settings.configure(
    SECRET_KEY="for tests",
    ROOT_URLCONF="tests.cli.routed.django_urls",
    INSTALLED_APPS=["rest_framework"],
    REST_FRAMEWORK={"UNAUTHENTICATED_USER": None},
)
django.setup()
application = get_wsgi_application()
asgi = get_asgi_application()
