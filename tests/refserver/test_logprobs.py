import numpy as np
import pytest
from plain_forward import target_forward
from refserver.config import Speculation
from refserver.engine import Engine
from refserver.logprobs import LogprobWish
from refserver.output import Request
from tiny_model import byte_tokens, target_tensors

PROMPT = (70, 101, 33, 200, 150)


@pytest.fixture(scope="module")
def engine(tiny_loaded):
    return Engine(tiny_loaded, Speculation("DDTREE", "", 65))


def generate(engine, tokens=12, **wish):
    request = Request(PROMPT, tokens, ignore_eos=True, logprobs=LogprobWish(**wish))
    update = engine.generate(request)
    return update.output_ids, update.logprobs


def expected(tokens):
    """log-softmax [n, vocab] of the plain float64 forward."""
    logits, _ = target_forward(target_tensors(len(byte_tokens()), seed=1), tokens)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def test_each_output_token_has_the_target_s_log_probability(engine):
    ids, found = generate(engine, prompt_start=len(PROMPT))
    table = expected([*PROMPT, *ids])[len(PROMPT) - 1 : -1]
    assert [token for _, token in found.output] == list(ids)
    values = [value for value, _ in found.output]
    assert np.allclose(values, table[np.arange(len(ids)), list(ids)], atol=1e-4)


@pytest.mark.parametrize("chunk", [2, 3, 256])
@pytest.mark.parametrize("start", [0, 1, 3])
def test_prompt_tokens_are_scored_from_the_wished_index_on(engine, monkeypatch, chunk, start):
    monkeypatch.setattr("refserver.engine.PREFILL_CHUNK", chunk)
    _, found = generate(engine, tokens=1, prompt_start=start)
    assert [token for _, token in found.prompt] == list(PROMPT[start:])
    table = expected(PROMPT)
    wanted = [table[i - 1, PROMPT[i]] for i in range(max(start, 1), len(PROMPT))]
    values = [value for value, _ in found.prompt if value is not None]
    assert np.allclose(values, wanted, atol=1e-4)


def test_the_prompt_s_first_token_has_none(engine):
    _, found = generate(engine, tokens=1, prompt_start=0)
    assert found.prompt[0] == (None, PROMPT[0])


def test_alternatives_are_the_likeliest_tokens(engine):
    ids, found = generate(engine, prompt_start=len(PROMPT), top=3)
    table = expected([*PROMPT, *ids])[len(PROMPT) - 1 : -1]
    likeliest = np.argsort(-table, axis=1)[:, :3]
    assert [[token for _, token in row] for row in found.output_top] == likeliest.tolist()


def test_without_a_wish_there_are_none(engine):
    assert engine.generate(Request(PROMPT, 2)).logprobs is None
