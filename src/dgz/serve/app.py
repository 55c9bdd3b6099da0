"""The HTTP face of an engine: predictions, classes, health, metrics, and a page for people.

Every error is one sentence as JSON. What a request may ask for is limited before it is read, and work is done in
threads, so that the server goes on answering.
"""

import asyncio
import hmac
import io
import ipaddress
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import orjson
import uvicorn
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field
from scipy.special import softmax
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import dgz
from dgz.data.dataset import Floats
from dgz.errors import DGZError, one_line
from dgz.images import quiet_decoding
from dgz.serve.engine import Batcher, ConflictError, Engine, NoSuchClassError, Scores, Snapshot

# Without a key: whether the server lives, and pages that say nothing about the model until they are given one.
_OPEN_PATHS = ("/health", "/", "/docs", "/openapi.json")
_NUMPY = ("application/x-npy", "application/octet-stream")


# --- What goes in and comes out, for OpenAPI and for those who read it.
class Vectors(BaseModel):
    """Feature vectors to predict."""

    model_config = ConfigDict(extra="forbid")
    features: list[list[float]] = Field(description="One list of numbers for each sample.")


class NewClass(BaseModel):
    """A class to take on: its name, and a vector or a description."""

    model_config = ConfigDict(extra="forbid")
    name: str
    vector: list[float] | None = None
    description: str | None = None


class Guess(BaseModel):
    """A class that a sample may be of."""

    name: str
    kind: Literal["seen", "unseen", "added"] = Field(description="With training pictures, without, or added later.")
    score: float = Field(description="Less the penalty, if the class is seen; higher is likelier.")
    probability: float = Field(description="Softmax of the scores over all classes asked for.")


class Prediction(BaseModel):
    """What a sample may be, the likeliest first."""

    source: str = Field(description="Name of the photo, or number of the vector.")
    guesses: list[Guess]


class Predictions(BaseModel):
    """Answers, in the order of the samples."""

    predictions: list[Prediction]
    revision: int = Field(description="How often the classes had changed when this was computed.")


class Refusal(BaseModel):
    """What was wrong, in one sentence."""

    error: str


_ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": Refusal} for code in (400, 401, 403, 404, 409, 413, 415, 422, 503)
}
_BODY = {
    "required": True,
    "content": {
        "application/json": {"schema": Vectors.model_json_schema()},
        "application/x-npy": {"schema": {"type": "string", "format": "binary"}},
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "properties": {"photos": {"type": "array", "items": {"type": "string", "format": "binary"}}},
            }
        },
    },
}


