from pathlib import Path

import gguf
import numpy as np
import pytest
from refserver.errors import RefserverError
from refserver.gguf_file import GgufFile


def write(path: Path, kind: gguf.GGMLQuantizationType | None = None) -> np.ndarray:
    """A GGUF with all kinds of metadata and one matrix [6, 64]."""
    matrix = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("some.count", 7)
    writer.add_float32("some.share", 0.5)
    writer.add_bool("some.flag", True)
    writer.add_string("some.text", "Grüße")
    writer.add_array("some.numbers", [1, -2, 3])
    writer.add_array("some.words", ["a", "bé", ""])
    data = matrix if kind is None else gguf.quantize(matrix, kind)
    writer.add_tensor("matrix", data, raw_dtype=kind)
    writer.add_tensor("vector", matrix[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return matrix


def test_metadata_of_all_kinds_is_read(tmp_path):
    write(tmp_path / "m.gguf")
    fields = GgufFile(tmp_path / "m.gguf").fields
    assert {k.removeprefix("some."): v for k, v in fields.items() if k.startswith("some.")} == {
        "count": 7,
        "share": 0.5,
        "flag": True,
        "text": "Grüße",
        "numbers": [1, -2, 3],
        "words": ["a", "bé", ""],
    }


@pytest.mark.parametrize("name", [None, "F16", "BF16", "Q8_0", "Q4_1", "Q4_0"])
def test_a_matrix_is_what_the_gguf_package_makes_of_it(tmp_path, name):
    kind = gguf.GGMLQuantizationType[name] if name else None
    matrix = write(tmp_path / "m.gguf", kind)
    expected = matrix
    if kind:
        expected = gguf.dequantize(gguf.quantize(matrix, kind), kind).reshape(6, 64)
    assert np.array_equal(GgufFile(tmp_path / "m.gguf").read("matrix"), expected)


def test_another_file_format_is_refused_in_one_line(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"PK\x03\x04 something else altogether")
    with pytest.raises(RefserverError, match=r"expected a GGUF file of version 2 or 3, found"):
        GgufFile(tmp_path / "m.gguf")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.98])
def test_a_file_cut_short_is_refused(tmp_path, share):
    write(tmp_path / "m.gguf")
    whole = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(RefserverError, match="expected a whole GGUF file"):
        file = GgufFile(tmp_path / "m.gguf")
        file.read("matrix"), file.read("vector")


def test_a_missing_tensor_is_named(tmp_path):
    write(tmp_path / "m.gguf")
    with pytest.raises(RefserverError, match="expected tensor other in"):
        GgufFile(tmp_path / "m.gguf").read("other")
