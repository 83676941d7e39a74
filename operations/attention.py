"""Attention backends of SGLang 0.5.16: which may verify a draft tree, and which one to take.

A tree is verified in one forward pass whose mask lets each node see its ancestors only. A backend
that ignores the mask gives wrong text without an error, so anything that is not known to honour it
is refused. Read in the 0.5.16 sources:

| backend      | MHA | MLA | where                                                             |
|--------------|-----|-----|-------------------------------------------------------------------|
| triton       | yes | yes | triton_backend.py, kernels/ops/attention/extend_attention.py      |
| fa3          | yes | yes | flashattention_backend.py (cascade); sm_90 only                   |
| flashinfer   | yes | no  | flashinfer_backend.py; flashinfer_mla_backend.py plans causal=True |
| trtllm_mla, flashmla, cutlass_mla, tokenspeed_mla, trtllm_mha: the kernels ignore the mask     |

Of these, our patch set drives triton only: it is right on every GPU and for every model.
"""

from __future__ import annotations

from dataclasses import dataclass

from operations.plan_models import Attention

HOPPER = "9.0"
DRIVEN = "the patch set verifies trees with triton only"


@dataclass(frozen=True)
class Backends:
    """What one engine start is given. `mode` is the value of `--speculative-attention-mode`.

    With unequal `prefill` and `decode`, verification goes to the side that `mode` names; SGLang's
    default is prefill.
    """

    prefill: str
    decode: str
    reason: str
    mode: str | None = None
    page_size: int | None = None

    def arguments(self) -> tuple[str, ...]:
        if self.prefill == self.decode:
            found: tuple[str, ...] = ("--attention-backend", self.decode)
        else:
            found = (
                "--prefill-attention-backend",
                self.prefill,
                "--decode-attention-backend",
                self.decode,
            )
        if self.mode:
            found += ("--speculative-attention-mode", self.mode)
        if self.page_size:
            found += ("--page-size", str(self.page_size))
        return found


def tree_mask_fault(backend: str, attention: Attention, compute_cap: str | None) -> str | None:
    """Why `backend` can't verify a draft tree on such a GPU, or None if it can."""
    if backend == "triton":
        return None
    if backend == "fa3":
        if compute_cap == HOPPER:
            return f"fa3 honours tree masks on sm_90, but {DRIVEN}"
        return f"fa3 has kernels for sm_90 only, this is {sm(compute_cap)}; {DRIVEN}"
    if backend == "flashinfer":
        if attention is Attention.MHA:
            return f"flashinfer honours tree masks for MHA, but {DRIVEN}"
        return "flashinfer drops the tree mask for MLA and verifies as if it were a chain"
    return f"{backend} ignores the tree mask; {DRIVEN}"


def sm(compute_cap: str | None) -> str:
    """ "10.3" -> "sm_103"."""
    return f"sm_{compute_cap.replace('.', '')}" if compute_cap else "an unknown architecture"


def choose_backends(
    algorithm: str | None,
    attention: Attention,
    compute_cap: str | None,
    override: str | None = None,
    page_size: int | None = None,
) -> Backends:
    """The backends for one engine start; `algorithm` is None, "DFLASH" or "DDTREE".

    A start without a tree gets the fastest backend that SGLang has for it, so that trees are
    compared with the best that they replace and not with a handicapped baseline.
    """
    if override:
        return Backends(override, override, "set in wanted", page_size=page_size)
    major = compute_cap.split(".")[0] if compute_cap else None
    if attention is Attention.UNKNOWN or major not in ("9", "10", "12"):
        reason = "right for every model and GPU, as one of them is not known to the planner"
        return Backends("triton", "triton", reason, page_size=page_size)
    tree = algorithm == "DDTREE"
    if attention is Attention.MLA:
        return _mla(major, tree, page_size)
    return _mha(major, algorithm, page_size)


def _mla(major: str, tree: bool, page_size: int | None) -> Backends:
    if major == "12":
        reason = (
            "MLA on sm_120: the only backend that runs (trtllm_mla, tokenspeed_mla and fa3 have no "
            "kernels for it), and it honours tree masks"
        )
        return Backends("triton", "triton", reason, page_size=page_size)
    if major == "10" and tree:
        reason = (
            "MLA on sm_10x: the default trtllm_mla ignores tree masks, so verification goes to "
            "triton and only prefill stays on trtllm_mla, whose pages must be 64"
        )
        return Backends("trtllm_mla", "triton", reason, mode="decode", page_size=page_size or 64)
    if major == "10":
        reason = "MLA on sm_10x without a tree: SGLang's own choice, in pages of 64"
        return Backends("trtllm_mla", "trtllm_mla", reason, page_size=page_size or 64)
    if tree:
        reason = "MLA on sm_90: honours tree masks at any page size"
        return Backends("triton", "triton", reason, page_size=page_size)
    return Backends("fa3", "fa3", "MLA on sm_90: SGLang's own choice", page_size=page_size)


def _mha(major: str, algorithm: str | None, page_size: int | None) -> Backends:
    if algorithm == "DDTREE":
        reason = "MHA: honours tree masks on every GPU and compiles nothing at start but Triton"
        return Backends("triton", "triton", reason, page_size=page_size)
    if major == "9":
        return Backends("fa3", "fa3", "MHA on sm_90: SGLang's own choice", page_size=page_size)
    if major == "10" and algorithm is None:
        reason = "MHA on sm_10x: SGLang's own choice, in pages of 64"
        return Backends("trtllm_mha", "trtllm_mha", reason, page_size=page_size or 64)
    reason = f"MHA on sm_{major}x: SGLang's own choice"
    return Backends("flashinfer", "flashinfer", reason, page_size=page_size)
