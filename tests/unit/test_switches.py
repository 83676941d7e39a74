"""The run's own switches: what is mistyped is refused, never ignored."""

import pytest

from operations.switches import SWITCHES, check_probe, checked, load_of, refuse_unknown
from operations.wanted import WantedError

NO_LOAD = dict.fromkeys(("concurrency", "max_ttft", "max_tpot"))


def test_a_mistyped_switch_is_refused_with_the_one_that_was_meant():
    with pytest.raises(WantedError, match="--data onyl: unknown switch; did you mean 'only'"):
        refuse_unknown(["onyl"], [])


def test_a_setting_of_wanted_given_as_a_switch_says_how_it_is_changed():
    with pytest.raises(WantedError, match=r"""--data 'set=\{"port": ...\}'"""):
        refuse_unknown(["port"], [])


def test_keys_of_pyinfra_and_of_the_inventory_are_not_switches_of_ours():
    refuse_unknown(["ssh_user", "_sudo", "wanted", "rack", *SWITCHES], ["rack"])


@pytest.mark.parametrize(
    "value", ["nonsense", "../../etc", "", "abc", [1], {"a": 1}, True, 7, 1.5, "0123456789AB"]
)
def test_a_rollback_to_something_that_is_no_release_is_refused(value):
    with pytest.raises(WantedError, match="--data rollback: expected 'previous' or a release"):
        checked({"rollback": value})


def test_a_fingerprint_of_digits_which_pyinfra_reads_as_a_number_is_a_release():
    assert checked({"rollback": 123456789012})["rollback"] == "123456789012"


def test_a_fingerprint_that_was_read_as_a_broken_number_says_how_it_is_quoted():
    with pytest.raises(WantedError, match="quote it"):
        checked({"rollback": float("inf")})


@pytest.mark.parametrize("value", [-1, 0, 1.5, True, "8", [], float("nan")])
def test_requests_in_flight_are_a_whole_number_above_zero(value):
    with pytest.raises(WantedError, match="--data concurrency: expected a whole number above 0"):
        load_of(NO_LOAD | {"concurrency": value})


@pytest.mark.parametrize("value", [-1, 0, True, "1s", float("inf")])
def test_a_limit_is_a_number_of_seconds_above_zero(value):
    with pytest.raises(WantedError, match="--data max_ttft: expected a number of seconds"):
        load_of(NO_LOAD | {"max_ttft": value})


def test_the_load_is_read():
    load = load_of({"concurrency": 8, "max_ttft": 2, "max_tpot": 0.05})
    assert (load.concurrency, load.max_ttft_s, load.max_tpot_s) == (8, 2, 0.05)


@pytest.mark.parametrize(
    ("key", "value"),
    [("bench", []), ("bench", 7), ("preflight", "xml"), ("adopt", "worst"), ("probe", True)],
)
def test_a_value_that_a_switch_does_not_know_is_refused(key, value):
    with pytest.raises(WantedError, match=f"--data {key}: expected "):
        checked({key: value})


@pytest.mark.parametrize("key", ["concurrency", "max_ttft", "max_tpot"])
def test_a_load_that_nothing_is_adopted_for_is_refused(key):
    with pytest.raises(WantedError, match=f"--data {key}: expected adopt=best beside it"):
        checked({key: 8})
    assert checked({key: 8, "adopt": "best"})[key] == 8


def test_a_probe_of_a_host_without_gpus_is_refused():
    check_probe("run", "sglang")
    check_probe(None, "reference")
    with pytest.raises(WantedError, match="--data probe: expected a host with GPUs"):
        check_probe("run", "reference")
