"""Penalties at the nodes of a tree, against SGLang's own penalizers fed with every token before.

Needs torch and SGLang, so `make test-sglang` runs it.
"""

import random
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang.srt.sampling.penaltylib")

from sglang.srt.sampling.penaltylib import (  # noqa: E402
    BatchedFrequencyPenalizer,
    BatchedMinNewTokensPenalizer,
    BatchedPresencePenalizer,
    BatchedRepetitionPenalizer,
)
from sglang.srt.sampling.penaltylib.orchestrator import (  # noqa: E402
    BatchedPenalizerOrchestrator,
)
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402
from sglang_ddtree.logits import adjust_logits  # noqa: E402
from sglang_ddtree.penalties import Penalties  # noqa: E402

pytestmark = pytest.mark.sglang
VOCAB, BLOCK, WIDTH, EOS = 23, 5, 12, 3
PENALIZERS = {
    BatchedFrequencyPenalizer,
    BatchedMinNewTokensPenalizer,
    BatchedPresencePenalizer,
    BatchedRepetitionPenalizer,
}
WISHES = (
    {"frequency_penalty": 0.7},
    {"presence_penalty": 1.5, "repetition_penalty": 1.3},
    {},
    {"repetition_penalty": 0.8, "frequency_penalty": -0.4, "min_new_tokens": 6},
    {"min_new_tokens": 3, "stop_token_ids": [7, 11]},
)


@pytest.fixture(autouse=True)
def uncompiled():
    """SGLang compiles its scaling, which needs a C++ compiler and half a minute."""
    with torch._dynamo.config.patch(disable=True):
        yield


class Batch(SimpleNamespace):
    """One that can be referred to weakly, as SGLang does."""


class Request(SimpleNamespace):
    """Equal to itself only, as SGLang's Req."""

    __eq__, __hash__ = object.__eq__, object.__hash__


def request(rng, number, wish):
    tokenizer = SimpleNamespace(eos_token_id=EOS, additional_stop_token_ids=None)
    return Request(
        rid=f"r{number}", retraction_count=0, tokenizer=tokenizer,
        sampling_params=SamplingParams(**wish), origin_input_ids=rng.choices(range(VOCAB), k=4),
        output_ids=[],
    )  # fmt: skip


def batch_of(requests, outputs):
    """As the worker sees it: the device has all outputs, the host what stands in output_ids."""
    lengths = [len(req.origin_input_ids) + len(outputs[req.rid]) - 1 for req in requests]
    return SimpleNamespace(
        reqs=list(requests), seq_lens=torch.tensor(lengths),
        sampling_info=SimpleNamespace(acc_additive_penalties="not read"),
    )  # fmt: skip


def by_sglang(req, before, logits):
    """The logits [V] behind the tokens `before` by SGLang's penalizers."""
    batch = Batch(reqs=[req], device="cpu")
    orchestrator = BatchedPenalizerOrchestrator(VOCAB, batch, PENALIZERS)
    if orchestrator.is_required:
        for token in before:
            orchestrator.cumulate_output_tokens(torch.tensor([token]))
        orchestrator.apply(logits[None], repeat=1)  # sums before factors; else a set's order
    return logits


def trees(rng, roots):
    """Random trees [bs * N]: tokens, parents, depths; few tokens, so that paths repeat them."""
    tokens, parents, depths = [], [], []
    for root in roots:
        own = [0]
        tokens.append(root)
        parents.append(-1)
        for node in range(1, WIDTH):
            parent = rng.choice([n for n in range(node) if own[n] < BLOCK - 1])
            own.append(own[parent] + 1)
            tokens.append(rng.randrange(8))
            parents.append(parent)
        depths += own
    return (
        torch.tensor(tokens),
        torch.tensor(parents, dtype=torch.int32),
        torch.tensor(depths),
    )


def path_of(tokens, parents, row, node):
    path = []
    while node > 0:
        path.append(int(tokens[row * WIDTH + node]))
        node = int(parents[row * WIDTH + node])
    return path[::-1]


