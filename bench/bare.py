"""What a request costs where nothing is done: `python -m bench.bare asgi|echo PORT`.

`asgi` answers two bytes; `echo` is a FastAPI route that validates the body of a creation and
answers with it. Both run on the same server, with the same settings, as the service.
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI

from app.domain.commands import CreateAttempt


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    """Read the body, answer two bytes."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


def echo() -> FastAPI:
    """A FastAPI that validates a creation and writes it back."""
    app = FastAPI()

    @app.post("/v1/attempts")
    async def create(command: CreateAttempt) -> CreateAttempt:
        return command

    return app


def main(kind: str, port: int) -> None:
    """Serve until killed."""
    uvicorn.run(
        echo() if kind == "echo" else asgi,
        host="127.0.0.1",
        port=port,
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
