"""Builds response bodies: SGLang's /generate and the OpenAI formats."""

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from .logprobs import Entry
from .output import Update

Body = dict[str, Any]


@dataclass(frozen=True)
class Context:
    """What an answer says besides the output. `speculative`: whether a drafter is at work."""

    model: str
    prompt_tokens: int
    speculative: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: float = field(default_factory=time.perf_counter)
    created: int = field(default_factory=lambda: int(time.time()))

    def usage(self, update: Update) -> Body:
        """OpenAI's usage."""
        completion = len(update.output_ids)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
        }


def generate_answer(context: Context, update: Update) -> Body:
    """A body of /generate; the text and the ids are cumulative.

    spec_accept_length is SGLang's: completion tokens / verify steps, the prefill's token included;
    the histogram gives the exact one, sum((k + 1) * h[k]) / sum(h).
    """
    completion, steps = len(update.output_ids), update.verify_steps
    meta: Body = {
        "id": context.id,
        "finish_reason": update.finish,
        "prompt_tokens": context.prompt_tokens,
        "completion_tokens": completion,
        "cached_tokens": 0,
        "e2e_latency": time.perf_counter() - context.started,
    }
    if context.speculative:
        meta["spec_verify_ct"] = steps
        meta["spec_num_correct_drafts"] = update.accepted
        meta["spec_num_proposed_drafts"] = update.proposed
        meta["spec_correct_drafts_histogram"] = list(update.histogram)
    if context.speculative and steps:
        meta["spec_accept_length"] = completion / steps
        meta["spec_accept_rate"] = update.accepted / max(update.proposed, 1)
    if update.logprobs is not None:
        found = update.logprobs
        meta["input_token_logprobs"] = _triples(found.prompt)
        meta["input_top_logprobs"] = [_triples(entries) or None for entries in found.prompt_top]
        meta["output_token_logprobs"] = _triples(found.output)
        meta["output_top_logprobs"] = [_triples(entries) or None for entries in found.output_top]
    return {"text": update.text, "output_ids": list(update.output_ids), "meta_info": meta}


def _triples(entries: list[Entry]) -> list[tuple[float | None, int, None]]:
    """SGLang's form: (log-probability, token id, text), the text not filled in."""
    return [(value, token, None) for value, token in entries]


class OpenAiFormat:
    """Answers of one OpenAI request; `chat` picks /v1/chat/completions or /v1/completions."""

    def __init__(self, context: Context, chat: bool) -> None:
        self._context, self._chat = context, chat
        self._sent = 0

    def whole(self, update: Update) -> Body:
        """The answer without streaming."""
        content: Body = {"text": update.text}
        if self._chat:
            content = {"message": {"role": "assistant", "content": update.text}}
        body = self._body("chat.completion" if self._chat else "text_completion")
        body["choices"] = [self._choice(content, update)]
        body["usage"] = self._context.usage(update)
        return body

    def opening(self) -> Body | None:
        """The first chunk of a chat stream; completions have none."""
        if not self._chat:
            return None
        return self._chunk({"delta": {"role": "assistant", "content": ""}}, None)

    def chunk(self, update: Update) -> Body | None:
        """The next chunk of a stream; None when there is no new text and no end."""
        added = update.text[self._sent :]
        self._sent = len(update.text)
        if not added and update.finish is None:
            return None
        return self._chunk({"delta": {"content": added}} if self._chat else {"text": added}, update)

    def usage_chunk(self, update: Update) -> Body:
        """The last chunk under stream_options.include_usage."""
        body = self._body("chat.completion.chunk" if self._chat else "text_completion")
        return body | {"choices": [], "usage": self._context.usage(update)}

    def _chunk(self, content: Body, update: Update | None) -> Body:
        body = self._body("chat.completion.chunk" if self._chat else "text_completion")
        body["choices"] = [self._choice(content, update)]
        return body

    def _choice(self, content: Body, update: Update | None) -> Body:
        finish = update.finish if update else None
        return {
            "index": 0,
            **content,
            "logprobs": None,
            "finish_reason": finish["type"] if finish else None,
            "matched_stop": finish.get("matched") if finish else None,
        }

    def _body(self, kind: str) -> Body:
        prefix = "chatcmpl" if self._chat else "cmpl"
        return {
            "id": f"{prefix}-{self._context.id}",
            "object": kind,
            "created": self._context.created,
            "model": self._context.model,
        }
