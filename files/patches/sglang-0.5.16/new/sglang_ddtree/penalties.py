"""Penalties at all nodes of a verify: every node counts each output token that stands before it.

SGLang's own sums don't serve here. DFLASH of 0.5.16 neither feeds nor reads them (never fed, they
penalize nothing, and min_new_tokens has no end); EAGLE feeds them one token a step; under overlap
scheduling they are a step late. So the worker counts for itself, on the device, what it emits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

# The request itself, since a client may use an id again, and how often it was retracted.
Key = tuple[Any, int]


@dataclass(frozen=True)
class BatchPenalties:
    """What the requests of one batch ask for, and what they have emitted; on the device."""

    keys: tuple[Key, ...]
    counts: torch.Tensor  # [bs, V] int32: how often each token was emitted
    factors: torch.Tensor  # [bs, 3] float32: frequency, presence, repetition
    prompts: torch.Tensor  # [bs] int64: tokens before the first output
    shortest: torch.Tensor  # [bs] int64: min_new_tokens
    stops: torch.Tensor  # [bs, S] int64: what must not come before that; S = 0 if none asks
    scaled: tuple[int, ...]  # the requests with a repetition penalty

    def apply(
        self,
        logits: torch.Tensor,
        tokens: torch.Tensor,
        parents: torch.Tensor,
        positions: torch.Tensor,
        depth: int,
    ) -> None:
        """Change logits [bs * N, V] in place, by SGLang's rules of a penalty.

        tokens, parents, positions: [bs * N] of the nodes; `depth` is the deepest node's.
        """
        bs = len(self.keys)
        nodes = logits.view(bs, -1, logits.shape[-1])
        ids, times = self._paths(tokens.view(bs, -1), parents.view(bs, -1), depth)
        # First by the tokens emitted in earlier steps, the same for all nodes of a request; then
        # what a node's own path in the tree changes, from the logits as they were.
        own = self._penalized(nodes.gather(2, ids).float(), times)
        nodes.sub_(self._offset(self.counts[:, None]))
        for b in self.scaled:
            scale = torch.where(self.counts[b] > 0, self.factors[b, 2], 1.0)
            nodes[b] = torch.where(nodes[b] < 0, nodes[b] * scale, nodes[b] / scale)
        nodes.scatter_(2, ids, own.to(nodes.dtype))
        if self.stops.shape[1]:
            early = positions.view(bs, -1) + 1 - self.prompts[:, None] < self.shortest[:, None]
            stops = self.stops[:, None].expand(-1, nodes.shape[1], -1)
            values = nodes.gather(2, stops).masked_fill(early[..., None], -torch.inf)
            nodes.scatter_(2, stops, values)

    def learn(self, emitted: torch.Tensor, lengths: torch.Tensor) -> None:
        """Count a step's output: the first lengths[b] of emitted [bs, L] are request b's."""
        live = torch.arange(emitted.shape[1], device=emitted.device) < lengths[:, None]
        self.counts.scatter_add_(1, emitted, live.to(self.counts.dtype))

    def _paths(
        self, tokens: torch.Tensor, parents: torch.Tensor, depth: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens from each node up to the root's child, and how often each stands before the node's
        successor: [bs, N, depth]. The root, which is counted already, fills up the shorter paths.
        """
        width = tokens.shape[1]
        node = torch.arange(width, device=tokens.device).expand_as(tokens)
        steps = []
        for _ in range(depth):
            steps.append(node)
            node = parents.long().gather(1, node).clamp(0, width - 1)
        path = torch.stack(steps, 2)
        ids = tokens.gather(1, path.flatten(1)).view_as(path)
        same = (ids[..., :, None] == ids[..., None, :]) & (path > 0)[..., None, :]
        before = self.counts.gather(1, ids.flatten(1)).view_as(ids)
        return ids, before + same.sum(-1)

    def _offset(self, times: torch.Tensor) -> torch.Tensor:
        """What is taken from a logit [bs, ., .] of a token that was emitted so often."""
        frequency, presence = self.factors[:, None, :1], self.factors[:, None, 1:2]
        return frequency * times + presence * (times > 0)

    def _penalized(self, logits: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        scale = torch.where(times > 0, self.factors[:, None, 2:], 1.0)
        reduced = logits - self._offset(times)
        return torch.where(reduced < 0, reduced * scale, reduced / scale)


class Penalties:
    """Of one worker. The host works only when the requests of the batch change."""

    def __init__(self) -> None:
        self._batch: BatchPenalties | None = None

    def of_batch(self, batch: Any, roots: torch.Tensor, vocab: int) -> BatchPenalties | None:
        """Those of the batch that decodes now; None where no request has any.

        roots [bs]: the tokens emitted last. vocab: V, columns of the logits.
        """
        info = batch.sampling_info
        if info is None or info.acc_additive_penalties is None:  # set as soon as one has any
            self._batch = None
            return None
        keys = tuple((req, req.retraction_count) for req in batch.reqs)
        if self._batch is None or self._batch.keys != keys:
            self._batch = self._join(keys, batch, roots, vocab)
        return self._batch

    def _join(
        self, keys: tuple[Key, ...], batch: Any, roots: torch.Tensor, vocab: int
    ) -> BatchPenalties:
        device, params = roots.device, [req.sampling_params for req in batch.reqs]
        stops = [_stop_tokens(req, vocab) for req in batch.reqs]
        most = max(map(len, stops))
        return BatchPenalties(
            keys=keys,
            counts=self._counts(keys, batch, roots, vocab),
            factors=_on(
                device,
                [[p.frequency_penalty, p.presence_penalty, p.repetition_penalty] for p in params],
                torch.float32,
            ),
            prompts=_on(device, [len(req.origin_input_ids) for req in batch.reqs]),
            shortest=_on(
                device,
                [p.min_new_tokens if s else 0 for p, s in zip(params, stops, strict=True)],
            ),
            # rows are filled up with one of their own, or with a token that is never held back
            stops=_on(device, [s + (s[:1] or [0]) * (most - len(s)) for s in stops]),
            scaled=tuple(b for b, p in enumerate(params) if p.repetition_penalty != 1.0),
        )

    def _counts(
        self, keys: tuple[Key, ...], batch: Any, roots: torch.Tensor, vocab: int
    ) -> torch.Tensor:
        """Rows of requests that stay; new ones from what the host knows of their output."""
        device = roots.device
        counts = torch.zeros((len(keys), vocab), dtype=torch.int32, device=device)
        old = self._batch
        at = {} if old is None else {key: row for row, key in enumerate(old.keys)}
        stay = [(row, at[key]) for row, key in enumerate(keys) if key in at]
        if old is not None and stay:
            rows = _on(device, stay)
            counts[rows[:, 0]] = old.counts[rows[:, 1]]
        new = [(row, req) for row, req in enumerate(batch.reqs) if keys[row] not in at]
        one = torch.ones((), dtype=counts.dtype, device=device)
        if known := [(row, token) for row, req in new for token in req.output_ids]:
            places = _on(device, known)
            counts.index_put_((places[:, 0], places[:, 1]), one, accumulate=True)
        # Under overlap scheduling the host may not have the root yet.
        lengths = [0] * len(keys)
        for row, req in new:
            lengths[row] = len(req.origin_input_ids) + len(req.output_ids)
        host = _on(device, lengths)
        missing = (batch.seq_lens + 1 - host).clamp(0, 1) * (host > 0)
        return counts.scatter_add_(1, roots[:, None], missing[:, None].to(counts.dtype))


def _stop_tokens(req: Any, vocab: int) -> list[int]:
    """What SGLang holds back until a request has its min_new_tokens; empty if it asks for none."""
    if req.sampling_params.min_new_tokens <= 0:
        return []
    tokens = set(req.sampling_params.stop_token_ids or ())
    tokens |= set(req.tokenizer.additional_stop_token_ids or ())
    tokens.add(req.tokenizer.eos_token_id)
    return sorted(token for token in tokens if token is not None and 0 <= token < vocab)


def _on(
    device: torch.device, values: Sequence[Any], dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    """A tensor on the device, without waiting for it."""
    made = torch.tensor(values, dtype=dtype)
    return made if device.type == "cpu" else made.pin_memory().to(device, non_blocking=True)
