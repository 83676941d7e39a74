"""Move the accepted path's KV to the front of the verify window, all layers in one launch."""

from __future__ import annotations

from typing import Any

import torch

from sglang_ddtree import path


class KVMover:
    """Copies KV rows of the target pool.

    Plain MHA pools (one [slots, heads, dim] buffer a layer for K and V) and MLA pools (one latent
    buffer a layer) go through one kernel over a table of pointers. Any other layout is left to
    the pool's own `move_kv_cache`.
    """

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        buffers = _plain_buffers(pool)
        self.max_row_bytes = 0
        if buffers:
            device = buffers[0].device
            rows = [b.stride(0) * b.element_size() for b in buffers]
            self.max_row_bytes = max(rows)
            self.pointers = torch.tensor(
                [b.data_ptr() for b in buffers], dtype=torch.int64, device=device
            )
            self.row_bytes = torch.tensor(rows, dtype=torch.int64, device=device)

    def __call__(self, src: torch.Tensor, dst: torch.Tensor) -> None:
        """src, dst: [bs, L] slots; entries past the path are the identity."""
        if self.max_row_bytes:
            path.move_rows(self.pointers, self.row_bytes, self.max_row_bytes, src, dst)
        else:
            self.pool.move_kv_cache(dst.reshape(-1), src.reshape(-1))


def _plain_buffers(pool: Any) -> list[torch.Tensor]:
    """KV buffers that are rows of slots, or nothing if this pool's layout is another one."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

    if type(pool) is MHATokenToKVPool and not getattr(pool, "use_hnd", False):
        buffers = [*pool.k_buffer, *pool.v_buffer]
    elif type(pool) is MLATokenToKVPool:
        buffers = list(pool.kv_buffer)
    else:
        return []
    slots = pool.size + pool.page_size
    plain = all(
        b.shape[0] == slots and b[0].is_contiguous() and b.stride(0) * b.element_size() % 4 == 0
        for b in buffers
    )
    return buffers if plain else []
