"""What is copied to hosts: named by content, archived reproducibly."""

import io
import tarfile

from operations.artifacts import Tree, read_tree, service_code

TREE = Tree({"hostkit/supervise.py": b"a", "hostkit/load.py": b"b", "refserver/model.py": b"c"})


def changed(name: str, data: bytes = b"changed") -> Tree:
    return Tree({**TREE.files, name: data})


def test_equal_content_gives_equal_hash_and_archive_whatever_the_order():
    turned = Tree(dict(reversed(TREE.files.items())))
    assert turned.hash == TREE.hash
    assert turned.archive() == TREE.archive()


def test_a_changed_byte_or_name_changes_the_hash():
    assert changed("hostkit/load.py").hash != TREE.hash
    moved = {**TREE.files, "hostkit/loads.py": TREE.files["hostkit/load.py"]}
    del moved["hostkit/load.py"]
    assert Tree(moved).hash != TREE.hash


def test_the_archive_holds_the_files():
    with tarfile.open(fileobj=io.BytesIO(TREE.archive()), mode="r:gz") as tar:
        member = tar.extractfile("refserver/model.py")
        assert member is not None
        assert member.read() == b"c"
        assert sorted(tar.getnames()) == sorted(TREE.files)


def test_the_load_generator_is_no_part_of_the_service():
    code = service_code(TREE, "reference", None)
    assert service_code(changed("hostkit/load.py"), "reference", None) == code
    assert service_code(changed("hostkit/supervise.py"), "reference", None) != code


def test_the_reference_engine_is_part_of_its_own_service_only():
    model = changed("refserver/model.py")
    assert service_code(model, "reference", None) != service_code(TREE, "reference", None)
    assert service_code(model, "sglang", None) == service_code(TREE, "sglang", None)


def test_caches_and_hidden_files_are_left_out(tmp_path):
    for name in ("a.py", "__pycache__/a.pyc", ".hidden", "sub/b.json"):
        path = tmp_path / "hostkit" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    assert sorted(read_tree(["hostkit"], tmp_path).files) == ["hostkit/a.py", "hostkit/sub/b.json"]
