"""The real pair: SmolLM2-135M-Instruct out of its wheel, and our drafter."""

import json
from pathlib import Path

import numpy as np
import pytest
from accept_replay import BUDGETS, PROMPTS, read_text, replay
from refserver.config import Speculation
from refserver.engine import Engine, Loaded
from refserver.output import Request

# what an fp32 reference in torch measured on the same prompts, target rounded to bf16
ACCEPT_LENGTHS = dict(zip(BUDGETS, (1.507, 1.680, 1.841, 1.984, 2.138, 2.277, 2.386), strict=True))
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def outputs():
    """Greedy outputs of plain decoding: `reference_engine.py outputs` writes them."""
    return json.loads(Path(__file__).with_name("greedy_outputs.json").read_text())


@pytest.fixture(scope="module")
def texts(builtin_loaded, outputs):
    pairs = zip(PROMPTS, outputs, strict=True)
    return [read_text(builtin_loaded, prompt, output) for prompt, output in pairs]


def test_the_stored_outputs_are_the_target_s_own_greedy_choice_at_every_token(texts, outputs):
    for text, output in zip(texts, outputs, strict=True):
        assert text.greedy[text.prompt_length - 1 : -1].tolist() == output


@pytest.mark.timeout(1800)
def test_accept_lengths_are_those_of_the_torch_reference(builtin_loaded, texts):
    counts = {}
    for text in texts:
        replay(builtin_loaded, text, BUDGETS, counts)
    found = {budget: count.accept_length for budget, count in counts.items()}
    assert found == pytest.approx(ACCEPT_LENGTHS, abs=0.02)


@pytest.mark.parametrize(
    ("algorithm", "width"), [(None, 1), ("DFLASH", 8), ("DDTREE", 9), ("DDTREE", 33)]
)
def test_each_mode_generates_the_greedy_output(builtin_loaded, outputs, algorithm, width):
    loaded, speculation = builtin_loaded, Speculation(algorithm or "", "", width)
    if algorithm is None:
        loaded, speculation = Loaded(loaded.target, loaded.tokenizer), None
    engine = Engine(loaded, speculation, context_length=256)
    prompt = loaded.tokenizer.encode_chat([{"role": "user", "content": PROMPTS[2]}])
    update = engine.generate(Request(tuple(prompt), NEW_TOKENS))
    assert list(update.output_ids) == outputs[2][:NEW_TOKENS]


def test_the_drafter_is_worth_its_while(builtin_loaded, outputs):
    engine = Engine(builtin_loaded, Speculation("DDTREE", "", 33), context_length=256)
    prompt = builtin_loaded.tokenizer.encode_chat([{"role": "user", "content": PROMPTS[2]}])
    update = engine.generate(Request(tuple(prompt), NEW_TOKENS))
    assert (len(update.output_ids) - 1) / update.verify_steps > 1.5


def test_a_chat_becomes_the_target_s_own_token_ids(builtin_loaded):
    # as transformers 5.12 renders and encodes it
    expected = [
        *(1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018),
        *(411, 407, 19712, 8182, 2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 284),
        *(732, 314, 357, 1343, 327, 47, 2, 198, 1, 520, 9531, 198),
    ]
    chat = [{"role": "user", "content": PROMPTS[0]}]
    assert builtin_loaded.tokenizer.encode_chat(chat) == expected


def test_digits_are_tokens_of_their_own(builtin_loaded):
    tokenizer = builtin_loaded.tokenizer
    assert [tokenizer.decode([i]) for i in tokenizer.encode("in 2026")] == ["in", " ", *"2026"]


@pytest.mark.parametrize(
    "text", [" a  b\n\n\tc ", "Grüße, 你好 🙂", "<|im_start|>user\nI'll<|im_end|>"]
)
def test_text_survives_encoding_and_decoding(builtin_loaded, text):
    tokenizer = builtin_loaded.tokenizer
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_a_special_token_written_out_is_that_token(builtin_loaded):
    assert builtin_loaded.tokenizer.encode("<|im_end|>") == [2]


def test_weights_are_plain_fp32(builtin_loaded):
    layer = builtin_loaded.target.layers[0]
    arrays = [builtin_loaded.target.head, *vars(layer).values()]
    assert {array.dtype for array in arrays} == {np.dtype(np.float32)}
