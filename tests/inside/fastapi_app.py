"""A FastAPI app whose endpoints ask for rules."""

from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, WebSocket
from fastapi.responses import PlainTextResponse

from ratelimit_mw import Decision
from ratelimit_mw.fastapi import RateLimited, add_rate_limits, limited
from tests.inside.rules import RULES

app = FastAPI()
add_rate_limits(app, RULES)
Mail = Annotated[Decision, Depends(limited("mail"))]


@app.get("/free")
def free() -> str:
    return "free"


@app.get("/mail", dependencies=[Depends(limited("mail"))])
async def mail() -> str:
    return "sent"


@app.get("/blocking")
def blocking(mail: Mail) -> int | None:
    return mail.remaining


@app.get("/own-response")
async def own_response(mail: Mail) -> PlainTextResponse:
    return PlainTextResponse("sent", headers={"X-Own": "1"})


@app.get("/export", dependencies=[Depends(limited("exports", cost=2))], responses={429: {"description": "my own"}})
async def export() -> str:
    return "exported"


@app.get("/turns", dependencies=[Depends(limited("turns"))])
async def turns() -> str:
    return "turned"


@app.get("/later", dependencies=[Depends(limited("mail"))])
async def later(tasks: BackgroundTasks) -> str:
    tasks.add_task(lambda: None)
    return "later"


@app.websocket("/socket")
async def socket(socket: WebSocket, mail: Mail) -> None:
    await socket.accept()
    await socket.send_text(str(mail.remaining))
    await socket.close()


_inline = [
    Depends(limited("3 per 10 years", key=lambda request: request.headers["X-Client"])),
    Depends(limited("2 per 10 years", by="header:X-Client")),
]


@app.get("/inline", dependencies=_inline)
async def inline() -> str:
    return "inline"


def through(mail: Mail) -> str:
    return f"through {mail.rule}"


shop = APIRouter(prefix="/shop", dependencies=[Depends(limited("mail"))])


@shop.get("/{item}")
async def item(item: int, mail: Mail, told: Annotated[str, Depends(through)]) -> dict[str, object]:
    return {"item": item, "left": mail.remaining, "told": told}


app.include_router(shop)


class Letter:
    """A dependency that is a class, which asks for the rule by its arguments."""

    def __init__(self, mail: Mail, to: str = "ann") -> None:
        self.left, self.to = mail.remaining, to


class Stamp:
    """A dependency that is an object, which asks for the rule when it is called."""

    async def __call__(self, mail: Mail) -> int | None:
        return mail.remaining


@app.get("/class")
async def by_class(letter: Annotated[Letter, Depends()], stamp: Annotated[int | None, Depends(Stamp())]) -> str:
    return f"{letter.to} {letter.left} {stamp}"


outer = APIRouter(prefix="/outer")
inner = APIRouter(prefix="/inner", dependencies=[Depends(limited("exports"))])


@inner.get("/")
async def within() -> str:
    return "within"


outer.include_router(inner, dependencies=[Depends(limited("mail"))])
app.include_router(outer)

everywhere = FastAPI(dependencies=[Depends(limited("mail"))])
add_rate_limits(everywhere, RULES | {"response": {"status": 403, "body": "problem", "message": "no more"}})


@everywhere.get("/")
async def index() -> str:
    return "everywhere"


@everywhere.exception_handler(RateLimited)
async def in_its_own_words(_: object, denied: RateLimited) -> PlainTextResponse:
    return PlainTextResponse(f"{denied.decision.rule} denied", denied.status_code, denied.headers)
