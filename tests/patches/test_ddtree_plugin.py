"""Does the plugin fit the SGLang that it is for? Needs SGLang installed; no GPU."""

import inspect
from types import SimpleNamespace

import pytest

pytest.importorskip("sglang")

from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang_ddtree import algorithm, hooks, plugin

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def registered():
    plugin.register()
    hooks.register_worker_hooks()
    return SpeculativeAlgorithm.from_string("ddtree")


def test_the_name_is_known_and_overlap_stays_on(registered):
    assert registered.name == "DDTREE" and registered.supports_overlap


def test_it_answers_whatever_the_schedulers_ask_of_an_algorithm(registered):
    asked = {name for name, _ in inspect.getmembers(SpeculativeAlgorithm.DFLASH, callable)}
    asked = {name for name in asked if not name.startswith("_")} - {"register", "from_string"}
    assert [name for name in sorted(asked) if not hasattr(registered, name)] == []
    assert registered.is_dflash_family() and not registered.is_eagle()
    assert not registered.need_topk() and not registered.carries_draft_hidden_states()


def test_draft_and_target_keep_their_own_widths(registered):
    for width, draft in ((16, True), (33, False)):
        assert registered.get_num_tokens_per_req_for_target_verify(width, draft) == width


def test_every_hook_found_its_target(registered):
    missing = [target for target in HookRegistry._hooks if target not in HookRegistry._patched]
    assert missing == [] and len(HookRegistry._patched) == 4


def test_the_mask_is_kept_in_the_targets_graph_and_in_no_other(registered):
    def runner(name, draft):
        spec = SimpleNamespace(spec_algorithm=SimpleNamespace(name=name), is_draft_worker=draft)
        return SimpleNamespace(model_runner=spec, buffers=SimpleNamespace(custom_mask="mask"))

    kept = [
        hooks.keep_mask_in_graph(SimpleNamespace(custom_mask=None), runner(*who), 8).custom_mask
        for who in (("DDTREE", False), ("DDTREE", True), ("DFLASH", False))
    ]
    assert kept == ["mask", None, None]


@pytest.mark.parametrize("backend", ["trtllm_mla", "flashinfer", "fa3"])
def test_a_verify_backend_without_a_tree_mask_is_refused_by_name(backend, monkeypatch):
    monkeypatch.setattr(algorithm, "verify_backend", lambda _: backend)
    with pytest.raises(ValueError, match=f"{backend}.*--attention-backend triton"):
        algorithm.check_verify_backend(None)


def test_the_worker_overrides_methods_that_the_base_has():
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
    from sglang_ddtree.worker import DDTreeWorker

    for name in (
        "init_attention_backends", "init_cuda_graphs", "_maybe_build_draft_sampler",
        "forward_batch_generation", "_append_target_hidden_to_draft_kv_by_loc",
        "_next_accept_bonus_buffers", "_ensure_draft_block_buffers",
    ):  # fmt: skip
        assert hasattr(DFlashWorkerV2, name) and hasattr(DDTreeWorker, name)
    ours = inspect.signature(DDTreeWorker.forward_batch_generation)
    base = inspect.signature(DFlashWorkerV2.forward_batch_generation)
    assert list(ours.parameters) == list(base.parameters)


def test_sglang_has_the_place_where_our_attention_goes_and_hands_it_the_same_arguments():
    from sglang.kernels.ops.attention.verify_splitkv import verify_splitkv_fwd
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    from sglang_ddtree.tree_attention import verify_attention

    source = inspect.getsource(TritonAttnBackend.forward_extend)
    assert "self.use_verify_splitkv" in source and "self.verify_splitkv_fwd(" in source
    theirs = list(inspect.signature(verify_splitkv_fwd).parameters)
    ours = list(inspect.signature(verify_attention).parameters)
    renamed = {
        "q_extend": "q", "k_extend": "k", "v_extend": "v", "o_extend": "out",
        "k_buffer": "k_cache", "v_buffer": "v_cache", "max_len_extend": "width",
    }  # fmt: skip
    assert [renamed.get(name, name) for name in theirs[:16]] == ours[:16]
    for name in ("logit_cap", "sliding_window_size", "sinks", "xai_temperature_len"):
        assert name in theirs and name in ours


def test_torch_compile_does_not_trace_into_our_attention(monkeypatch):
    import torch
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    from sglang_ddtree import tree_attention

    card = SimpleNamespace(multi_processor_count=8)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    traced = []

    def kernel(*_, **__):
        traced.append(torch.compiler.is_compiling())
        return True

    monkeypatch.setattr(tree_attention, "verify_attention", kernel)
    backend = object.__new__(TritonAttnBackend)
    backend.device, backend.use_verify_splitkv = "cuda", False
    assert tree_attention.use_tree_attention(backend) and backend.use_verify_splitkv
    torch.compile(lambda x: x + 1 if backend.verify_splitkv_fwd(x) else x, backend="eager")(
        torch.ones(1)
    )
    assert traced == [False]
