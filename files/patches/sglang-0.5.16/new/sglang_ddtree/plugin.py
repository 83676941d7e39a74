"""Entry point of the group sglang.srt.plugins: makes --speculative-algorithm DDTREE known."""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Register the algorithm and its hooks; SGLang calls this once in every process."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from sglang_ddtree.algorithm import NAME, DDTreeAlgo
    from sglang_ddtree.hooks import register_server_hooks

    @SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=DDTreeAlgo)
    def worker(server_args: Any) -> type:
        from sglang_ddtree.worker import DDTreeWorker

        return DDTreeWorker

    register_server_hooks()
