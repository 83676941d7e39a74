"""The output of one request as it grows: tokens, text, stop conditions, speculation counts."""

from dataclasses import dataclass
from typing import Any

from tokenizers.decoders import DecodeStream

from .logprobs import Logprobs, LogprobWish
from .sampling import GREEDY, Sampling
from .tokenizer import ChatTokenizer


@dataclass(frozen=True)
class Request:
    """What to generate. `seed` None takes the server's own sequence."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling = GREEDY
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    seed: int | None = None
    logprobs: LogprobWish | None = None


@dataclass(frozen=True)
class Update:
    """State of a generation after a step; `finish` (SGLang's finish_reason) is set in the last.

    `histogram[k]` counts verify steps that accepted k drafts, so that
    len(output_ids) = 1 + sum((k + 1) * histogram[k]) with a drafter: the prefill gives one token, a
    step its accepted drafts and the bonus. Drafts behind the end of the output do not count.
    """

    output_ids: tuple[int, ...]
    text: str
    histogram: tuple[int, ...] = ()
    proposed: int = 0
    finish: dict[str, Any] | None = None
    logprobs: Logprobs | None = None

    @property
    def verify_steps(self) -> int:
        """Verify steps so far."""
        return sum(self.histogram)

    @property
    def accepted(self) -> int:
        """Accepted drafts so far, bonus tokens not included."""
        return sum(k * count for k, count in enumerate(self.histogram))


class Output:
    """Collects tokens until a stop condition holds.

    A stop token is part of the output ids, as in SGLang, but not of the text; a stop string ends
    the text before it (behind it with no_stop_trim). Text that may yet turn out to be the start of
    a stop string is held back.
    """

    def __init__(self, request: Request, tokenizer: ChatTokenizer) -> None:
        self._request = request
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=request.skip_special_tokens)
        self._stop_ids = request.stop_token_ids
        if not request.ignore_eos:
            self._stop_ids |= tokenizer.eos_token_ids
        self.logprobs = Logprobs()
        self._ids: list[int] = []
        self._text = ""
        self._histogram: list[int] = []
        self._proposed = 0
        self._finish: dict[str, Any] | None = None

    @property
    def finished(self) -> bool:
        """Whether no more tokens are wanted."""
        return self._finish is not None

    def add(self, tokens: list[int], proposed: int | None = None) -> None:
        """Append the tokens of a step, up to the first that ends the output.

        `proposed` is the number of drafts in a verify step, None for a step without drafter.
        """
        before = len(self._ids)
        for token in tokens:
            self._append(token)
            if self.finished:
                break
        if proposed is not None:
            accepted = len(self._ids) - before - 1
            self._histogram += [0] * (accepted + 1 - len(self._histogram))
            self._histogram[accepted] += 1
            self._proposed += proposed

    def _append(self, token: int) -> None:
        self._ids.append(token)
        if token in self._stop_ids:
            self._finish = {"type": "stop", "matched": token}
            return
        self._text += self._stream.step(self._tokenizer.tokenizer, token) or ""
        found = [(self._text.find(stop), stop) for stop in self._request.stop]
        hits = [(at, stop) for at, stop in found if at >= 0]
        if hits:
            at, stop = min(hits)
            self._text = self._text[: at + len(stop) if self._request.no_stop_trim else at]
            self._finish = {"type": "stop", "matched": stop}
        elif len(self._ids) >= self._request.max_new_tokens:
            self._finish = {"type": "length", "length": self._request.max_new_tokens}
            self._flush()

    def _flush(self) -> None:
        """Add what the stream still holds: bytes of a character that never became whole."""
        whole = self._tokenizer.decode(self._ids, self._request.skip_special_tokens)
        if whole.startswith(self._text):
            self._text = whole

    def abort(self, message: str) -> None:
        """End the output early."""
        self._finish = {"type": "abort", "message": message}

    def update(self) -> Update:
        """A snapshot that may go to another thread."""
        text = self._text if self.finished else self._text[: len(self._text) - self._held_back()]
        ids, counts = tuple(self._ids), tuple(self._histogram)
        logprobs = self.logprobs.copy(len(ids)) if self._request.logprobs else None
        return Update(ids, text, counts, self._proposed, self._finish, logprobs)

    def _held_back(self) -> int:
        """Length of the longest end of the text that is the start of a stop string."""
        longest = 0
        for stop in self._request.stop:
            for length in range(min(len(stop) - 1, len(self._text)), longest, -1):
                if self._text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
