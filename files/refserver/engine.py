"""The generation loop: plain decoding (ar), a draft chain (dflash), a draft tree (ddtree)."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .config import DrafterConfig, Speculation
from .drafter import Drafter
from .errors import BadRequestError, RefserverError
from .gguf_file import GgufFile
from .logprobs import Logprobs
from .model import PREFILL_CHUNK, Model
from .output import Output, Request, Update
from .sampling import draw, top_log_probs
from .tokenizer import ChatTokenizer, from_gguf, from_hf
from .tree import Tree, best_first, chain, walk
from .weights import (
    Array,
    DrafterWeights,
    Target,
    find_gguf,
    load_drafter,
    load_target,
    read_json,
    target_config,
)


@dataclass(frozen=True)
class Loaded:
    """All that a server reads from disk."""

    target: Target
    tokenizer: ChatTokenizer
    drafter: DrafterWeights | None = None


def load(
    model_path: Path, speculation: Speculation | None, progress: Callable[[str], None]
) -> Loaded:
    """Read target, tokenizer and drafter. Raises RefserverError when they do not fit together."""
    gguf_path = find_gguf(model_path)
    gguf = GgufFile(gguf_path) if gguf_path else None
    drafter = None
    if speculation is not None:
        folder = Path(speculation.drafter_path)
        progress(f"reading drafter {folder}")
        config = DrafterConfig.from_json(read_json(folder / "config.json"))
        config.check_fits(target_config(model_path, gguf))
        speculation.check_width(config.block_size)
        drafter = load_drafter(folder)
    progress(f"reading target {gguf_path or model_path}")
    tokenizer = from_gguf(gguf.fields) if gguf else from_hf(model_path)
    return Loaded(load_target(model_path, gguf), tokenizer, drafter)


class Engine:
    """Generates one request at a time; not thread-safe, except for `budget`.

    `budget` may be changed at run time on a DDTREE engine: B in 0..speculation.budget, 0 = chain;
    a request keeps the budget that it started with.
    """

    def __init__(
        self,
        loaded: Loaded,
        speculation: Speculation | None = None,
        context_length: int | None = None,
        seed: int = 0,
        spine_first: bool = False,
    ) -> None:
        own = loaded.target.config.context_length
        if context_length is not None and not 0 < context_length <= own:
            raise RefserverError(
                f"expected --context-length in 1..{own} (the target's own), found {context_length}"
            )
        self.loaded = loaded
        self.tokenizer = loaded.tokenizer
        self.speculation = speculation
        self.context_length = context_length or own
        self.budget = speculation.budget if speculation else 0
        self._seed, self._served, self._spine_first = seed, 0, spine_first
        width = speculation.verify_width if speculation else 1
        self._drafter: Drafter | None = None
        layers: tuple[int, ...] = ()
        capacity = self.context_length + width
        if loaded.drafter is not None:
            capacity = self.context_length + max(width, loaded.drafter.config.block_size)
            self._drafter = Drafter(loaded.drafter, loaded.target, capacity)
            layers = loaded.drafter.config.target_layer_ids
        self._model = Model(loaded.target, capacity, layers)

    def set_budget(self, budget: int) -> None:
        """Change B at run time. Raises BadRequestError when this engine can't do it."""
        name = "speculative_ddtree_budget"
        if self.speculation is None or self.speculation.algorithm != "DDTREE":
            raise BadRequestError(f"{name} needs a server started with DDTREE", name)
        if not 0 <= budget <= self.speculation.budget:
            raise BadRequestError(
                f"expected {name} in 0..{self.speculation.budget} (the server's "
                f"--speculative-num-draft-tokens less one), found {budget}",
                name,
            )
        self.budget = budget

    def check(self, request: Request) -> None:
        """Raise BadRequestError when the request can't fit the context or the vocabulary."""
        vocabulary = self.loaded.target.config.vocab_size
        if not request.prompt:
            raise BadRequestError("expected a prompt of at least one token, found none", "prompt")
        if any(not 0 <= token < vocabulary for token in request.prompt):
            raise BadRequestError(f"expected token ids in 0..{vocabulary - 1}", "input_ids")
        wanted = len(request.prompt) + request.max_new_tokens
        if wanted > self.context_length:
            raise BadRequestError(
                f"expected at most {self.context_length} tokens of context, found {wanted} "
                f"({len(request.prompt)} of the prompt + {request.max_new_tokens} to generate); "
                "shorten the prompt or lower max_tokens",
                "max_tokens",
            )

    def generate(
        self,
        request: Request,
        emit: Callable[[Update], None] = lambda update: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Update:
        """Generate until a stop condition holds; `emit` sees each step's state, the last too."""
        self.check(request)
        self._served += 1
        seed = [self._seed, self._served] if request.seed is None else request.seed
        rng = np.random.default_rng(seed)

        output = Output(request, self.tokenizer)

        def pick(hidden: Array) -> int:
            logits = self._model.logits(hidden)
            token = draw(logits, request.sampling, rng)
            if request.logprobs:
                output.logprobs.add_output(logits, token, request.logprobs.top)
            return token

        budget, drafting = self.budget, self._drafter is not None
        hidden = self._prefill(request, output.logprobs, cancelled)
        if hidden is not None:
            anchor = pick(hidden)
            output.add([anchor])
        while not output.finished:
            if cancelled():
                output.abort("the client has gone")
                break
            emit(output.update())
            tree = self._propose(anchor, budget)
            drafts, anchor = self._verify(tree, pick)
            output.add([*drafts, anchor], tree.width - 1 if drafting else None)
        emit(output.update())
        return output.update()

    def _prefill(
        self, request: Request, logprobs: Logprobs, cancelled: Callable[[], bool]
    ) -> Array | None:
        """Run the prompt; returns its last hidden state, None when cancelled on the way."""
        prompt, wish = request.prompt, request.logprobs
        if wish and wish.prompt_start == 0:
            logprobs.add_first(prompt[0])
        self._model.reset()
        if self._drafter:
            self._drafter.reset()
        hidden = None
        for start in range(0, len(prompt), PREFILL_CHUNK):
            if cancelled():
                return None
            hidden, features = self._model.prefill(prompt[start : start + PREFILL_CHUNK])
            if self._drafter:
                self._drafter.extend(features)
            if wish:
                first = max(start, wish.prompt_start - 1)  # logits at i speak of token i + 1
                following = prompt[first + 1 : start + len(hidden) + 1]
                if following:
                    scored = hidden[first - start :][: len(following)]
                    logprobs.add_prompt(self._model.logits(scored), following, wish.top)
        return None if hidden is None else hidden[-1]

    def _verify(self, tree: Tree, pick: Callable[[Array], int]) -> tuple[list[int], int]:
        """Run the tree through the target, commit what it accepts: (accepted drafts, bonus)."""
        hidden, features = self._model.forward(
            np.array(tree.tokens), np.array(tree.depths), tree.mask()
        )
        path, bonus = walk(tree, lambda node: pick(hidden[node]))
        self._model.cache.keep(path)
        if self._drafter:
            self._drafter.extend(features[path])
        return [tree.tokens[node] for node in path[1:]], bonus

    def _propose(self, anchor: int, budget: int) -> Tree:
        if self._drafter is None or self.speculation is None:
            return chain(anchor, ())
        logits = self._drafter.propose(anchor)
        if budget == 0:
            length = self._drafter.block_size - 1
            if self.speculation.algorithm == "DFLASH":
                length = self.speculation.verify_width - 1
            return chain(anchor, logits[:length].argmax(axis=1).tolist())
        log_probs, tokens = top_log_probs(logits, budget)
        return best_first(anchor, log_probs, tokens, budget, self._spine_first)
