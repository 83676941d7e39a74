"""`wanted` data: what is right becomes a frozen value, what is wrong one line for people."""

import pytest

from operations.wanted import WantedError, override, read_wanted

GOOD = {"group": "B300", "target": "path:/models/k2"}


def refused(**changes: object) -> str:
    with pytest.raises(WantedError) as error:
        read_wanted(GOOD | changes, "b300-1")
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith("b300-1: ")
    return message


def test_the_least_data_is_a_group_and_a_target():
    wanted = read_wanted(GOOD, "b300-1")
    assert (wanted.group, wanted.engine, wanted.port) == ("B300", "auto", 30000)


def test_an_unknown_key_names_the_one_that_was_meant():
    assert "wanted.prot: unknown key; did you mean 'port'?" in refused(prot=1)


def test_an_unknown_key_of_the_benchmark_names_its_place():
    message = refused(bench={"concurency": [1]})
    assert "wanted.bench.concurency: unknown key; did you mean 'concurrency'?" in message


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"port": "30000"}, "wanted.port: expected a valid integer, found '30000'"),
        ({"port": 70000}, "wanted.port: expected less than or equal to 65535, found 70000"),
        ({"engine": "vllm"}, "expected 'auto', 'sglang' or 'reference', found 'vllm'"),
        ({"parallelism": "tp8"}, "expected 'auto', or a name like 'TP8'"),
        ({"arm": "eagle"}, "'ddtree-BUDGET', found 'eagle'"),
        ({"gpus": "8"}, "wanted.gpus: expected a valid integer, found '8'"),
        ({"prefix": "opt"}, "wanted.prefix: expected an absolute path without blanks"),
        ({"prefix": "/"}, "wanted.prefix: expected an absolute path without blanks"),
        ({"prefix": "/opt/a b"}, "wanted.prefix: expected an absolute path without blanks"),
        ({"prefix": "/opt/../etc"}, "wanted.prefix: expected an absolute path without blanks"),
        ({"prefix": "/opt/x/"}, "wanted.prefix: expected an absolute path without blanks"),
        ({"prefix": "/opt/x$(id)"}, "wanted.prefix: expected an absolute path without blanks"),
        ({"prefix": "/opt/x\n"}, "wanted.prefix: expected an absolute path without blanks"),
        ({"host": ""}, "wanted.host: expected an address or a host name"),
        ({"host": "a host"}, "wanted.host: expected an address or a host name"),
        ({"environment": {"A B": "x"}}, "expected names of environment variables"),
        ({"environment": {"A": "x\ny"}}, "wanted.environment.A: expected one line of text"),
        ({"hub_endpoint": "hub"}, "wanted.hub_endpoint: expected a URL"),
        ({"bench": {"temperature": float("inf")}}, "wanted.bench.temperature: expected a finite"),
        ({"metrics_port": 30000}, "wanted.metrics_port: expected another port than wanted.port"),
        ({"stack": "copy"}, "wanted.stack 'copy': expected a host of the inventory"),
        ({"tools_from": "/srv/a b"}, "wanted.tools_from: expected an index URL"),
        ({"tools_from": "there"}, "wanted.tools_from: expected an index URL"),
        ({"budgets": [0]}, "wanted.budgets.0: expected greater than or equal to 1, found 0"),
        ({"budgets": [-8]}, "wanted.budgets.0: expected greater than or equal to 1, found -8"),
        ({"budgets": [8, 256]}, "wanted.budgets.1: expected less than or equal to 255, found 256"),
        ({"budgets": [8, 16, 8]}, "wanted.budgets: expected each value once, found [8, 16, 8]"),
        ({"arm": "ddtree-256"}, "wanted.arm: expected a budget of at most 255, found 'ddtree-256'"),
        ({"bench": {"arms": ["ar", "ddtree-300"]}}, "wanted.bench.arms.1: expected a budget of at"),
        ({"bench": {"concurrency": [1, 1]}}, "wanted.bench.concurrency: expected each value once"),
        ({"bench": {"repeats": 0}}, "wanted.bench.repeats: expected greater than 0, found 0"),
    ],
)
def test_a_wrong_value_says_what_was_expected_and_found(changes, expected):
    assert expected in refused(**changes)


@pytest.mark.parametrize("data", [None, [], "B300"])
def test_data_that_is_no_dict_is_refused(data):
    with pytest.raises(WantedError, match="expected a dict called 'wanted'"):
        read_wanted(data, "b300-1")


def test_a_path_may_go_through_a_hidden_folder():
    prefix = "/home/me/.local/share/ddtree"
    assert read_wanted(GOOD | {"prefix": prefix}, "b300-1").prefix == prefix


def test_a_missing_target_is_named():
    with pytest.raises(WantedError, match=r"wanted\.target: expected a value, found nothing"):
        read_wanted({"group": "B300"}, "b300-1")


def test_changes_of_the_run_are_laid_over_deep():
    data = GOOD | {"bench": {"repeats": 5, "concurrency": [1]}}
    changed = read_wanted(override(data, {"port": 1234, "bench": {"repeats": 2}}), "x")
    assert (changed.port, changed.bench.repeats, changed.bench.concurrency) == (1234, 2, [1])


def test_changes_that_are_no_object_are_refused():
    with pytest.raises(WantedError, match="--data set: expected a JSON object"):
        override(GOOD, "port=1")
