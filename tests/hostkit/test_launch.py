"""launch.json is checked before anything starts."""

import json

import pytest
from hostkit.__main__ import main
from hostkit.errors import HostkitError
from hostkit.launch import Launch, read_launch

GOOD = {
    "fingerprint": "f",
    "arm": "ar",
    "argv": ["engine"],
    "env": {},
    "port": 30000,
    "run_dir": "/run",
}


def test_a_launch_with_the_required_keys_is_read():
    assert Launch.from_json(GOOD).start_timeout_s == 600.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"colour": 1}, "unknown key 'colour'"),
        ({"port": "30000"}, "key 'port' expected int, found '30000'"),
        ({"port": True}, "key 'port' expected int"),
        ({"argv": "engine"}, "key 'argv' expected list"),
        ({"argv": []}, "argv is empty"),
        ({"env": {"A": 1}}, "key 'env' expected dict"),
        ({"budget": 1.5}, "key 'budget'"),
    ],
)
def test_a_wrong_key_or_type_is_named(change, words):
    with pytest.raises(HostkitError, match=words):
        Launch.from_json(GOOD | change)


def test_a_missing_key_is_named():
    with pytest.raises(HostkitError, match="key 'port' is missing"):
        Launch.from_json({key: value for key, value in GOOD.items() if key != "port"})


def test_whole_numbers_are_good_seconds():
    assert Launch.from_json(GOOD | {"start_timeout_s": 5}).start_timeout_s == 5


@pytest.mark.parametrize(
    ("host", "url"), [("0.0.0.0", "http://127.0.0.1:30000"), ("::", "http://[::1]:30000")]
)
def test_an_engine_on_every_address_is_reached_locally(host, url):
    assert Launch.from_json(GOOD | {"host": host}).url == url


@pytest.mark.parametrize("text", ["{", "[]"])
def test_an_unreadable_launch_file_gets_one_line_and_exit_1(tmp_path, capsys, text):
    file = tmp_path / "launch.json"
    file.write_text(text)
    assert main(["supervise", "--launch", str(file)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_an_absent_launch_file_gets_one_line_and_exit_1(capsys):
    assert main(["supervise", "--launch", str(GOOD["run_dir"]) + "/none.json"]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_values_survive_json():
    launch = Launch.from_json(json.loads(json.dumps(GOOD | {"budget": 8})))
    assert (launch.budget, launch.argv) == (8, ["engine"])


@pytest.mark.parametrize(
    "change", [{"argv": ["engine", "--fast"]}, {"env": {"A": "1"}}, {"budget": 8}]
)
def test_flags_name_what_the_engine_runs_with(change):
    assert Launch.from_json(GOOD | change).flags != Launch.from_json(GOOD).flags


def test_a_service_env_beside_the_launch_file_counts_as_flags(tmp_path):
    file = tmp_path / "launch.json"
    file.write_text(json.dumps(GOOD))
    assert read_launch(file).flags == Launch.from_json(GOOD).flags
    (tmp_path / "service.env").write_text("A=1\n")
    assert read_launch(file).flags == Launch.from_json(GOOD | {"service_env": "A=1\n"}).flags
    assert read_launch(file).flags != Launch.from_json(GOOD).flags


def test_limits_of_the_supervisor_are_no_flags_of_the_engine():
    changed = GOOD | {"start_timeout_s": 5, "restart_limit": 0, "fingerprint": "g"}
    assert Launch.from_json(changed).flags == Launch.from_json(GOOD).flags
