"""hostkit fetch over Xet: hf_xet itself, with a store on this disk behind the Hub emulator."""

import filecmp

import pytest


@pytest.fixture
def xet_hub(hub, tmp_path):
    hub.store_in_xet(tmp_path / "cas")
    return hub


def same(hub, fetch) -> bool:
    return all(
        filecmp.cmp(f.disk, fetch.directory / f.path, shallow=False) for f in hub.files.values()
    )


def storage_requests(hub) -> list[str]:
    return [request for request in hub.requests if " storage " in request]


def test_shards_come_out_of_xet_and_not_over_http(xet_hub, bare):
    assert bare.run() == 0
    assert same(xet_hub, bare)
    assert storage_requests(xet_hub) == []


def test_the_xet_token_is_asked_for_with_the_hubs_token(xet_hub, fetch, tmp_path):
    xet_hub.tokens = {"hf_good": True}
    (tmp_path / "token").write_text("hf_good")
    fetch.list(xet_hub)
    assert fetch.run() == 0
    assert storage_requests(xet_hub) == []


def test_a_xet_store_that_never_answers_is_left_for_http(xet_hub, fetch):
    fetch.list(xet_hub)
    xet_hub.cas_url = "http://127.0.0.1:9"  # nobody listens there; hf_xet tries for minutes
    assert fetch.run(stall_s=3.0) == 0
    assert same(xet_hub, fetch)
    said = fetch.log.read_text()
    assert said.index("going on with Xet, parallel") < said.index("going on with HTTP, parallel")


def test_xet_can_be_switched_off(xet_hub, fetch):
    fetch.list(xet_hub)
    assert fetch.run(environment={"HF_HUB_DISABLE_XET": "1"}) == 0
    assert same(xet_hub, fetch)
    assert storage_requests(xet_hub) != []


def test_what_xet_brought_is_kept_when_http_goes_on(xet_hub, fetch, until):
    """A range begun over one way is gone on with over the other."""
    fetch.list(xet_hub)
    process = fetch.start(workers=1)
    until(lambda: part_bytes(fetch) > 0)
    fetch.kill(process)
    assert fetch.run(environment={"HF_HUB_DISABLE_XET": "1"}, workers=4) == 0
    assert same(xet_hub, fetch)


def part_bytes(fetch) -> int:
    parts = list(fetch.directory.rglob("*.part")) + list(fetch.directory.glob("*.safetensors"))
    return sum(part.stat().st_blocks * 512 for part in parts)
