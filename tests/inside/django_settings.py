"""A Django project's settings. Users and sessions are in a database in memory, one for each process."""

from tests.inside.rules import RULES, WHO

ALLOWED_HOSTS = ["*"]
SECRET_KEY = "for tests"
ROOT_URLCONF = "tests.inside.django_app"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions", "rest_framework"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "file:inside?mode=memory&cache=shared"}}
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
