"""The Triton kernels of a DDTree step against the reference engine's tree.

Needs torch and Triton, so `make test-sglang` runs it. Log-probabilities are multiples of 1/8:
their sums are exact in fp32 and in Python, and ties are common.
"""

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from refserver import tree as reference  # noqa: E402
from sglang_ddtree import attention_metadata, path, topk, tree  # noqa: E402

pytestmark = pytest.mark.sglang
# On a GPU the same tests run compiled, over fifteen times as many trees.
GPU = torch.cuda.is_available()
torch.set_default_device("cuda" if GPU else "cpu")
DEVICE = torch.get_default_device()


def draw_lists(rng, steps, k, levels):
    """Falling log-probabilities of few distinct values, and distinct token ids, for each depth."""
    logp = [
        sorted((-rng.randrange(levels) / 8 for _ in range(k)), reverse=True) for _ in range(steps)
    ]
    ids = [rng.sample(range(1000), k) for _ in range(steps)]
    return logp, ids


def build(logp, ids, roots, width, spine_first=False):
    """Run the kernel; logp and ids are lists [bs][L-1][K]. Returns tokens, parents, depths."""
    bs = len(logp)
    out = [torch.full((bs, width), -7, dtype=torch.int32) for _ in range(3)]
    tree.build_tree(
        torch.tensor(logp, dtype=torch.float32),
        torch.tensor(ids, dtype=torch.int32),
        torch.tensor(roots, dtype=torch.int64),
        *out,
        spine_first=spine_first,
    )
    return out