def check_step(rng, penalties, requests, outputs):
    """One step: every node as by SGLang. Then emits a path of the tree and a bonus token."""
    batch = batch_of(requests, outputs)
    roots = [outputs[req.rid][-1] for req in requests]
    tokens, parents, depths = trees(rng, roots)
    logits = torch.randn((len(requests) * WIDTH, VOCAB)) * 3
    expected = torch.stack(
        [
            by_sglang(
                req,
                outputs[req.rid] + path_of(tokens, parents, row, node),
                logits[row * WIDTH + node].clone(),
            )
            for row, req in enumerate(requests)
            for node in range(WIDTH)
        ]
    )
    found = penalties.of_batch(batch, torch.tensor(roots), VOCAB)
    positions = depths + batch.seq_lens.repeat_interleave(WIDTH)
    found.apply(logits, tokens, parents, positions, BLOCK - 1)
    torch.testing.assert_close(logits, expected)

    emitted = torch.randint(VOCAB, (len(requests), BLOCK))
    lengths = torch.randint(1, BLOCK + 1, (len(requests),), dtype=torch.int32)
    found.learn(emitted, lengths)
    for row, req in enumerate(requests):
        outputs[req.rid] += emitted[row, : lengths[row]].tolist()
    return emitted, lengths


@pytest.mark.parametrize("overlap", [False, True])
def test_every_node_is_penalized_as_sglang_does_after_all_tokens_before_it(overlap):
    """Over many steps, in which requests come, leave, are retracted; the host late or not."""
    rng = random.Random(overlap)
    torch.manual_seed(overlap)
    penalties, outputs, running, made = Penalties(), {}, [], 0
    seen_by_host = 0
    for _ in range(60):
        if rng.random() < 0.3 and len(running) < 4:
            req = request(rng, made, WISHES[made % len(WISHES)])
            made += 1
            outputs[req.rid] = [rng.randrange(VOCAB)]  # from the prefill
            running.insert(rng.randrange(len(running) + 1), req)
            if not overlap:
                req.output_ids = list(outputs[req.rid])
        if rng.random() < 0.15 and running:
            running.pop(rng.randrange(len(running)))
        if rng.random() < 0.15 and running:
            req = rng.choice(running)
            req.retraction_count += 1
            req.output_ids = list(outputs[req.rid])
            outputs[req.rid].append(rng.randrange(VOCAB))  # its prefill again
        if not running:
            continue
        before = {req.rid: list(outputs[req.rid]) for req in running}
        check_step(rng, penalties, running, outputs)
        for req in running:  # under overlap the host has what the step started from
            req.output_ids = before[req.rid] if overlap else list(outputs[req.rid])
            seen_by_host += len(req.output_ids)
    assert made > len(WISHES)
    assert seen_by_host > 1000


def test_nothing_is_kept_or_changed_where_no_request_asks():
    rng = random.Random(1)
    penalties = Penalties()
    req = request(rng, 0, WISHES[0])
    outputs = {req.rid: [1]}
    batch = batch_of([req], outputs)
    assert penalties.of_batch(batch, torch.tensor([1]), VOCAB) is not None
    batch.sampling_info.acc_additive_penalties = None
    assert penalties.of_batch(batch, torch.tensor([1]), VOCAB) is None
    assert penalties._batch is None


def test_the_host_works_only_when_the_requests_change():
    rng = random.Random(2)
    penalties, outputs = Penalties(), {}
    requests = [request(rng, n, wish) for n, wish in enumerate(WISHES)]
    for req in requests:
        outputs[req.rid] = [rng.randrange(VOCAB)]
    states = []
    for _ in range(3):
        check_step(rng, penalties, requests, outputs)
        states.append(penalties._batch)
    assert all(a is b for a, b in pairwise(states))


def test_a_request_that_takes_the_id_of_the_last_one_starts_anew():
    rng = random.Random(3)
    penalties, outputs = Penalties(), {}
    for wish in WISHES[:2]:
        req = request(rng, 0, wish)
        outputs[req.rid] = [rng.randrange(VOCAB)]
        for _ in range(3):
            check_step(rng, penalties, [req], outputs)


def test_a_bias_comes_on_top_of_penalties():
    bias = torch.zeros((2, VOCAB))
    bias[1, 5] = 2.0

    class Info(SimpleNamespace):
        def __len__(self):
            return 2

    info = Info(has_custom_logit_processor=False, logit_bias=bias)
    logits = torch.zeros((2 * 3, VOCAB))
    adjust_logits(logits, info, 3, penalize=lambda values: values.sub_(1.0))
    assert logits[3:, 5].tolist() == [1.0] * 3
    assert logits[:3].unique().tolist() == [-1.0]


def test_the_judge_of_the_gpu_checks_penalizes_as_sglang_does(monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "gpu")
    from judge import penalized

    rng = random.Random(4)
    output = rng.choices(range(VOCAB), k=20)
    logits = torch.randn((20, VOCAB)) * 3
    for wish in WISHES[:3]:
        req = request(rng, 0, wish)
        expected = torch.stack(
            [by_sglang(req, output[:at], logits[at].clone()) for at in range(len(output))]
        )
        torch.testing.assert_close(penalized(logits, torch.tensor(output), **wish), expected)
