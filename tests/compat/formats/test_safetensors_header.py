"""The safetensors header reader: single files, sharded folders, and what it refuses."""

import json
import struct
import tracemalloc
from pathlib import Path

import pytest
from headers_builder import safetensors_bytes, safetensors_header
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_compat.errors import MetadataError
from paceline_compat.formats import safetensors_header as reader
from paceline_compat.places.source import BytesSource, LocalFolder, LocalSource

TENSORS = {"a.weight": ("BF16", (2, 3)), "b.weight": ("F32", (4,)), "empty": ("F32", (0, 4))}


def read(data: bytes) -> reader.SafetensorsHeader:
    return reader.read_header(BytesSource("m.safetensors", data))


def refusal(data: bytes) -> str:
    with pytest.raises(MetadataError) as caught:
        read(data)
    return str(caught.value)


def raw_file(text: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(text)) + text + data


def test_reads_types_shapes_and_absolute_places():
    data = safetensors_bytes(TENSORS)
    header = read(data)
    assert header.metadata == {"format": "pt"}
    a, b, _ = header.tensors.values()
    assert (a.dtype, a.shape, a.num_bytes) == ("BF16", (2, 3), 12)
    assert b.offset == a.offset + 12
    assert b.offset + b.num_bytes == len(data)


def test_a_file_of_the_safetensors_package_reads_back(tmp_path: Path):
    """The reference writer's file: same names, and the bytes are where the header says."""
    import numpy as np
    from safetensors.numpy import save_file

    save_file({"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.ones(2, dtype=np.int64)}, tmp_path / "r.safetensors")
    source = LocalSource(tmp_path / "r.safetensors")
    info = reader.read_header(source).tensors["x"]
    assert info.shape == (2, 3)
    assert struct.unpack("<6f", source.read(info.offset, info.num_bytes)) == tuple(range(6))


PAIR = {"a": ("F32", (2,)), "b": ("F32", (2,))}
ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
WRONG = {
    "short": (b"\x01\x00", "too few"),
    "lying length": (struct.pack("<Q", 1 << 60) + bytes(64), "claims a header of 1152921504606846976"),
    "not json": (raw_file(b"{nope"), "not the JSON"),
    "not an object": (raw_file(b"[1]"), "not the JSON"),
    "deep": (raw_file(b"[" * 100_000), "not the JSON"),
    "metadata": (raw_file(b'{"__metadata__": {"a": 1}}'), "not the JSON"),
    "dtype": (safetensors_bytes(TENSORS, {"a.weight": ENTRY | {"dtype": "X7"}}), "'a.weight' has unknown dtype 'X7'"),
    "negative size": (safetensors_bytes(TENSORS, {"a.weight": ENTRY | {"shape": [-1]}}), "'a.weight' cannot have"),
    "many sizes": (safetensors_bytes(TENSORS, {"a.weight": ENTRY | {"shape": [1] * 99}}), "'a.weight' cannot have"),
    "shape type": (safetensors_bytes(TENSORS, {"a.weight": ENTRY | {"shape": ["x"]}}), "'a.weight'"),
    "float offset": (safetensors_bytes(TENSORS, {"a.weight": ENTRY | {"data_offsets": [0.5, 4]}}), "'a.weight'"),
    "no offsets": (safetensors_bytes(TENSORS, {"a.weight": {"dtype": "F32", "shape": [1]}}), "'a.weight'"),
    "backwards": (safetensors_bytes(TENSORS, {"a.weight": ENTRY | {"data_offsets": [8, 4]}}), "claims bytes 8 to 4"),
    "past the end": (safetensors_bytes(TENSORS, {"a.weight": ENTRY | {"data_offsets": [0, 4096]}}), "claims bytes"),
    "huge offset": (safetensors_bytes(TENSORS, {"a.weight": ENTRY | {"data_offsets": [0, 1 << 62]}}), "claims bytes"),
    "size": (safetensors_bytes(TENSORS, {"a.weight": ENTRY | {"shape": [2, 9]}}), "does not fill"),
    "overlap": (safetensors_bytes(PAIR, {"b": ENTRY | {"data_offsets": [4, 8]}}), "overlap"),
    "gap": (safetensors_bytes(PAIR, {"a": ENTRY}), "cover 12 bytes"),
    "left over": (safetensors_bytes(TENSORS) + b"x", "cover 28 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused_by_name(name):
    data, message = WRONG[name]
    assert message in refusal(data)


def test_every_truncation_is_refused():
    whole = safetensors_bytes(TENSORS)
    for length in range(len(whole)):
        refusal(whole[:length])


def test_a_lying_length_in_a_huge_file_reads_no_further(tmp_path: Path):
    """A sparse 1 TiB file makes 90 MB of header plausible; the first byte says that it is none."""
    path = tmp_path / "huge.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 90_000_000))
        file.truncate(1 << 40)
    tracemalloc.start()
    with pytest.raises(MetadataError, match="not the JSON"):
        reader.read_header(LocalSource(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_a_duplicate_json_key_shows_as_a_gap():
    first, second = (b'"a": {"dtype":"F32","shape":[1],"data_offsets":%s}' % place for place in (b"[0,4]", b"[4,8]"))
    assert "cover 4 bytes" in refusal(raw_file(b"{%s, %s}" % (first, second), bytes(8)))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6))
def test_flipped_bytes_read_or_raise_our_error_only(flips):
    data = bytearray(safetensors_bytes(TENSORS))
    for place, value in flips:
        data[place % len(data)] = value
    try:
        header = read(bytes(data))
    except MetadataError:
        return
    assert all(t.offset + t.num_bytes <= len(data) for t in header.tensors.values())


def write_sharded(folder: Path, weight_map: dict[str, str], shards: dict[str, dict]) -> LocalFolder:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    for name, tensors in shards.items():
        (folder / name).write_bytes(safetensors_bytes(tensors))
    return LocalFolder(folder)


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_a_sharded_folder_reads_as_one(tmp_path: Path):
    folder = write_sharded(tmp_path, {"a": ONE, "b": TWO}, {ONE: {"a": ("F32", (2,))}, TWO: {"b": ("BF16", (4,))}})
    tensors = reader.read_folder(folder)
    assert {name: Path(t.file).name for name, t in tensors.items()} == {"a": ONE, "b": TWO}


@pytest.mark.parametrize(
    "weight_map, message",
    [
        ({"a": ONE, "b": TWO}, f"shard '{TWO}' is missing"),
        ({"a": ONE, "c": ONE}, "names tensors that no shard holds: c"),
        ({}, "neither|cover|holds"),
        ({"a": "../" + ONE}, "not a plain file name"),
        ({"a": "/etc/x.safetensors"}, "not a plain file name"),
        ({"a": "model.bin"}, "not a .safetensors file"),
        ({"c": ONE}, "does not place in .* what that file holds: a"),
        ({"a": 7}, "is not a weight index"),
    ],
)
def test_an_index_that_does_not_match_is_refused(tmp_path: Path, weight_map, message):
    folder = write_sharded(tmp_path, weight_map, {ONE: {"a": ("F32", (2,))}})
    if not weight_map:
        assert reader.read_folder(folder) == {}
        return
    with pytest.raises(MetadataError, match=message):
        reader.read_folder(folder)


def test_a_single_file_needs_no_index(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(TENSORS))
    assert set(reader.read_folder(LocalFolder(tmp_path))) == set(TENSORS)


def test_a_folder_without_weights_says_so(tmp_path: Path):
    with pytest.raises(MetadataError, match=r"neither model.safetensors.index.json nor model.safetensors"):
        reader.read_folder(LocalFolder(tmp_path))


def test_a_header_longer_than_the_first_read_is_read_whole():
    many = {f"layer.{i}.weight": ("U8", (1,)) for i in range(2000)}
    assert len(safetensors_header(many)) > 64 << 10
    assert len(read(safetensors_bytes(many)).tensors) == 2000


@pytest.mark.parametrize("more", range(-2, 3))
def test_a_header_may_end_on_either_side_of_the_first_read(more):
    """The writer pads with blanks; what follows in the first read is data."""
    text = safetensors_header(TENSORS)[8:]
    length = (64 << 10) - 8 + more
    header = read(raw_file(text.ljust(length), bytes(28)))
    assert {"a.weight": length + 8, "b.weight": length + 20} == {n: t.offset for n, t in header.tensors.items() if t.num_bytes}