def create_app(engine: Engine, *, api_key: str | None = None, hosts: tuple[str, ...] | None = None) -> FastAPI:
    """The application that serves an engine.

    Parameters
    ----------
    engine : Engine
    api_key : str, optional
        What requests must bring, as ``Authorization: Bearer KEY`` or ``X-API-Key: KEY``; without it, everyone is
        answered.
    hosts : tuple of str, optional
        Names that requests may call the server by; any by default. On a loopback address, where no key is needed, they
        keep web pages of strangers from reaching it under a name of theirs.
    """
    metrics = _Metrics(engine)
    batcher = Batcher(engine.scores, engine.limits.rows)
    workers = ThreadPoolExecutor(max_workers=max(os.cpu_count() or 1, 2), thread_name_prefix="photos")
    under_way = 0

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with quiet_decoding():
            yield
        workers.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(
        title="dgz",
        version=dgz.__version__,
        summary="A model that knows classes with training pictures and classes with none.",
        lifespan=lifespan,
        responses=_ERRORS,
        docs_url=None,  # it would load its looks from elsewhere
        redoc_url=None,
    )

    @app.exception_handler(DGZError)
    async def refuse(request: Request, error: DGZError) -> JSONResponse:
        code = 404 if isinstance(error, NoSuchClassError) else 409 if isinstance(error, ConflictError) else 422
        return _refusal(code, str(error))

    @app.exception_handler(HTTPException)
    async def say(request: Request, error: HTTPException) -> JSONResponse:
        return _refusal(error.status_code, str(error.detail), dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def explain(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query"))
        return _refusal(422, f"{where or 'The request'}: {first['msg']}.")

    @app.exception_handler(Exception)
    async def apologise(request: Request, error: Exception) -> JSONResponse:
        return _refusal(500, "Something went wrong here; the server's log says what.")

    async def features_of(request: Request) -> tuple[list[str], Floats]:
        """Names and features of what a request brings."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "multipart/form-data":
            return await photos_of(request)
        body = await request.body()
        if kind in _NUMPY:
            rows = _numpy_rows(body)
        elif kind in ("", "application/json"):
            rows = await asyncio.to_thread(_json_rows, body)
        else:
            raise HTTPException(415, f"Send photos as multipart/form-data, or vectors as JSON or .npy, not {kind}.")
        rows = engine.check_rows(rows)
        metrics.samples.labels("vector").inc(len(rows))
        return [str(number) for number in range(len(rows))], rows

    async def photos_of(request: Request) -> tuple[list[str], Floats]:
        most = engine.limits.photos
        try:
            form = await request.form(max_files=most, max_fields=8)
        except HTTPException as error:
            raise HTTPException(413 if "Too many" in str(error.detail) else 400, f"{error.detail}") from error
        try:
            photos = [entry for entry in form.getlist("photos") if isinstance(entry, UploadFile)]
            if not photos:
                raise HTTPException(422, "Send one or more photos in fields called photos.")
            names = [photo.filename or f"photo {number}" for number, photo in enumerate(photos, start=1)]
            contents = [await photo.read() for photo in photos]
        finally:
            await form.close()
        loop = asyncio.get_running_loop()
        jobs = [loop.run_in_executor(workers, engine.features, *one) for one in zip(contents, names, strict=True)]
        metrics.samples.labels("photo").inc(len(jobs))
        try:
            return names, np.stack(await asyncio.gather(*jobs))
        finally:
            for job in jobs:
                job.cancel()  # of one that was refused, the others are for nothing

    @app.post("/predict", response_model=Predictions, openapi_extra={"requestBody": _BODY})
    async def predict(
        request: Request,
        top: Annotated[int, Query(ge=1, description="How many classes to name for each sample.")] = 5,
        seen_penalty: Annotated[
            float, Query(allow_inf_nan=False, description="Subtracted from scores of seen classes.")
        ] = 0.0,
        classes: Annotated[
            Literal["all", "seen", "unseen"], Query(description="To choose from; added ones are unseen.")
        ] = "all",
    ) -> Response:
        """Say what photos, or feature vectors, show."""
        nonlocal under_way
        if under_way >= engine.limits.waiting:
            raise HTTPException(503, "Too many requests at once: try again in a moment.", {"Retry-After": "1"})
        under_way += 1
        try:
            async with asyncio.timeout(engine.limits.seconds):
                sources, rows = await features_of(request)
                snapshot, scores = await batcher.submit(rows)
                content = await asyncio.to_thread(_answer, snapshot, scores, sources, top, seen_penalty, classes)
        except TimeoutError as error:
            sentence = f"The answer took longer than {engine.limits.seconds:g} s: send less at a time."
            raise HTTPException(503, sentence) from error
        finally:
            under_way -= 1
        return Response(content, media_type="application/json")

    @app.get("/classes")
    async def classes_known() -> dict[str, Any]:
        """The classes that the model knows."""
        return _classes(engine)

    @app.post("/classes", status_code=201)
    async def add_class(new: NewClass) -> dict[str, Any]:
        """Let the model know a class, from its vector or from a description in words."""
        vector = None if new.vector is None else _as_floats(np.array(new.vector, dtype=np.float64))
        await asyncio.to_thread(engine.add_class, new.name, vector=vector, description=new.description)
        return _classes(engine)

    @app.delete("/classes/{name:path}")
    async def remove_class(name: str) -> dict[str, Any]:
        """Let the model forget a class."""
        await asyncio.to_thread(engine.remove_class, name)
        return _classes(engine)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Whether the server lives."""
        return {"status": "ok", "version": dgz.__version__, "revision": engine.snapshot.revision}

    @app.get("/metrics", response_class=Response)
    async def numbers() -> Response:
        """What has happened so far, as Prometheus reads it."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(files("dgz.serve").joinpath("page.html").read_text(encoding="utf-8"), headers=_PAGE_HEADERS)

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs() -> HTMLResponse:
        page = files("dgz.serve").joinpath("docs.html").read_text(encoding="utf-8")
        return HTMLResponse(page, headers=_PAGE_HEADERS)

    # The last one added is the first to see a request.
    app.add_middleware(_BodyLimit, most=engine.limits.body)
    app.add_middleware(_Gate, api_key=api_key, hosts=hosts)
    app.add_middleware(_Watch, metrics=metrics)
    return app


_PAGE_HEADERS = {
    # Everything is in the page: nothing may be loaded from elsewhere, and no other page may frame it.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data: blob:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def _refusal(code: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": sentence}, status_code=code, headers=headers)


def _classes(engine: Engine) -> dict[str, Any]:
    now, backbone, encoder = engine.snapshot, engine.backbone, engine.encoder
    return {
        "classes": [{"name": name, "kind": kind} for name, kind in zip(now.names, now.kinds, strict=True)],
        "revision": now.revision,
        "n_features": now.model.n_features_in_,
        "temperature": now.model.temperature,
        "n_attributes": now.model.attributes_.shape[1],
        "takes_photos": None if backbone is None else backbone.name,
        "takes_descriptions": None if encoder is None else encoder.name,
        "takes_classes": hasattr(now.model, "add_classes"),
    }


def _json_rows(body: bytes) -> Floats:
    try:
        content = orjson.loads(body)  # five times as fast as the standard library's on numbers
    except ValueError as error:
        raise HTTPException(400, f"The body is no JSON: {one_line(error)}.") from error
    if not isinstance(content, dict) or set(content) != {"features"}:
        raise HTTPException(422, 'The body must be an object with one entry: {"features": [[…], …]}.')
    try:
        rows = np.array(content["features"], dtype=np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise HTTPException(422, "features must be a list of equally long lists of numbers.") from error
    return _as_floats(rows)


def _as_floats(values: npt.NDArray[Any]) -> Floats:
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
        return values.astype(np.float32)


def _numpy_rows(body: bytes) -> Floats:
    try:
        rows = np.lib.format.read_array(io.BytesIO(body), allow_pickle=False)
        if rows.dtype.kind not in "fiu":
            raise ValueError(f"it holds {rows.dtype}")
    except Exception as error:  # hostile bytes raise many kinds; each means the same to a person
        raise HTTPException(400, f"The body is no .npy file of numbers: {one_line(error)}.") from error
    return _as_floats(rows)


def _answer(
    snapshot: Snapshot, scores: Scores, sources: list[str], top: int, seen_penalty: float, classes: str
) -> bytes:
    """The body of an answer."""
    seen = np.array([kind == "seen" for kind in snapshot.kinds])
    allowed = np.flatnonzero({"all": np.ones_like(seen), "seen": seen, "unseen": ~seen}[classes])
    if not len(allowed):
        raise ConflictError(f"The model has no {classes} classes.")
    left = (scores - np.where(seen, seen_penalty, 0.0))[:, allowed]
    shares = softmax(left / snapshot.model.temperature, axis=1)
    best = np.argsort(-left, axis=1, kind="stable")[:, :top]
    predictions = [
        {
            "source": source,
            "guesses": [
                {
                    "name": snapshot.names[allowed[place]],
                    "kind": snapshot.kinds[allowed[place]],
                    "score": float(left[row, place]),
                    "probability": float(shares[row, place]),
                }
                for place in best[row]
            ],
        }
        for row, source in enumerate(sources)
    ]
    return orjson.dumps({"predictions": predictions, "revision": snapshot.revision})


# --- Before a request is answered.
class _BodyLimit:
    """Send requests away whose body is too large, before it is read, or as soon as it has become so."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sentence = f"A request may have {self.most:,} bytes."
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.most:
            await _refusal(413, sentence, {"Connection": "close"})(scope, receive, send)
            return
        n_read, is_answered = 0, False

        async def counted() -> Message:
            nonlocal n_read
            message = await receive()
            n_read += len(message.get("body", b""))
            if n_read > self.most:
                raise _TooLargeError
            return message

        async def noted(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        try:
            await self.app(scope, counted, noted)
        except _TooLargeError:
            if not is_answered:
                await _refusal(413, sentence, {"Connection": "close"})(scope, receive, send)


class _TooLargeError(Exception):
    """A body has become too large."""


class _Gate:
    """Let in who has the key, who calls the server by its name, and no page of a stranger."""

    def __init__(self, app: ASGIApp, api_key: str | None, hosts: tuple[str, ...] | None) -> None:
        self.app, self.api_key, self.hosts = app, api_key, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self.app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if self.hosts is not None and _without_port(host) not in self.hosts:
            return _refusal(403, f"This server is not called {host or 'nothing'}.")
        origin = headers.get("origin")
        # Browsers tell where a request comes from; other programs have no origin.
        if origin is not None and origin.partition("://")[2] != host:
            return _refusal(403, f"Pages of {origin} may not use this server.")
        if self.api_key is None or scope["path"] in _OPEN_PATHS:
            return None
        given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if hmac.compare_digest(given.encode(), self.api_key.encode()):
            return None
        return _refusal(401, "This server wants its key, as X-API-Key.", {"WWW-Authenticate": "Bearer"})


def _without_port(host: str) -> str:
    return host.rpartition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


class _Watch:
    """Count requests, and how long they took."""

    def __init__(self, app: ASGIApp, metrics: "_Metrics") -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, code = time.perf_counter(), 500

        async def noted(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            # Any path may be asked for: only those that there are get a line of their own.
            path = "/" + scope["path"].strip("/").partition("/")[0]
            path = path if path in ("/", "/predict", "/classes", "/health", "/metrics") else "other"
            self.metrics.requests.labels(path, str(code)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - start)


class _Metrics:
    """What Prometheus is told, in a registry of its own."""

    def __init__(self, engine: Engine) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("dgz_requests", "Requests.", ["path", "code"], registry=registry)
        self.seconds = Histogram("dgz_request_seconds", "How long requests took.", ["path"], registry=registry)
        self.samples = Counter("dgz_samples", "Photos and feature vectors that came.", ["kind"], registry=registry)
        Gauge("dgz_classes", "Classes that the model knows.", registry=registry).set_function(
            lambda: len(engine.snapshot.names)
        )
        Gauge("dgz_revision", "How often the classes have changed.", registry=registry).set_function(
            lambda: engine.snapshot.revision
        )

    def text(self) -> bytes:
        """All of it, in Prometheus's format."""
        return generate_latest(self.registry)


# --- The server.
def serve(
    engine: Engine,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Serve an engine until the process is told to stop.

    Parameters
    ----------
    engine : Engine
    host, port : str, int
        Where to listen; port 0 is any that is free.
    api_key : str, optional
        See :func:`create_app`; beyond loopback, there must be one.
    say : callable
        Is told where the server listens, once it does.
    """
    is_loopback = _is_loopback(host)
    if not is_loopback and not api_key:
        raise DGZError(f"Beyond this machine ({host}), a server needs a key: set DGZ_API_KEY, or pass --api-key.")
    if api_key is not None and len(api_key) < 16:
        raise DGZError("A key must have at least 16 characters.")
    own = ("localhost", "127.0.0.1", "[::1]", host)
    app = create_app(engine, api_key=api_key, hosts=own if is_loopback else None)
    with _listening(host, port) as listening:
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listening.getsockname()[1]}/"
        say(f"Serving {len(engine.snapshot.names)} classes at {address} (Ctrl-C stops).")
        config = uvicorn.Config(app, log_level="warning", server_header=False, timeout_keep_alive=30)
        with suppress(KeyboardInterrupt):  # Ctrl-C is how a server is ended; by now it has ended what was under way
            uvicorn.Server(config).run(sockets=[listening])


def _listening(host: str, port: int) -> socket.socket:
    # Asyncio sends small answers at once only on sockets that say they are TCP; otherwise each waits for 40 ms.
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # elsewhere it would let two servers share a port
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(2048)
    except OSError as error:
        made.close()
        raise DGZError(f"{host}:{port} cannot be listened on: {error.strerror or error}.") from error
    return made


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
