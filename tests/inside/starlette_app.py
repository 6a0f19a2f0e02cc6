"""A Starlette app whose endpoints ask for rules."""

from functools import partial

from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint, WebSocketEndpoint
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.starlette import limited
from tests.inside.rules import RULES


async def free(request):
    return PlainTextResponse("free")


@limited("mail")
async def mail(request):
    return PlainTextResponse("sent", headers={"X-Own": "1"})


@limited("mail")
def blocking(request):
    return PlainTextResponse("sent")


@limited("mail")
async def partly(request, name):
    return PlainTextResponse(f"sent to {name}")


@limited("exports", cost=2)
async def export(request):
    return PlainTextResponse("exported")


@limited("mail")
@limited("exports")
def both(request):
    return PlainTextResponse("both")


@limited("turns")
async def turns(request):
    return PlainTextResponse("turned")


@limited("mail")
class Whole(HTTPEndpoint):
    async def get(self, request):
        return PlainTextResponse("sent")

    def post(self, request):
        return PlainTextResponse("sent")


class Below(Whole):
    async def get(self, request):
        return PlainTextResponse("below")


class Methods(HTTPEndpoint):
    @limited("mail")
    async def get(self, request):
        return PlainTextResponse("sent")

    @limited("mail")
    def post(self, request):
        return PlainTextResponse("sent")

    async def put(self, request):
        return PlainTextResponse("put")


async def _says_left(websocket):
    await websocket.accept()
    await websocket.send_text(str(websocket.scope["ratelimit"].reported.decision.remaining))
    await websocket.close()


@limited("mail")
async def socket(websocket):
    await _says_left(websocket)


@limited("3 per 10 years", key=lambda request: request.headers["X-Client"])
@limited("2 per 10 years", by="header:X-Client")
async def inline(request):
    return PlainTextResponse("inline")


@limited("mail")
class Socket(WebSocketEndpoint):
    async def on_connect(self, websocket):
        await _says_left(websocket)


class Connects(WebSocketEndpoint):
    @limited("mail")
    async def on_connect(self, websocket):
        await _says_left(websocket)


class Echo(WebSocketEndpoint):
    encoding = "text"

    @limited("mail")
    async def on_receive(self, websocket, data):
        await websocket.send_text(data)


app = Starlette(
    routes=[
        Route("/free", free),
        Route("/inline", inline),
        Route("/mail", mail, methods=["GET", "POST"]),
        Route("/blocking", blocking),
        Route("/partial", partial(partly, name="ann")),
        Route("/export", export),
        Route("/both", both),
        Route("/turns", turns),
        Route("/class", Whole),
        Route("/subclass", Below),
        Route("/methods", Methods),
        WebSocketRoute("/socket", socket),
        WebSocketRoute("/socket-class", Socket),
        WebSocketRoute("/socket-method", Connects),
        WebSocketRoute("/echo", Echo),
        Mount("/mounted", routes=[Route("/mail", mail)]),
    ]
)
app.add_middleware(RateLimitMiddleware, config=RULES)
