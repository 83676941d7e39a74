"""DDTREE's worker: DFLASH's drafter, a best-first tree, one verify of N = budget + 1 nodes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import torch
from sglang.kernels.ops.speculative.dflash import _prepare_dflash_draft_block_unchecked
from sglang.srt.distributed import get_tp_group
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from sglang_ddtree import path as path_kernels
from sglang_ddtree import tree
from sglang_ddtree.algorithm import server_settings
from sglang_ddtree.hooks import register_worker_hooks
from sglang_ddtree.kv_move import KVMover
from sglang_ddtree.logits import adjust_logits
from sglang_ddtree.sampler import TreeSampler
from sglang_ddtree.self_check import check_tree_mask
from sglang_ddtree.step import StepBuffers, StepPlan
from sglang_ddtree.widths import VerifyWidths, require_tree_backend, verify_backend_of

logger = logging.getLogger(__name__)


class DDTreeWorker(DFlashWorkerV2):
    """Spec-v2 worker; prefill, draft KV and request state are DFLASH's, the decode step is ours.

    `block_size` (L) is the drafter's width, `settings.width` (N) the target's.
    """

    def __init__(
        self, server_args: Any, gpu_id: int, ps: Any, nccl_port: int, target_worker: Any
    ) -> None:
        settings = server_settings(server_args)
        draft_args = deepcopy(server_args)
        draft_args.override("ddtree.draft", speculative_num_draft_tokens=settings.block)
        super().__init__(draft_args, gpu_id, ps, nccl_port, target_worker)
        self.server_args = server_args
        self.settings = settings
        self.budget = settings.budget
        self._widths: VerifyWidths | None = None
        self._buffers: StepBuffers | None = None
        self._kv_mover: KVMover | None = None
        register_worker_hooks()

    def init_attention_backends(self) -> None:
        super().init_attention_backends()
        require_tree_backend(self.model_runner.attn_backend)
        if self._need_mamba_verify_commit:
            raise RuntimeError("DDTREE does not support targets with Mamba state.")

    def init_cuda_graphs(self) -> None:
        super().init_cuda_graphs()
        if self._draft_sampler is None:
            self._draft_sampler = self._maybe_build_draft_sampler()
        capacity = int(self._draft_sampler.tokens.shape[0])
        self._buffers = StepBuffers.allocate(
            capacity, self.block_size, self.settings.width, torch.device(self.device)
        )
        self._kv_mover = KVMover(self.model_runner.token_to_kv_pool)
        self._widths = VerifyWidths(self.model_runner, self.settings.width)
        for width in self.settings.widths:
            self._widths.capture(self.server_args, width)
        if self.settings.self_check:
            check_tree_mask(verify_backend_of(self.model_runner.attn_backend))

    def _maybe_build_draft_sampler(self) -> TreeSampler:
        head = getattr(self._target_worker.model_runner.model, "lm_head", None)
        weight = getattr(head, "weight", None)
        if weight is None or not torch.is_floating_point(weight):
            raise RuntimeError("DDTREE needs the target's lm_head as a floating-point weight.")
        tp_group = get_tp_group()
        shard = getattr(head, "shard_indices", None)
        if shard is None and tp_group.world_size > 1:
            raise RuntimeError("DDTREE at TP > 1 needs a vocabulary-parallel lm_head.")
        if shard is not None and int(shard.num_added_elements):
            raise RuntimeError("DDTREE does not support added vocabulary.")
        decode_bs = self.server_args.cuda_graph_config.decode.bs or [1]
        return TreeSampler(
            weight=weight,
            vocab=int(weight.shape[0] if shard is None else shard.num_org_elements),
            first_id=0 if shard is None else int(shard.org_vocab_start_index),
            block=self.block_size,
            width=self.settings.width,
            topk=self.settings.topk,
            capacity=max(*decode_bs, self.model_runner.max_running_requests),
            spine_first=self.settings.spine_first,
            tp_group=tp_group if tp_group.world_size > 1 else None,
        )

    # -- runtime switch ---------------------------------------------------------------------

    def set_budget(self, budget: int) -> None:
        """Verify trees of `budget` nodes from the next step on; 0 is DFLASH's chain.

        Raises ValueError outside 0..N - 1.
        """
        if not 0 <= budget <= self.settings.budget:
            raise ValueError(
                f"speculative_ddtree_budget must lie in 0..{self.settings.budget} "
                f"(--speculative-num-draft-tokens - 1), got {budget}."
            )
        self.budget = budget

    def budget_state(self) -> dict[str, Any]:
        """What /server_info shows of the tree."""
        return {
            "budget": self.budget,
            "block": self.block_size,
            "topk": self.settings.topk,
            "spine_first": self.settings.spine_first,
            "widths": sorted(self._widths.by_width) if self._widths else [],
        }

    def _plan(self, bs: int) -> StepPlan:
        assert self._widths is not None
        chain = self.budget == 0
        entry = self._widths.at_least(self.block_size if chain else self.budget + 1)
        return StepPlan(entry=entry, budget=self.budget, chain=chain)

    # -- one step ---------------------------------------------------------------------------

    def forward_batch_generation(
        self, batch: Any, on_publish: Callable[[torch.Tensor], None] | None = None
    ) -> GenerationBatchResult:
        extend = batch.forward_mode.is_extend() or batch.is_extend_in_batch
        if extend or batch.forward_mode.is_idle() or batch.return_logprob:
            return super().forward_batch_generation(batch, on_publish)
        if not isinstance(batch.spec_info, DFlashDraftInputV2):
            raise RuntimeError("DDTREE expected DFlashDraftInputV2 state on the running batch.")
        batch.seq_lens.record_stream(torch.cuda.current_stream())
        plan = self._plan(len(batch.seq_lens))
        draft_input = batch.spec_info
        positions, cache_locs = self._draft(batch, draft_input)
        logits_output, can_run_cuda_graph = self._verify(batch, draft_input, plan)
        return self._accept(
            batch, plan, logits_output, can_run_cuda_graph, positions, cache_locs, on_publish
        )

    def _draft(
        self, batch: Any, draft_input: DFlashDraftInputV2
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the drafter over [bonus, mask...]; the tree stands in `_draft_sampler` after it.

        Returns positions and cache slots [bs, L] of the L tokens from seq_len on.
        """
        bs, block = len(batch.seq_lens), self.block_size
        self._ensure_draft_block_buffers(bs)
        block_ids = self._draft_block_ids_buf[:bs]
        positions = self._draft_block_positions_buf[:bs]
        cache_locs = self._draft_verify_out_cache_loc_buf[:bs]
        _prepare_dflash_draft_block_unchecked(
            bonus_tokens=draft_input.bonus_tokens.view(-1),
            prefix_lens=batch.seq_lens.view(-1),
            req_pool_indices=batch.req_pool_indices.view(-1),
            req_to_token=self.model_runner.req_to_token_pool.req_to_token,
            block_ids_out=block_ids,
            positions_out=positions,
            cache_loc_out=cache_locs,
            mask_token_id=int(self._mask_token_id),
        )
        embed = self.target_worker.model_runner.model.get_input_embeddings()
        input_embeds = embed(block_ids).view(bs * block, -1)
        seq_lens, seq_lens_cpu, seq_lens_sum = self._draft_lengths(batch, draft_input, cache_locs)
        forward_batch = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=bs,
            input_ids=block_ids.view(-1),
            req_pool_indices=batch.req_pool_indices,
            seq_lens=seq_lens,
            out_cache_loc=cache_locs.view(-1),
            seq_lens_sum=seq_lens_sum,
            seq_lens_cpu=seq_lens_cpu,
            positions=positions.view(-1),
            input_embeds=input_embeds,
            spec_algorithm=SpeculativeAlgorithm.DFLASH,
            spec_info=self._draft_block_spec_info,
            capture_hidden_mode=CaptureHiddenMode.NULL,
        )
        with torch.inference_mode():
            out = self.draft_model_runner.forward(forward_batch)
            if not out.can_run_graph:
                self._draft_sampler(out.logits_output.hidden_states, block_ids.view(-1))
        return positions, cache_locs

    def _draft_lengths(
        self, batch: Any, draft_input: DFlashDraftInputV2, cache_locs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Prefix lengths that the drafter sees: on the device, a bound on the host, its sum."""
        bs = len(batch.seq_lens)
        host = self._draft_seq_lens_cpu_buf[:bs]
        if self.use_compact_draft_cache:
            lens = self._compute_compact_draft_seq_lens(batch.seq_lens)
            self._fill_compact_seq_lens_cpu_bound(
                batch_seq_lens_cpu=batch.seq_lens_cpu,
                reserved_seq_lens_cpu=draft_input.reserved_seq_lens_cpu,
                draft_prefix_lens=lens,
                out=host,
            )
            self._rebuild_compact_draft_cache(
                req_pool_indices=batch.req_pool_indices,
                prefix_lens=batch.seq_lens,
                draft_prefix_lens=lens,
                verify_out_cache_loc_2d=cache_locs,
                bs=bs,
                block_size=self.block_size,
            )
            return lens, host, int(host.sum())
        if batch.seq_lens_cpu is not None:
            host.copy_(batch.seq_lens_cpu)
            host.add_(self.block_size)
        else:
            host.copy_(draft_input.reserved_seq_lens_cpu)
        return batch.seq_lens, host, int(host.sum())

    def _verify(
        self, batch: Any, draft_input: DFlashDraftInputV2, plan: StepPlan
    ) -> tuple[Any, bool]:
        """One target forward over the tree; returns its logits output and whether it replayed."""
        bs, width = len(batch.seq_lens), plan.width
        buffers = self._buffers
        graph_bs = plan.entry.graph_bs(bs)
        reserved = int(draft_input.reserved_seq_lens_sum)
        mask = (
            plan.entry.mask_buffer()
            if graph_bs is not None
            else torch.empty(width * (reserved + bs * width), dtype=torch.uint8, device=self.device)
        )
        tokens, parents, positions, locs = buffers.verify(bs, width)
        sampler = self._draft_sampler
        tree.verify_input(
            (sampler.tokens, sampler.parents, sampler.depths),
            sampler.ids,
            batch.seq_lens,
            batch.req_pool_indices,
            self.model_runner.req_to_token_pool.req_to_token,
            mask,
            (tokens, parents, positions, locs),
            width=width,
            budget=plan.budget,
            chain=plan.chain,
            padded_bs=bs if graph_bs is None else graph_bs,
            pad_seq_len=0 if graph_bs is None else plan.entry.runner.seq_len_fill_value,
        )
        verify_input = DFlashVerifyInput(
            draft_token=tokens,
            positions=positions,
            draft_token_num=width,
            # The graph reads the mask where it stands; one element spares its copy onto itself.
            custom_mask=mask if graph_bs is None else mask[:1],
            capture_hidden_mode=CaptureHiddenMode.FULL,
        )
        batch.out_cache_loc = locs
        with self._widths.using(plan.entry), _host_bound(batch, draft_input, width):
            forward_batch, replays = verify_input.prepare_for_verify(batch, self.target_worker)
            if graph_bs is not None and not replays:
                verify_input.custom_mask = mask
                plan.entry.attn_backend.init_forward_metadata(forward_batch)
            out = self.target_worker.forward_batch_generation(
                batch=None,
                forward_batch=forward_batch,
                is_verify=True,
                skip_attn_backend_init=True,
            )
        return out.logits_output, out.can_run_cuda_graph

    def _draw(self, batch: Any, logits_output: Any, plan: StepPlan) -> torch.Tensor:
        """The target's own draw at every node, [bs * N]: argmax, or the normal sampler's."""
        info = batch.sampling_info
        adjust_logits(logits_output.next_token_logits, info, plan.width)
        if info is None or info.is_all_greedy:
            return torch.argmax(logits_output.next_token_logits, dim=-1)

        def rows(values: torch.Tensor | None) -> torch.Tensor | None:
            return None if values is None else values.repeat_interleave(plan.width, dim=0)

        node_info = SimpleNamespace(
            temperatures=rows(info.temperatures),
            top_ps=rows(info.top_ps),
            top_ks=rows(info.top_ks),
            min_ps=rows(info.min_ps),
            sampling_seed=rows(info.sampling_seed),
            need_top_p_sampling=info.need_top_p_sampling,
            need_top_k_sampling=info.need_top_k_sampling,
            need_min_p_sampling=info.need_min_p_sampling,
            is_all_greedy=False,
            has_custom_logit_processor=False,
            return_sampling_masks=None,
            grammars=None,
        )
        positions = self._buffers.verify(len(batch.seq_lens), plan.width)[2]
        drawn = self.model_runner.sampler(logits_output, node_info, False, [], [], positions)
        drawn = drawn.to(torch.int64)
        group = get_tp_group()
        if group.world_size > 1:
            group.broadcast(drawn, src=0)
        return drawn

    def _accept(
        self,
        batch: Any,
        plan: StepPlan,
        logits_output: Any,
        can_run_cuda_graph: bool,
        positions: torch.Tensor,
        cache_locs: torch.Tensor,
        on_publish: Callable[[torch.Tensor], None] | None,
    ) -> GenerationBatchResult:
        """Walk the trees, publish the lengths, then commit KV and draft features of the paths."""
        bs = len(batch.seq_lens)
        tokens, parents, _, locs = self._buffers.verify(bs, plan.width)
        rows, src, dst, path = self._buffers.paths(bs)
        _, commit_lens, bonus, out_tokens, new_seq_lens = self._next_accept_bonus_buffers(bs)
        path_kernels.accept(
            tokens,
            parents,
            locs,
            self._draw(batch, logits_output, plan),
            batch.seq_lens,
            (commit_lens, bonus, out_tokens, new_seq_lens, rows, src, dst, path),
            width=plan.width,
            block=self.block_size,
        )
        if on_publish is not None:
            on_publish(new_seq_lens)
        if not plan.chain:
            self._kv_mover(src, dst)
        hidden = logits_output.hidden_states
        if hidden is None:
            raise RuntimeError("DDTREE verify got no target features.")
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=hidden.index_select(0, rows.view(-1)),
            cache_loc=cache_locs.view(-1),
            cache_loc_2d=cache_locs,
            positions=positions.view(-1),
            commit_lens=commit_lens,
        )
        logits_output.hidden_states = None
        return GenerationBatchResult(
            logits_output=logits_output,
            next_token_ids=out_tokens.view(-1),
            accept_lens=commit_lens,
            can_run_cuda_graph=can_run_cuda_graph,
            next_draft_input=self._make_next_draft_input_decode(
                bonus_tokens=bonus, new_seq_lens=new_seq_lens
            ),
            speculative_num_draft_tokens=self.block_size,
            new_seq_lens=new_seq_lens,
        )


class _host_bound:  # noqa: N801 - reads as a `with` phrase
    """For one verify, the host's lengths as an upper bound: committed + width, else reserved."""

    def __init__(self, batch: Any, draft_input: DFlashDraftInputV2, width: int) -> None:
        self.batch = batch
        self.saved = batch.seq_lens_cpu, batch.seq_lens_sum
        if batch.seq_lens_cpu is not None:
            bound = batch.seq_lens_cpu + width
            self.bound = bound, int(bound.sum())
        else:
            self.bound = draft_input.reserved_seq_lens_cpu, int(draft_input.reserved_seq_lens_sum)

    def __enter__(self) -> None:
        self.batch.seq_lens_cpu, self.batch.seq_lens_sum = self.bound

    def __exit__(self, *exc: object) -> None:
        self.batch.seq_lens_cpu, self.batch.seq_lens_sum = self.saved
