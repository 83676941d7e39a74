"""Hooks into SGLang that registration does not cover, through SGLang's own hook registry."""

from __future__ import annotations

import logging
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_ddtree.algorithm import NAME

logger = logging.getLogger(__name__)

BUDGET_KEY = "speculative_ddtree_budget"
_RUNNER = "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_TOKENIZER = "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"


def keep_mask_in_graph(result: Any, runner: Any, num_tokens: int) -> Any:
    """AFTER DecodeCudaGraphRunner.get_spec_info: capture DDTREE's verify with its mask.

    SGLang drops the mask for the whole DFLASH family, since a chain is causal; a graph captured
    without it would verify the tree as a chain.
    """
    if runner.model_runner.spec_algorithm.name == NAME and not runner.model_runner.is_draft_worker:
        result.custom_mask = runner.buffers.custom_mask
    return result


def set_budget(original: Any, scheduler: Any, request: Any) -> Any:
    """AROUND Scheduler.set_internal_state: the budget goes to the worker, the rest stays."""
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    budget = request.server_args.pop(BUDGET_KEY, None)
    if budget is None:
        return original(scheduler, request)
    if request.server_args and not original(scheduler, request).updated:
        return SetInternalStateReqOutput(updated=False)
    try:
        scheduler.draft_worker.budgets.set(int(budget))
    except ValueError as error:
        logger.warning("%s", error)
        return SetInternalStateReqOutput(updated=False)
    reporter = scheduler.metrics_reporter
    reporter.spec_total_num_accept_tokens = reporter.spec_total_num_forward_ct = 0
    return SetInternalStateReqOutput(updated=True)


def show_budget(result: Any, scheduler: Any, request: Any) -> Any:
    """AFTER Scheduler.get_internal_state: what the worker verifies with now."""
    result.internal_state["ddtree"] = scheduler.draft_worker.budgets.state()
    return result


async def check_budget(original: Any, manager: Any, request: Any) -> Any:
    """AROUND the tokenizer manager's set_internal_state: answer a bad budget with 400."""
    from fastapi import HTTPException

    budget = request.server_args.get(BUDGET_KEY)
    if budget is None:
        return await original(manager, request)
    args = manager.server_args
    if args.speculative_algorithm != NAME:
        raise HTTPException(400, f"{BUDGET_KEY}: this server does not run {NAME}.")
    most = int(args.speculative_num_draft_tokens) - 1
    allowed = f"an integer in 0..{most}, or -1 on a server with SGLANG_DDTREE_ADAPTIVE=1"
    if (
        budget != int(budget)
        or not -1 <= budget <= most
        or not all(await original(manager, request))
    ):
        raise HTTPException(400, f"{BUDGET_KEY} must be {allowed}; got {budget}.")
    return {"updated": True, BUDGET_KEY: int(budget)}


def register_server_hooks() -> None:
    """For the process that answers HTTP; applied by SGLang after the plugins are loaded."""
    HookRegistry.register(f"{_TOKENIZER}.set_internal_state", check_budget, HookType.AROUND)


def register_worker_hooks() -> None:
    """For a scheduler's process that runs a DDTREE worker, before graphs are captured.

    Registered there and not at plugin load: resolving the targets imports the whole runtime.
    """
    HookRegistry.register(f"{_RUNNER}.get_spec_info", keep_mask_in_graph, HookType.AFTER)
    HookRegistry.register(f"{_SCHEDULER}.set_internal_state", set_budget, HookType.AROUND)
    HookRegistry.register(f"{_SCHEDULER}.get_internal_state", show_budget, HookType.AFTER)
    HookRegistry.apply_hooks()