@pytest.mark.parametrize("spine_first", [False, True])
@pytest.mark.parametrize(
    "block, k, width, cases, levels",
    [
        (4, 3, 6, 600, 3),
        (3, 4, 5, 400, 8),
        (3, 2, 12, 60, 4),
        (8, 16, 17, 40, 12),
        (16, 16, 17, 20, 2),
        (16, 32, 33, 6, 40),
    ],
)
def test_tree_is_the_heaps_tree_with_ties(block, k, width, cases, levels, spine_first):
    rng = random.Random(f"{block} {k} {width} {spine_first}")
    count = (cases // 4 if spine_first else cases) * (15 if GPU else 1)
    lists = [draw_lists(rng, block - 1, k, levels) for _ in range(count)]
    # all cases in one launch: the interpreter's price is by the launch
    built = build([x[0] for x in lists], [x[1] for x in lists], [5] * count, width, spine_first)
    for (logp, ids), tokens, parents, depths in zip(
        lists, *(part.tolist() for part in built), strict=True
    ):
        expected = reference.best_first(5, logp, ids, width - 1, spine_first)
        used = expected.width
        assert tuple(tokens[:used]) == expected.tokens
        assert tuple(parents[:used]) == expected.parents
        assert tuple(depths[:used]) == expected.depths
        assert parents[used:] == [-1] * (width - used)


def test_a_budgets_tree_is_a_prefix_of_a_larger_budgets_tree():
    rng = random.Random(3)
    logp, ids = draw_lists(rng, 7, 8, 20)
    wide = build([logp], [ids], [1], 33)
    narrow = build([logp], [ids], [1], 12)
    for one, other in zip(wide, narrow, strict=True):
        assert one[0, :12].tolist() == other[0].tolist()


def test_impossible_tokens_never_enter_the_tree():
    minus = float("-inf")
    logp = [[-0.5, minus, minus], [-0.25, -1.0, minus]]
    tokens, parents, _ = build([logp], [[[1, 2, 3], [4, 5, 6]]], [9], 8)
    assert tokens[0].tolist() == [9, 1, 4, 5, 0, 0, 0, 0]
    assert parents[0].tolist() == [-1, 0, 1, 1, -1, -1, -1, -1]


@pytest.mark.parametrize("vocab", [700, 512, 1531])
def test_topk_is_the_full_vocabularys_with_ties_to_the_lower_id(vocab):
    generator = torch.Generator(DEVICE).manual_seed(vocab)
    logits = torch.randint(-12, 12, (3, vocab), generator=generator).float() / 4
    logits[1, 7] = float("nan")
    k = 8
    logp, ids = torch.empty((3, k)), torch.empty((3, k), dtype=torch.int32)
    topk.topk_logprobs(logits, topk.topk_workspace(3, vocab, k, DEVICE), logp, ids)
    clean = logits.nan_to_num(nan=float("-inf"))
    for row in range(3):
        order = sorted(range(vocab), key=lambda i: (-clean[row, i].item(), i))[:k]
        assert ids[row].tolist() == order
        expected = clean[row].log_softmax(-1)[order]
        torch.testing.assert_close(logp[row], expected, atol=1e-5, rtol=1e-5)


def test_ranks_shares_merge_into_the_full_vocabularys_topk():
    generator = torch.Generator(DEVICE).manual_seed(1)
    rows, vocab, k, ranks = 2, 1200, 4, 2
    logits = torch.randint(-20, 20, (rows, vocab), generator=generator).float() / 8
    half = vocab // ranks
    packed = torch.empty((ranks, rows, k), dtype=torch.int64)
    lse = torch.empty((ranks, rows))
    for rank in range(ranks):
        workspace = topk.topk_workspace(rows, half, k, DEVICE)
        shard = logits[:, rank * half : (rank + 1) * half].contiguous()
        topk.rank_topk(shard, workspace, rank * half, packed[rank], lse[rank])
    logp, ids = torch.empty((rows, k)), torch.empty((rows, k), dtype=torch.int32)
    topk.merge_ranks(packed, lse, torch.ones((ranks, rows)), logp, ids)
    full_logp, full_ids = torch.empty((rows, k)), torch.empty((rows, k), dtype=torch.int32)
    workspace = topk.topk_workspace(rows, vocab, k, DEVICE)
    topk.topk_logprobs(logits, workspace, full_logp, full_ids)
    assert ids.tolist() == full_ids.tolist()
    torch.testing.assert_close(logp, full_logp, atol=1e-5, rtol=1e-5)


def verify(trees, ids, seq_lens, width, budget, *, chain=False, padded_bs=None, pad=1):
    """Run the verify-input kernel; returns tokens, parents, positions, slots and the flat mask."""
    bs = len(seq_lens)
    padded_bs = padded_bs or bs
    total = sum(width * (s + width) for s in seq_lens) + (padded_bs - bs) * width * (pad + width)
    mask = torch.full((total,), 9, dtype=torch.uint8)
    out = (
        torch.full((bs * width,), -5, dtype=torch.int64),
        torch.full((bs * width,), -5, dtype=torch.int32),
        torch.full((bs * width,), -5, dtype=torch.int64),
        torch.full((bs * width,), -5, dtype=torch.int64),
    )
    slots = torch.arange(200, dtype=torch.int32).view(2, 100) + 1000
    tree.verify_input(
        trees,
        torch.tensor(ids, dtype=torch.int32),
        torch.tensor(seq_lens, dtype=torch.int64),
        torch.tensor([1, 0][:bs], dtype=torch.int64),
        slots,
        mask,
        out,
        width=width,
        budget=budget,
        chain=chain,
        padded_bs=padded_bs,
        pad_seq_len=pad,
    )
    return *out, mask


def mask_blocks(mask, lengths, width):
    """The [W, W] tree columns of each request; all other entries must be untouched."""
    blocks, start = [], 0
    for length in lengths:
        rows = mask[start : start + width * (length + width)].view(width, length + width)
        assert (rows[:, :length] == 9).all()
        blocks.append(rows[:, length:])
        start += width * (length + width)
    return blocks


def test_verify_input_is_the_tree_with_ancestor_mask_and_depth_positions():
    rng = random.Random(11)
    lists = [draw_lists(rng, 7, 8, 10) for _ in range(2)]
    logp, ids = [x[0] for x in lists], [x[1] for x in lists]
    trees = build(logp, ids, [1, 2], 17)
    seq_lens, width = [5, 9], 17
    tokens, parents, positions, slots, mask = verify(trees, ids, seq_lens, width, 16, padded_bs=4)
    blocks = mask_blocks(mask, [*seq_lens, 1, 1], width)
    for b in range(2):
        expected = reference.best_first(b + 1, logp[b], ids[b], 16)
        part = slice(b * width, (b + 1) * width)
        assert tuple(tokens[part].tolist()) == expected.tokens
        assert tuple(parents[part].tolist()) == expected.parents
        assert positions[part].tolist() == [seq_lens[b] + d for d in expected.depths]
        assert blocks[b].bool().cpu().tolist() == expected.mask().tolist()
    assert slots[:17].tolist() == [1105 + i for i in range(17)]
    assert slots[17:].tolist() == [1009 + i for i in range(17)]
    for padding in blocks[2:]:
        assert padding.tolist() == torch.eye(width, dtype=torch.uint8).tolist()


def test_nodes_past_the_budget_see_themselves_only_and_are_nobodys_child():
    rng = random.Random(12)
    logp, ids = draw_lists(rng, 7, 8, 10)
    trees = build([logp], [ids], [1], 17)
    _, parents, _, _, mask = verify(trees, [ids], [3], 17, 5)
    (block,) = mask_blocks(mask, [3], 17)
    expected = reference.best_first(1, logp, ids, 5)
    assert parents.tolist() == [*expected.parents, *[-1] * 11]
    assert block[:6, :6].bool().tolist() == expected.mask().tolist()
    assert block[6:].tolist() == torch.eye(17, dtype=torch.uint8)[6:].tolist()


def test_chain_is_the_top_candidate_of_each_position():
    rng = random.Random(13)
    logp, ids = draw_lists(rng, 7, 4, 10)
    trees = build([logp], [ids], [42], 12)
    tokens, parents, positions, _, mask = verify(trees, [ids], [4], 9, 0, chain=True)
    (block,) = mask_blocks(mask, [4], 9)
    expected = reference.chain(42, [row[0] for row in ids])
    assert tuple(tokens[:8].tolist()) == expected.tokens
    assert tuple(parents[:8].tolist()) == expected.parents and parents[8] == -1
    assert positions[:8].tolist() == [4 + i for i in range(8)]
    assert block[:8, :8].bool().tolist() == expected.mask().tolist()


def accept(tokens, parents, targets, seq_lens, block, **counting):
    """Run the accept kernel on [bs][W] lists; returns its outputs, slots being 100 * b + node."""
    counting.setdefault("spine", torch.zeros((len(tokens), block - 1, 1), dtype=torch.int32))
    bs, width = len(tokens), len(tokens[0])
    locs = torch.tensor([[100 * b + n for n in range(width)] for b in range(bs)]).view(-1)
    out = (
        torch.zeros(bs, dtype=torch.int32),
        torch.zeros(bs, dtype=torch.int64),
        torch.zeros((bs, block), dtype=torch.int64),
        torch.zeros(bs, dtype=torch.int64),
        torch.zeros((bs, block), dtype=torch.int64),
        torch.zeros((bs, block), dtype=torch.int64),
        torch.zeros((bs, block), dtype=torch.int64),
    )
    path.accept(
        torch.tensor(tokens).view(-1),
        torch.tensor(parents, dtype=torch.int32).view(-1),
        locs,
        torch.tensor(targets).view(-1),
        torch.tensor(seq_lens),
        out,
        width=width,
        **counting,
    )
    return out


def test_accept_walk_is_the_references_walk():
    rng = random.Random(21)
    block, width = 8, 17
    for _ in range(25):
        logp, ids = draw_lists(rng, block - 1, 3, 4)
        expected_tree = reference.best_first(1, logp, ids, width - 1)
        pad = width - expected_tree.width
        tokens = [*expected_tree.tokens, *[0] * pad]
        parents = [*expected_tree.parents, *[-1] * pad]
        # the target often draws a token that the drafter proposed for the next depth
        depths = [*expected_tree.depths, *[0] * pad]
        targets = [
            rng.choice([*ids[min(d, block - 2)], 777]) if rng.random() < 0.9 else 0 for d in depths
        ]
        nodes, bonus = reference.walk(expected_tree, lambda n, t=targets: t[n])
        commit, got_bonus, out, new_lens, rows, src, dst = accept(
            [tokens], [parents], [targets], [30], block
        )
        count = len(nodes)
        assert commit.tolist() == [count] and got_bonus.tolist() == [bonus]
        assert new_lens.tolist() == [30 + count]
        emitted = [*(expected_tree.tokens[n] for n in nodes[1:]), bonus]
        assert out[0, :count].tolist() == emitted
        assert rows[0, :count].tolist() == nodes
        assert src[0, :count].tolist() == nodes
        assert dst[0, :count].tolist() == list(range(count))
        assert src[0, count:].tolist() == dst[0, count:].tolist()


def test_rows_and_slots_of_the_second_request_are_its_own():
    tokens, parents = [[1, 5, 6, 7]] * 2, [[-1, 0, 0, 2]] * 2
    commit, bonus, out, _, rows, src, dst = accept(
        tokens, parents, [[5, 9, 0, 0], [6, 0, 7, 8]], [10, 20], 3
    )
    assert commit.tolist() == [2, 3] and bonus.tolist() == [9, 8]
    assert out.tolist() == [[5, 9, 0], [6, 7, 8]]
    assert rows.tolist()[1] == [4, 6, 7]
    assert src.tolist()[1] == [100, 102, 103] and dst.tolist()[1] == [100, 101, 102]


def test_counts_are_what_each_budget_would_have_emitted():
    rng = random.Random(31)
    block, width, budgets = 6, 13, [0, 2, 5, 12]
    for _ in range(12):
        logp, ids = draw_lists(rng, block - 1, 3, 4)
        full = reference.best_first(1, logp, ids, width - 1)
        targets = [rng.choice(ids[min(d, block - 2)][:2]) for d in full.depths]
        counts = torch.zeros(1 + len(budgets), dtype=torch.int32)
        accept(
            [list(full.tokens)],
            [list(full.parents)],
            [targets],
            [3],
            block,
            spine=torch.tensor([ids], dtype=torch.int32),
            limits=torch.tensor(budgets, dtype=torch.int32),
            counts=counts,
        )
        path_nodes, _ = reference.walk(full, lambda n, t=targets: t[n])
        top = [row[0] for row in ids]
        on_chain = 1
        while on_chain < len(path_nodes) and full.tokens[path_nodes[on_chain]] == top[on_chain - 1]:
            on_chain += 1
        expected = [on_chain, *(sum(n <= b for n in path_nodes) for b in budgets[1:])]
        assert counts.tolist() == [1, *expected]


def test_metadata_is_what_the_triton_backend_builds_with_many_launches():
    seq_lens = torch.tensor([3, 700, 0, 1], dtype=torch.int64)
    pools = torch.tensor([2, 0, 1, 1], dtype=torch.int64)
    table = torch.arange(3 * 900, dtype=torch.int32).view(3, 900)
    width = 5
    qo = torch.zeros(6, dtype=torch.int64)
    kv = torch.zeros(6, dtype=torch.int32)
    masks = torch.zeros(6, dtype=torch.int64)
    indices = torch.full((800,), -1, dtype=torch.int64)
    attention_metadata.fill_verify_metadata(seq_lens, pools, table, (qo, kv, indices, masks), width)
    assert qo[:5].tolist() == [0, 5, 10, 15, 20]
    assert kv[:5].tolist() == [0, 3, 703, 703, 704]
    assert masks[1:5].tolist() == torch.cumsum(width * (seq_lens + width), 0).tolist()
    expected = torch.cat([table[p, :n] for p, n in zip(pools, seq_lens, strict=True)])
    assert indices[:704].tolist() == expected.tolist()
    assert (indices[704:] == -1).all() and qo[5] == kv[5] == masks[5] == 0
