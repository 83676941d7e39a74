"""The split verify attention against plain attention in fp32.

Needs torch and Triton, so `make test-sglang` runs it: on the CPU in Triton's interpreter, on a GPU
compiled and in bf16 too.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from sglang_ddtree import tree_attention  # noqa: E402

pytestmark = pytest.mark.sglang
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
LENGTHS = (0, 1, 130, 700)


def random_tree(width, generator):
    """Parents of a random tree; node 0 is the root."""
    return [-1] + [int(torch.randint(0, i, (1,), generator=generator)) for i in range(1, width)]


def flat_mask(lengths, parents):
    """SGLang's layout: for each request W rows of prefix + W columns; the prefix's stay zero here,
    since a verify sees all of it whatever they say."""
    rows, starts = [], [0]
    for length, tree in zip(lengths, parents, strict=True):
        width = len(tree)
        mask = torch.zeros((width, length + width), dtype=torch.uint8)
        for node in range(width):
            seen = node
            while seen >= 0:
                mask[node, length + seen] = 1
                seen = tree[seen]
        rows.append(mask)
        starts.append(starts[-1] + mask.numel())
    return rows, torch.cat([m.flatten() for m in rows]), torch.tensor(starts)


def plain(q, k, v, k_cache, v_cache, slots, allowed, scale, k_scale, v_scale, cap):
    """q [W, H, D] of one request against its cached and its new keys, all in fp64."""
    group = q.shape[1] // k.shape[1]
    keys = torch.cat([k_cache[slots].double() * k_scale, k.double()]).repeat_interleave(group, 1)
    values = torch.cat([v_cache[slots].double() * v_scale, v.double()]).repeat_interleave(group, 1)
    score = torch.einsum("whd,nhd->hwn", q.double(), keys) * scale
    if cap:
        score = cap * torch.tanh(score / cap)
    score = score.masked_fill(~allowed[None], -torch.inf)
    return torch.einsum("hwn,nhd->whd", score.softmax(-1), values)


CASES = {
    "grouped heads": {"heads": 9, "kv_heads": 3, "dim": 64, "v_dim": 64, "width": 16},
    "one head each": {"heads": 4, "kv_heads": 4, "dim": 128, "v_dim": 128, "width": 9},
    "odd dims": {"heads": 4, "kv_heads": 2, "dim": 80, "v_dim": 80, "width": 5},
    "mla": {"heads": 8, "kv_heads": 1, "dim": 576, "v_dim": 512, "width": 12},
    "mla, plain heads": {"heads": 2, "kv_heads": 2, "dim": 192, "v_dim": 128, "width": 33},
    "wide tree": {"heads": 2, "kv_heads": 1, "dim": 32, "v_dim": 32, "width": 100},
    "capped": {"heads": 4, "kv_heads": 2, "dim": 64, "v_dim": 64, "width": 7, "cap": 5.0},
    "scaled cache": {"heads": 4, "kv_heads": 2, "dim": 64, "v_dim": 64, "width": 7, "k_scale": 0.5},
}


@pytest.mark.parametrize("mask", ["tree", "causal", "none"])
@pytest.mark.parametrize("case", CASES)
def test_it_is_plain_attention(case, mask):
    how = {"cap": 0.0, "k_scale": 1.0, **CASES[case]}
    for dtype, tolerance in ((torch.float32, 2e-4), *([(torch.bfloat16, 2e-2)] if GPU else [])):
        compare(how, mask, dtype, tolerance)


def compare(how, mask, dtype, tolerance):
    generator = torch.Generator().manual_seed(7)
    width, heads, kv_heads = how["width"], how["heads"], how["kv_heads"]

    def random(*shape):
        return torch.randn(shape, generator=generator).to(DEVICE, dtype)

    tokens = len(LENGTHS) * width
    q = random(tokens, heads, how["dim"])
    k, v = random(tokens, kv_heads, how["dim"]), random(tokens, kv_heads, how["v_dim"])
    k_cache, v_cache = random(900, kv_heads, how["dim"]), random(900, kv_heads, how["v_dim"])
    slots = [torch.randperm(900, generator=generator)[:n].to(DEVICE) for n in LENGTHS]
    parents = [random_tree(width, generator) for _ in LENGTHS]
    rows, flat, starts = flat_mask(LENGTHS, parents)
    indptr = torch.tensor([0, *LENGTHS]).cumsum(0).to(DEVICE, torch.int32)
    out = torch.empty((tokens, heads, how["v_dim"]), dtype=dtype, device=DEVICE)
    ran = tree_attention.verify_attention(
        q, k, v, out, k_cache, v_cache,
        torch.arange(0, tokens + 1, width, device=DEVICE), indptr, torch.cat(slots),
        flat.to(DEVICE) if mask == "tree" else None, mask != "none", starts.to(DEVICE),
        width, how["k_scale"], 0.7, 0.11, logit_cap=how["cap"], sm_count=8,
    )  # fmt: skip
    assert ran
    for b, length in enumerate(LENGTHS):
        new = {
            "tree": rows[b][:, length:].bool(),
            "causal": torch.ones((width, width), dtype=torch.bool).tril(),
            "none": torch.ones((width, width), dtype=torch.bool),
        }[mask]
        allowed = torch.cat([torch.ones((width, length), dtype=torch.bool), new], 1).to(DEVICE)
        mine = slice(b * width, (b + 1) * width)
        expected = plain(
            q[mine], k[mine], v[mine], k_cache, v_cache, slots[b], allowed,
            0.11, how["k_scale"], 0.7, how["cap"],
        )  # fmt: skip
        error = (out[mine].double() - expected).abs().max().item()
        assert error < tolerance, f"request {b} of {length} cached tokens: off by {error}"


def test_what_it_cannot_do_is_left_to_sglang():
    q = torch.zeros((4, 2, 32), device=DEVICE)
    cache = torch.zeros((8, 2, 32), device=DEVICE)
    indptr = torch.tensor([0, 4], device=DEVICE)
    words = (q, q, q, torch.empty_like(q), cache, cache, indptr, indptr, indptr, None, True, None)
    sink = torch.zeros(2, device=DEVICE)
    for unfit in ({"sliding_window_size": 16}, {"sinks": sink}, {"xai_temperature_len": 8}):
        assert not tree_attention.verify_attention(*words, 4, 1.0, 1.0, **unfit)
    assert not tree_attention.verify_attention(*words, 3, 1.0, 1.0)  # not W nodes for each


def test_a_tile_that_the_card_refuses_is_passed_over(monkeypatch):
    large, small = tree_attention.tile_shapes(64, 64, 4)
    monkeypatch.setattr(tree_attention, "_TOO_LARGE", {(64, large)})
    compare({**CASES["capped"], "k_scale": 1.0}, "tree", torch.float32, 2e-4)
    monkeypatch.setattr(tree_attention, "_TOO_LARGE", {(64, large), (64, small)})
    with pytest.raises(AssertionError):
        compare({**CASES["capped"], "k_scale": 1.0}, "tree", torch.float32, 2e-4)


def test_every_shape_has_a_tile_that_fits_a_small_card():
    for dim in (32, 64, 80, 128, 192, 256, 576):
        for queries in (5, 16, 33, 512):
            rows, cols, _, stages = tree_attention.tile_shapes(dim, queries, 2)[-1]
            assert (rows + 2 * stages * cols) * dim * 2 < 99 << 10


@pytest.mark.parametrize("programs, bytes_a_split, expected", [
    (3, 1 << 10, 32), (64, 1 << 10, 5), (1000, 1 << 10, 1), (1, 100 << 20, 2), (1, 1 << 30, 1),
])  # fmt: skip
def test_splits_fill_the_card_and_fit_the_scratch(programs, bytes_a_split, expected):
    assert tree_attention.split_count(programs, bytes_a_split, 132) == expected
