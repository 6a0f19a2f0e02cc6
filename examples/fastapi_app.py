"""uvicorn examples.fastapi_app:app --workers 2"""

from pathlib import Path

from fastapi import FastAPI, HTTPException, Request

from ratelimit_mw.asgi import RateLimitMiddleware

app = FastAPI()
app.add_middleware(RateLimitMiddleware, config=Path(__file__).with_name("ratelimits.yaml"))


@app.get("/")
async def index() -> dict[str, str]:
    return {"hello": "world"}


@app.get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/login")
async def login() -> None:
    raise HTTPException(status_code=401, detail="Wrong password")


@app.get("/api/items/{id}")
async def item(id: int, request: Request) -> dict[str, int]:
    return {"item": id, "remaining": request.scope["ratelimit"].remaining}
