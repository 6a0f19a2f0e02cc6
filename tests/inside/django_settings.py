"""A Django project's settings. Users and sessions are in a database of each process's own."""

import atexit
import shutil
import tempfile

from tests.inside.rules import RULES, WHO

ALLOWED_HOSTS = ["*"]
SECRET_KEY = "for tests"
ROOT_URLCONF = "tests.inside.django_app"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions", "rest_framework"]
# In a file, for each thread has a connection, and Django never closes one to a database in memory.
_folder = tempfile.mkdtemp()
atexit.register(shutil.rmtree, _folder)
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{_folder}/inside.sqlite3"}}
SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "ratelimit_mw.django.RateLimitMiddleware",
]
RATELIMIT = {
    **RULES,
    "client": {"secret": "for tests"},
    "rules": [
        *RULES["rules"],
        {"name": "orders", "match": {"path": "/orders"}, "by": "user", "limit": "2 per hour"},
        {"name": "rest", "match": {"path": "/rest/*"}, "by": "user", "limit": "2 per hour"},
        {"name": "logins", **WHO, "match": {"path": "/login"}, "limit": "2 per hour", "count": {"status": 401}},
        {
            "name": "slots",
            "by": "header:X-Client",
            "match": {"path": "/slots/*"},
            "limit": "1 concurrent",
        },
    ],
}
REST_FRAMEWORK = {"DEFAULT_AUTHENTICATION_CLASSES": ["tests.inside.django_rest.Tokens"]}
