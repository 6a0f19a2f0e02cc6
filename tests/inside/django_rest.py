"""What REST framework is asked: who has which token."""

from django.contrib.auth.models import User
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed


def user_of(name):
    """The user of that name, a random one in hexadecimals; each process has a database of its own, and all agree."""
    return User.objects.get_or_create(username=name, defaults={"pk": int(name, 16)})[0]


class Tokens(BaseAuthentication):
    """A token is a user's name, behind the word Token."""

    def authenticate(self, request):
        word, _, name = request.headers.get("Authorization", "").partition(" ")
        if word != "Token":
            return None
        if name == "bad":
            raise AuthenticationFailed
        if name == "broken":
            raise ValueError(name)
        return user_of(name), name


class Nobody(BaseAuthentication):
    def authenticate(self, request):
        return None
