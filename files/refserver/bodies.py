"""Checks request bodies and turns them into Requests; every refusal is one clear line."""

from dataclasses import dataclass, replace
from typing import Any

from .errors import BadRequestError
from .logprobs import LogprobWish
from .output import Request
from .sampling import Sampling
from .tokenizer import ChatTokenizer

Body = dict[str, Any]
Number = int | float

# fields that change the output in a way this engine can't, with the values that ask for nothing
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_new_tokens": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False, 0),
    "return_hidden_states": (False,),
    "tools": ([],),
    "functions": ([],),
    "json_schema": (),
    "regex": (),
    "ebnf": (),
    "structural_tag": (),
    "stop_regex": ([], ""),
    "response_format": ({"type": "text"},),
    "lora_path": (),
    "image_data": ([],),
    "input_embeds": (),
}


@dataclass(frozen=True)
class Ask:
    """A checked body: what to generate and how to answer."""

    request: Request
    stream: bool
    include_usage: bool = False


class BodyReader:
    """Reads bodies for one model. All methods raise BadRequestError."""

    def __init__(self, tokenizer: ChatTokenizer, context_length: int) -> None:
        self._tokenizer = tokenizer
        self._context_length = context_length

    def generate(self, body: Body) -> Ask:
        """A body of SGLang's /generate."""
        params = _get(body, "sampling_params", dict, {})
        _refuse_unsupported(body)
        _refuse_unsupported(params)
        if ("text" in body) == ("input_ids" in body):
            raise BadRequestError("expected exactly one of text and input_ids", "text")
        prompt = self._prompt(body, "text" if "text" in body else "input_ids")
        request = self._request(params, prompt, _integer(params, "max_new_tokens", 128, 1))
        request = replace(request, logprobs=_logprobs(body, len(prompt)))
        return Ask(request, _get(body, "stream", bool, False))

    def completion(self, body: Body) -> Ask:
        """A body of /v1/completions."""
        _refuse_unsupported(body)
        prompt = self._prompt(body, "prompt")
        return self._openai(body, prompt, _integer(body, "max_tokens", 16, 1))

    def chat(self, body: Body) -> Ask:
        """A body of /v1/chat/completions. Without max_tokens the rest of the context is free."""
        _refuse_unsupported(body)
        messages = _get(body, "messages", list, None)
        if not messages:
            raise BadRequestError("expected a list of at least one message", "messages")
        prompt = self._tokenizer.encode_chat([_message(m) for m in messages])
        rest = max(self._context_length - len(prompt), 1)
        name = "max_completion_tokens"
        if body.get(name) is None:
            name = "max_tokens"
        return self._openai(body, prompt, _integer(body, name, rest, 1))

    def _openai(self, body: Body, prompt: list[int], max_new_tokens: int) -> Ask:
        _get(body, "model", str, "")
        options = _get(body, "stream_options", dict, {})
        return Ask(
            self._request(body, prompt, max_new_tokens),
            _get(body, "stream", bool, False),
            _get(options, "include_usage", bool, False),
        )

    def _prompt(self, body: Body, name: str) -> list[int]:
        prompt = body.get(name)
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, str) and name != "input_ids":
            return self._tokenizer.encode(prompt)
        if isinstance(prompt, list) and name != "text" and all(type(t) is int for t in prompt):
            return prompt
        wanted = "token ids" if name == "input_ids" else "a text"
        raise BadRequestError(f"expected {name} to be {wanted}, one prompt a request", name)

    def _request(self, params: Body, prompt: list[int], max_new_tokens: int) -> Request:
        seed = "sampling_seed" if params.get("sampling_seed") is not None else "seed"
        return Request(
            prompt=tuple(prompt),
            max_new_tokens=max_new_tokens,
            sampling=Sampling(
                temperature=_number(params, "temperature", 1.0, 0.0, 100.0),
                top_k=_top_k(params),
                top_p=_number(params, "top_p", 1.0, 0.0, 1.0, above=True),
                min_p=_number(params, "min_p", 0.0, 0.0, 1.0),
            ),
            stop=_stop(params),
            stop_token_ids=frozenset(_integers(params, "stop_token_ids")),
            ignore_eos=_get(params, "ignore_eos", bool, False),
            skip_special_tokens=_get(params, "skip_special_tokens", bool, True),
            no_stop_trim=_get(params, "no_stop_trim", bool, False),
            seed=_integer(params, seed, 0, 0) if params.get(seed) is not None else None,
        )


def _logprobs(body: Body, prompt_tokens: int) -> LogprobWish | None:
    """logprob_start_len -1, SGLang's default, asks for none of the prompt's tokens."""
    if not _get(body, "return_logprob", bool, False):
        return None
    start = _integer(body, "logprob_start_len", -1, -1)
    top = _integer(body, "top_logprobs_num", 0, 0)
    return LogprobWish(prompt_tokens if start == -1 else start, top)


def _refuse_unsupported(body: Body) -> None:
    for name, neutral in _UNSUPPORTED.items():
        value = body.get(name)
        if value is not None and value not in neutral:
            raise BadRequestError(f"the reference engine does not support {name}", name)


def _get(body: Body, name: str, kind: type, default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise BadRequestError(
            f"expected {name} to be of type {kind.__name__}, found {type(value).__name__}", name
        )
    return value


def _number(
    body: Body, name: str, default: float, low: float, high: float, above: bool = False
) -> float:
    value = body.get(name)
    if value is None:
        return default
    fine = isinstance(value, int | float) and not isinstance(value, bool)
    if not fine or not low <= value <= high or (above and value == low):
        edge = f"above {low:g} and at most {high:g}" if above else f"in {low:g}..{high:g}"
        raise BadRequestError(f"expected {name} to be a number {edge}, found {value!r}", name)
    return float(value)


def _integer(body: Body, name: str, default: int, low: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int or value < low:
        raise BadRequestError(
            f"expected {name} to be an integer of at least {low}, found {value!r}", name
        )
    return value


def _top_k(body: Body) -> int:
    value = body.get("top_k")
    if value is None or value == -1:
        return -1
    return _integer(body, "top_k", -1, 1)


def _integers(body: Body, name: str) -> list[int]:
    values: list[int] = _get(body, name, list, [])
    if any(type(value) is not int for value in values):
        raise BadRequestError(f"expected {name} to be a list of integers", name)
    return values


def _stop(body: Body) -> tuple[str, ...]:
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or any(not isinstance(s, str) or not s for s in stops):
        raise BadRequestError("expected stop to be a string or a list of strings", "stop")
    return tuple(stops)


def _message(raw: Any) -> Body:
    """A chat message with its content as one text."""
    if not isinstance(raw, dict) or not isinstance(raw.get("role"), str):
        raise BadRequestError("expected each message to be an object with a role", "messages")
    content = raw.get("content")
    if isinstance(content, list):
        if any(not isinstance(p, dict) or p.get("type") != "text" for p in content):
            raise BadRequestError("expected message content of type text only", "messages")
        content = "".join(str(part.get("text", "")) for part in content)
    if not isinstance(content, str):
        raise BadRequestError("expected each message to have a content text", "messages")
    return {**raw, "content": content}
