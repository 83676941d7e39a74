"""The verify widths of a server: one attention backend and one set of CUDA graphs a width."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from sglang_ddtree.tree_attention import use_tree_attention

logger = logging.getLogger(__name__)

_GRAPH_STATE = "cuda_graph_"


def verify_backend_of(attn_backend: Any) -> Any:
    """The backend that runs TARGET_VERIFY: a hybrid backend picks one of its two."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    select = getattr(attn_backend, "_select_backend", None)
    return attn_backend if select is None else select(ForwardMode.TARGET_VERIFY)


def require_tree_backend(attn_backend: Any) -> Any:
    """The verify backend, or RuntimeError if it is not one that honours a tree mask."""
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    backend = verify_backend_of(attn_backend)
    if not isinstance(backend, TritonAttnBackend):
        raise RuntimeError(
            f"DDTREE needs the triton backend for verify, the server uses "
            f"{type(backend).__name__}, which does not honour a tree mask: use "
            "--attention-backend triton (or --decode-attention-backend triton with "
            "--speculative-attention-mode decode)."
        )
    if backend.sliding_window_size is not None and backend.sliding_window_size > 0:
        raise RuntimeError("DDTREE does not support sliding-window targets.")
    if backend.dcp_size > 1:
        raise RuntimeError("DDTREE does not support decode context parallelism.")
    return backend


@dataclass(frozen=True)
class VerifyWidth:
    """What a verify of `width` tokens a request runs on; `runner` is None without CUDA graphs."""

    width: int
    attn_backend: Any
    runner: Any

    def graph_bs(self, bs: int) -> int | None:
        """Captured batch size that a batch of `bs` is padded to, None if it must run eagerly."""
        if self.runner is None or bs > self.runner.max_bs:
            return None
        return int(self.runner._pad_to_bucket(bs, self.runner.capture_bs))

    def mask_buffer(self) -> torch.Tensor:
        """The flat uint8 mask that the captured verify reads."""
        mask = verify_backend_of(self.attn_backend).get_verify_buffers_to_fill_after_draft()[0]
        assert mask is not None, "the verify graph was captured without a mask buffer"
        return mask


class VerifyWidths:
    """All captured widths; the widest is the one that SGLang itself captured."""

    def __init__(self, model_runner: Any, widest: int, split_attention: bool) -> None:
        self.model_runner = model_runner
        self.split_attention = split_attention
        self.by_width = {
            widest: VerifyWidth(
                widest, model_runner.attn_backend, model_runner.decode_cuda_graph_runner
            )
        }
        self.widest = self.by_width[widest]

    def capture(self, server_args: Any, width: int) -> None:
        """Capture graphs of one more width, over the widest one's buffers."""
        from sglang.srt.model_executor.runner import DecodeCudaGraphRunner

        if width in self.by_width or self.widest.runner is None:
            return
        tic = time.perf_counter()
        primary = server_args.speculative_num_draft_tokens
        runner = self.model_runner
        saved = runner.init_new_workspace
        server_args.override("ddtree.capture", speculative_num_draft_tokens=width)
        try:
            backend = runner._get_attention_backend(init_new_workspace=True)
            share_graph_state(
                verify_backend_of(backend), verify_backend_of(self.widest.attn_backend)
            )
            if self.split_attention:
                use_tree_attention(verify_backend_of(backend))
            graphs = DecodeCudaGraphRunner(
                runner, attn_backend=backend, speculative_num_draft_tokens=width
            )
        finally:
            runner.init_new_workspace = saved
            server_args.override("ddtree.capture", speculative_num_draft_tokens=primary)
        self.by_width[width] = VerifyWidth(width, backend, graphs)
        logger.info("DDTREE captured width %d in %.1f s", width, time.perf_counter() - tic)

    def at_least(self, tokens: int) -> VerifyWidth:
        """The narrowest captured width that holds `tokens`, else the widest."""
        fitting = [width for width in self.by_width if width >= tokens]
        return self.by_width[min(fitting)] if fitting else self.widest

    def measure(self, repeats: int = 3) -> dict[int, dict[int, float]]:
        """Milliseconds of a verify by batch size and width: replays of the captured graphs.

        At the captured dummy lengths, so without the cost of a long context.
        """
        costs: dict[int, dict[int, float]] = {}
        for width, entry in self.by_width.items():
            if entry.runner is None:
                continue
            for bs in entry.runner.capture_bs:
                graph = entry.runner.backend._graphs[entry.runner._make_graph_key(bs)]
                costs.setdefault(bs, {})[width] = replay_ms(graph, repeats)
        return costs

    @contextlib.contextmanager
    def using(self, entry: VerifyWidth) -> Iterator[None]:
        """Run the target on `entry`'s backend and graphs for one verify."""
        runner = self.model_runner
        saved = runner.attn_backend, runner.decode_cuda_graph_runner
        runner.attn_backend, runner.decode_cuda_graph_runner = entry.attn_backend, entry.runner
        try:
            yield
        finally:
            runner.attn_backend, runner.decode_cuda_graph_runner = saved


def replay_ms(graph: torch.cuda.CUDAGraph, repeats: int) -> float:
    """Milliseconds of one replay, the least of `repeats` after one that warms up."""
    times = []
    for _ in range(repeats + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return min(times[1:])


def share_graph_state(backend: Any, primary: Any) -> None:
    """Let `backend` use `primary`'s graph buffers: two widths never run at the same time.

    The buffers hold max_bs * N * context entries (kv indices 8 B, mask 1 B), so a copy a width
    would cost gigabytes at long contexts.
    """

    def init_cuda_graph_state(max_bs: int, max_num_tokens: int, *args: Any, **kwargs: Any) -> None:
        for name, value in vars(primary).items():
            if name.startswith(_GRAPH_STATE):
                setattr(backend, name, value)

    backend.init_cuda_graph_state = init_cuda_graph_state
