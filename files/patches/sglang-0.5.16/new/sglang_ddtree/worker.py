"""DDTREE's worker: DFLASH's drafter, a best-first tree, one verify of N = budget + 1 nodes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import deepcopy
from functools import partial
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
from sglang_ddtree.attention_metadata import use_one_launch
from sglang_ddtree.budgets import Budgets
from sglang_ddtree.draw import draw_at_nodes
from sglang_ddtree.hooks import register_worker_hooks
from sglang_ddtree.kv_move import KVMover
from sglang_ddtree.penalties import Penalties
from sglang_ddtree.sampler import TreeSampler
from sglang_ddtree.self_check import check_tree_mask
from sglang_ddtree.step import StepBuffers, StepPlan, host_bound
from sglang_ddtree.tree_attention import use_tree_attention
from sglang_ddtree.widths import (
    VerifyWidths,
    require_tree_backend,
    verify_backend_of,
)

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
        self.budgets: Budgets | None = None  # from init_cuda_graphs on
        self._buffers: StepBuffers | None = None
        self._kv_mover: KVMover | None = None
        self._penalties = Penalties()
        register_worker_hooks()

    def init_attention_backends(self) -> None:
        super().init_attention_backends()
        require_tree_backend(self.model_runner.attn_backend)
        if self.settings.split_attention:
            for runner in (self.model_runner, self.draft_model_runner):
                use_tree_attention(verify_backend_of(runner.attn_backend))
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
        widths = VerifyWidths(self.model_runner, self.settings.width, self.settings.split_attention)
        for width in self.settings.widths:
            widths.capture(self.server_args, width)
        for backend in (
            self.draft_model_runner.attn_backend,
            *(entry.attn_backend for entry in widths.by_width.values()),
        ):
            use_one_launch(verify_backend_of(backend))
        self.budgets = Budgets(self.settings, widths)
        if self.settings.adaptive:
            self.budgets.choose_by_cost(
                self.draft_model_runner, get_tp_group(), torch.device(self.device)
            )
        if self.settings.self_check:
            check_tree_mask(verify_backend_of(self.model_runner.attn_backend))

    def _maybe_build_draft_sampler(self) -> TreeSampler:
        decode_bs = self.server_args.cuda_graph_config.decode.bs or [1]
        return TreeSampler.of_target(
            self._target_worker.model_runner.model,
            self.settings,
            capacity=max(*decode_bs, self.model_runner.max_running_requests),
            tp_group=get_tp_group(),
        )

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
        plan = self.budgets.plan(len(batch.seq_lens))
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
        with self.budgets.widths.using(plan.entry), host_bound(batch, draft_input, width):
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
        tokens, parents, node_positions, locs = self._buffers.verify(bs, plan.width)
        rows, src, dst = self._buffers.paths(bs)
        _, commit_lens, bonus, out_tokens, new_seq_lens = self._next_accept_bonus_buffers(bs)
        limits, counts = self.budgets.counters(plan)
        penalties = self._penalties.of_batch(
            batch, tokens.view(bs, -1)[:, 0], logits_output.next_token_logits.shape[-1]
        )
        penalize = penalties and partial(
            penalties.apply,
            tokens=tokens,
            parents=parents,
            positions=node_positions,
            depth=self.block_size - 1,
        )
        path_kernels.accept(
            tokens,
            parents,
            locs,
            draw_at_nodes(
                logits_output,
                batch.sampling_info,
                self.model_runner.sampler,
                node_positions,
                plan.width,
                penalize,
            ),
            batch.seq_lens,
            (commit_lens, bonus, out_tokens, new_seq_lens, rows, src, dst),
            width=plan.width,
            spine=self._draft_sampler.ids,
            limits=limits,
            counts=counts,
        )
        if penalties is not None:
            penalties.learn(out_tokens, commit_lens)
        self.budgets.after_step()
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
