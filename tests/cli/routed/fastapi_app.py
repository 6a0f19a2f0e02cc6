"""A FastAPI app with an included router, a mounted app and dependencies."""

from fastapi import APIRouter, Depends, FastAPI

from ratelimit_mw.fastapi import limited

app = FastAPI(openapi_url=None)
items = APIRouter(prefix="/items", dependencies=[Depends(limited("mail"))])
inner = FastAPI(openapi_url=None)


@app.post("/login")
async def login():
    return {}


@items.get("/{number}")
async def item(number: int):
    return {}


@items.websocket("/talk")
async def talk():
    return {}


@inner.get("/users/{name}", dependencies=[Depends(limited("5 per minute"))])
async def user(name: str):
    return {}


app.include_router(items, prefix="/api")
app.mount("/{tenant}/inner", inner)


def create_app():
    return app


def create_app_of(name):
    return app
