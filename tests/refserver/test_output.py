import pytest
from refserver.output import Output, Request


def run(loaded, text, *, extra=(), **settings):
    """Feed the bytes of `text`, a token each, then the tokens of `extra`."""
    settings = {"max_new_tokens": 100, **settings}
    output = Output(Request((0,), **settings), loaded.tokenizer)
    for token in [*loaded.tokenizer.encode(text), *extra]:
        if output.finished:
            break
        output.add([token])
    return output.update()


EOS = 2


def test_the_length_limit_ends_the_output(tiny_loaded):
    update = run(tiny_loaded, "abcdef", max_new_tokens=4)
    assert (update.text, update.finish) == ("abcd", {"type": "length", "length": 4})


def test_a_stop_token_counts_as_output_but_not_as_text(tiny_loaded):
    update = run(tiny_loaded, "ab", extra=[EOS])
    assert (update.text, len(update.output_ids)) == ("ab", 3)
    assert update.finish == {"type": "stop", "matched": EOS}


def test_ignore_eos_goes_on_behind_the_end_token(tiny_loaded):
    update = run(tiny_loaded, "ab", extra=[EOS, 70], ignore_eos=True)
    assert update.finish is None
    assert len(update.output_ids) == 4


def test_a_token_of_stop_token_ids_ends_the_output_even_with_ignore_eos(tiny_loaded):
    update = run(tiny_loaded, "ab", extra=[70], stop_token_ids=frozenset([70]), ignore_eos=True)
    assert update.finish == {"type": "stop", "matched": 70}


def test_a_stop_string_over_several_tokens_ends_the_text_before_it(tiny_loaded):
    update = run(tiny_loaded, "one END two", stop=("END",))
    assert (update.text, update.finish) == ("one ", {"type": "stop", "matched": "END"})


def test_no_stop_trim_keeps_the_stop_string(tiny_loaded):
    assert run(tiny_loaded, "one END two", stop=("END",), no_stop_trim=True).text == "one END"


@pytest.mark.parametrize(
    ("text", "shown"), [("one E", "one "), ("one EN", "one "), ("o Ex", "o Ex")]
)
def test_what_may_become_a_stop_string_is_held_back(tiny_loaded, text, shown):
    assert run(tiny_loaded, text, stop=("END",)).text == shown


def test_held_back_text_appears_when_the_output_ends_without_the_stop_string(tiny_loaded):
    assert run(tiny_loaded, "one EN", stop=("END",), max_new_tokens=6).text == "one EN"


def test_half_a_character_is_not_shown_before_it_is_whole(tiny_loaded):
    first, second = tiny_loaded.tokenizer.encode("é")
    output = Output(Request((0,), 5), tiny_loaded.tokenizer)
    output.add([first])
    assert output.update().text == ""
    output.add([second])
    assert output.update().text == "é"


def test_the_histogram_accounts_for_every_token_behind_the_first(tiny_loaded):
    output = Output(Request((0,), max_new_tokens=9), tiny_loaded.tokenizer)
    output.add([40])
    for tokens in ([41], [42, 43, 44], [45, 46], [47, 48, 49, 50]):
        output.add(tokens, proposed=8)
    update = output.update()
    assert update.histogram == (1, 2, 1)  # the last step's drafts behind the limit do not count
    assert update.proposed == 32
    assert len(update.output_ids) == 1 + sum((k + 1) * n for k, n in enumerate(update.histogram))
