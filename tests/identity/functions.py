"""What rules files of these tests name as `python:tests.identity.functions:…`."""

from uuid import UUID

TOKEN = "tok-4f9d1c-secret"


def method_of(scope):
    return scope["method"]


def variable(environ):
    return environ["REQUEST_METHOD"] + " by environ"


def number(_):
    return 7


def unique(_):
    return UUID(int=5)


def nobody(_):
    return None


def empty(_):
    return ""


def a_list(_):
    return [TOKEN]


def truth(_):
    return True


def raises(_):
    raise RuntimeError(f"bad token {TOKEN}")


async def later(scope):
    return scope["path"] + " later"


async def raises_later(_):
    raise RuntimeError(f"bad token {TOKEN}")


def coroutine_in_disguise(scope):
    return later(scope)


class Callable:
    async def __call__(self, scope):
        return "from an object"

    def method(self):
        return "from a method"


instance = Callable()


class Namespace:
    @staticmethod
    def inside(_):
        return "nested"


not_callable = 3
