"""The HTTP API: SGLang's routes and OpenAI's, over one Worker."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from . import __version__
from .answers import Context, OpenAiFormat, generate_answer
from .bodies import Ask, BodyReader
from .engine import Engine
from .errors import BadRequestError
from .metrics import Metrics
from .output import Update
from .worker import Job, Worker

Body = dict[str, Any]
Handler = Callable[[HttpRequest], Awaitable[Response]]


@dataclass(frozen=True)
class Settings:
    """The server's command line, flat, as /server_info shows it."""

    served_model_name: str
    server_args: Body


class Api:
    """Route handlers. Everything that touches the engine goes through the worker's queue."""

    def __init__(self, worker: Worker, metrics: Metrics, settings: Settings) -> None:
        self._worker, self._metrics, self._settings = worker, metrics, settings

    def app(self) -> Starlette:
        """The ASGI application."""

        post, get, both = ["POST"], ["GET"], ["GET", "POST"]
        routes = [
            Route("/health", self.health, methods=get),
            Route("/v1/models", self.models, methods=get),
            Route("/server_info", self.server_info, methods=get),
            Route("/get_server_info", self.server_info, methods=get),
            Route("/metrics", self.render_metrics, methods=get),
            Route("/flush_cache", self.flush_cache, methods=both),
            Route("/set_internal_state", self.set_internal_state, methods=["POST", "PUT"]),
            Route("/generate", self.generate, methods=post),
            Route("/v1/completions", self.completions, methods=post),
            Route("/v1/chat/completions", self.chat, methods=post),
        ]
        handlers: dict[Any, Any] = {BadRequestError: _bad_request, HTTPException: _http_error}
        return Starlette(routes=routes, exception_handlers=handlers)

    async def health(self, _: HttpRequest) -> Response:
        """200 when requests can be served, 503 while the model loads."""
        return Response(status_code=200 if self._worker.engine else 503)

    async def models(self, _: HttpRequest) -> Response:
        """The one model, as OpenAI lists it."""
        engine = self._engine()
        card = {
            "id": self._settings.served_model_name,
            "object": "model",
            "owned_by": "refserver",
            "root": self._settings.server_args["model_path"],
            "max_model_len": engine.context_length,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def server_info(self, _: HttpRequest) -> Response:
        """Command line, version and state; no accept length before the first verify step."""
        engine = self._engine()
        budget = engine.budget if engine.speculation else None
        state: Body = {"speculative_ddtree_budget": budget}
        if self._metrics.average_accept_length is not None:
            state["avg_spec_accept_length"] = self._metrics.average_accept_length
        return JSONResponse(
            {
                **self._settings.server_args,
                "context_length": engine.context_length,
                "version": __version__,
                "engine": "refserver",
                "internal_states": [state],
            }
        )

    async def render_metrics(self, _: HttpRequest) -> Response:
        """Prometheus's text format."""
        return PlainTextResponse(self._metrics.render(), media_type="text/plain; version=0.0.4")

    async def flush_cache(self, _: HttpRequest) -> Response:
        """There for clients that call it before a measurement."""
        return PlainTextResponse("Cache flushed: this engine keeps nothing between requests.\n")

    async def set_internal_state(self, request: HttpRequest) -> Response:
        """Change the budget; the average accept length starts anew."""
        args = (await _body(request)).get("server_args")
        name = "speculative_ddtree_budget"
        if not isinstance(args, dict) or set(args) != {name} or type(args[name]) is not int:
            message = f'expected {{"server_args": {{"{name}": INTEGER}}}}, found {args!r}'
            raise BadRequestError(message, "server_args")
        self._engine().set_budget(args[name])
        self._metrics.reset_speculation()
        return JSONResponse({"updated": True, "server_args": args})

    async def generate(self, request: HttpRequest) -> Response:
        """SGLang's own route, the one with speculation counters."""
        ask, context = self._ask(await _body(request), BodyReader.generate)
        if not ask.stream:
            return _answer(generate_answer, context, await self._run_whole(request, ask))

        async def lines() -> AsyncIterator[str]:
            async for update in self._updates(ask):
                yield _event(generate_answer(context, update))
            yield _DONE

        return StreamingResponse(lines(), media_type="text/event-stream")

    async def completions(self, request: HttpRequest) -> Response:
        """OpenAI's text completions."""
        return await self._openai(request, BodyReader.completion, chat=False)

    async def chat(self, request: HttpRequest) -> Response:
        """OpenAI's chat completions."""
        return await self._openai(request, BodyReader.chat, chat=True)

    async def _openai(
        self, request: HttpRequest, read: Callable[[BodyReader, Body], Ask], chat: bool
    ) -> Response:
        ask, context = self._ask(await _body(request), read)
        form = OpenAiFormat(context, chat)
        if not ask.stream:
            update = await self._run_whole(request, ask)
            return _answer(lambda _, whole: form.whole(whole), context, update)

        async def lines() -> AsyncIterator[str]:
            if opening := form.opening():
                yield _event(opening)
            async for update in self._updates(ask):
                if chunk := form.chunk(update):
                    yield _event(chunk)
            if ask.include_usage:
                yield _event(form.usage_chunk(update))
            yield _DONE

        return StreamingResponse(lines(), media_type="text/event-stream")

    def _engine(self) -> Engine:
        if self._worker.engine is None:
            raise HTTPException(503, "the model is still loading")
        return self._worker.engine

    def _ask(self, body: Body, read: Callable[[BodyReader, Body], Ask]) -> tuple[Ask, Context]:
        engine = self._engine()
        ask = read(BodyReader(engine.tokenizer, engine.context_length), body)
        engine.check(ask.request)
        name, prompt_tokens = self._settings.served_model_name, len(ask.request.prompt)
        return ask, Context(name, prompt_tokens, engine.speculation is not None)

    async def _updates(self, ask: Ask) -> AsyncIterator[Update]:
        """Run the request; leaving the loop early (a client that has gone) cancels it."""
        loop, updates = asyncio.get_running_loop(), asyncio.Queue[Update]()

        def notify(update: Update) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(updates.put_nowait, update)

        job = Job(ask.request, notify)
        self._worker.submit(job)
        try:
            while True:
                update = await updates.get()
                yield update
                if update.finish is not None:
                    return
        finally:
            job.cancel()

    async def _run_whole(self, request: HttpRequest, ask: Ask) -> Update:
        """The last update; the request ends early when its client goes."""

        async def last() -> Update:
            return [update async for update in self._updates(ask)][-1]

        job = asyncio.ensure_future(last())
        try:
            while not (await asyncio.wait({job}, timeout=0.25))[0]:
                if await request.is_disconnected():
                    raise HTTPException(499, "the client has gone")
            return job.result()
        finally:
            job.cancel()


_DONE = "data: [DONE]\n\n"


def _event(body: Body) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


def _answer(
    build: Callable[[Context, Update], Body], context: Context, update: Update
) -> JSONResponse:
    finish = update.finish or {}
    if finish.get("status") == 500:
        return _error(500, finish["message"], "InternalServerError")
    return JSONResponse(build(context, update))


async def _body(request: HttpRequest) -> Body:
    try:
        body = await request.json()
    except ValueError:
        raise BadRequestError("expected a JSON body") from None
    if not isinstance(body, dict):
        raise BadRequestError(f"expected a JSON object, found {type(body).__name__}")
    return body


def _error(status: int, message: str, kind: str, param: str | None = None) -> JSONResponse:
    error = {"message": message, "type": kind, "param": param, "code": status}
    return JSONResponse({"error": error}, status)


async def _bad_request(_: HttpRequest, error: BadRequestError) -> Response:
    return _error(400, str(error), "BadRequestError", error.param)


async def _http_error(_: HttpRequest, error: HTTPException) -> Response:
    return _error(error.status_code, error.detail, "ServerError")
