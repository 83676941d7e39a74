import json
import shutil

import pytest
from refserver.errors import BadRequestError, RefserverError
from refserver.tokenizer import ChatTokenizer, from_gguf, from_hf
from tiny_model import byte_tokens


def fields(**changes):
    """GGUF metadata of a byte-level tokenizer with two merges."""
    tokens = [*byte_tokens(), "he", "he" + "l"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 4 + [1] * (len(tokens) - 4),
        "tokenizer.ggml.merges": ["h e", "he l"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ bos_token }}{{ messages[0]['content'] }}",
    } | {f"tokenizer.{name}": value for name, value in changes.items()}


def pieces(tokenizer, text):
    return [tokenizer.decode([i], skip_special_tokens=False) for i in tokenizer.encode(text)]


def test_merges_are_applied():
    assert pieces(from_gguf(fields()), "hello") == ["hel", "l", "o"]


def test_special_tokens_in_the_text_stay_whole():
    assert pieces(from_gguf(fields()), "he<|im_end|>") == ["he", "<|im_end|>"]


def test_the_end_token_of_the_metadata_stops():
    assert from_gguf(fields()).eos_token_ids == {2}


def test_an_end_of_turn_token_stops_too():
    assert from_gguf(fields(**{"ggml.eot_token_id": 0})).eos_token_ids == {0, 2}


def test_add_bos_token_puts_it_before_a_text():
    tokenizer = from_gguf(fields(**{"ggml.add_bos_token": True}))
    assert tokenizer.encode("he")[0] == 1


def test_a_chat_has_only_the_bos_token_that_its_template_writes():
    tokenizer = from_gguf(fields(**{"ggml.add_bos_token": True}))
    assert tokenizer.encode_chat([{"role": "user", "content": "he"}]).count(1) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ggml.model": "llama"}, r"expected a byte-level BPE tokenizer .* found 'llama'"),
        ({"ggml.pre": "qwen2"}, r"expected a GGUF pre-tokenizer out of .* found 'qwen2'"),
        ({"ggml.tokens": []}, r"expected tokenizer\.ggml\.tokens in the GGUF, found none"),
    ],
)
def test_a_tokenizer_of_another_kind_is_refused(change, message):
    with pytest.raises(RefserverError, match=message):
        from_gguf(fields(**change))


def test_a_model_without_a_template_refuses_chats():
    bare = from_gguf(fields(chat_template=None))
    with pytest.raises(BadRequestError, match="no chat template; use /v1/completions"):
        bare.encode_chat([{"role": "user", "content": "x"}])


def test_a_template_s_own_refusal_is_passed_on():
    tokenizer = from_gguf(fields(chat_template="{{ raise_exception('no system role') }}"))
    with pytest.raises(BadRequestError, match="rejects the messages: no system role"):
        tokenizer.encode_chat([{"role": "system", "content": "x"}])


def test_a_template_can_not_reach_python():
    escape = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(BadRequestError, match="the chat template rejects"):
        from_gguf(fields(chat_template=escape)).encode_chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(("generation", "stops"), [(None, {2}), ({"eos_token_id": [0, 2]}, {0, 2})])
def test_stop_tokens_come_from_generation_config_then_config(tiny, tmp_path, generation, stops):
    folder = tmp_path / "target"
    shutil.copytree(tiny.target, folder)
    if generation:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    assert from_hf(folder).eos_token_ids == stops


def test_a_template_file_wins_over_the_configuration(tiny, tmp_path):
    folder = tmp_path / "target"
    shutil.copytree(tiny.target, folder)
    (folder / "chat_template.jinja").write_text("[{{ messages[0]['content'] }}]")
    tokenizer: ChatTokenizer = from_hf(folder)
    assert tokenizer.decode(tokenizer.encode_chat([{"role": "user", "content": "x"}])) == "[x]"
