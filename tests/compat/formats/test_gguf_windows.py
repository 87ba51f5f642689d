"""Where the edges of the cursor's window fall changes nothing of what is read of a GGUF header, or of why it is refused."""

import itertools
import math
import struct

import pytest
from headers_builder import GgufFile, gguf_string
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_compat.errors import MetadataError
from paceline_compat.formats import gguf_header
from paceline_compat.formats.gguf_cursor import WINDOW_BYTES, Cursor
from paceline_compat.places.source import BytesSource

BOOL, STRING, ARRAY = 7, 8, 9
LAYOUTS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", BOOL: "<?", 10: "<Q", 11: "<q", 12: "<d"}
EXAMPLES = {0: 201, 1: -100, 2: 60_001, 3: -30_001, 4: 4_000_000_001, 5: -2_000_000_001, 6: -0.15625, BOOL: True}
EXAMPLES |= {STRING: "naïve", 10: (1 << 63) + 12_345_678_901, 11: -9_007_199_254_740_993, 12: 1 / 3}
TENSORS = {"a": ((8,), 0), "blk.0.ffn_gate_exps.weight": ((32, 3, 2, 5), 8), "é": ((16, 2, 3), 1), "b": ((4, 7), 0)}
"""Name -> `ne` and ggml type id: F32, Q8_0 and F16, of one to four dimensions."""
VALUE_BYTES = {0: 4, 1: 2, 8: 34 / 32}


class Recorder(BytesSource):
    """A file that keeps what was read of it, as (offset, length)."""

    def __init__(self, data: bytes) -> None:
        super().__init__("model.gguf", data)
        self.reads: list[tuple[int, int]] = []

    def read(self, offset: int, length: int) -> bytes:
        self.reads.append((offset, length))
        return super().read(offset, length)


def encode(kind, value) -> bytes:
    """A value of a type, or of a pair (ARRAY, type of its elements)."""
    if isinstance(kind, tuple):
        return struct.pack("<IQ", kind[1], len(value)) + b"".join(encode(kind[1], element) for element in value)
    return gguf_string(value.encode()) if kind == STRING else struct.pack(LAYOUTS[kind], value)


def build(fields, tensors) -> bytes:
    """A file with fields (key, type, value) and with tensors as `TENSORS` has them."""
    file = GgufFile()
    for key, kind, value in fields:
        file.add(key, ARRAY if isinstance(kind, tuple) else kind, encode(kind, value))
    for name, (ne, type_id) in tensors.items():
        file.add_tensor(name, ne, type_id, int(math.prod(ne) * VALUE_BYTES[type_id]))
    return file.build()


def every_kind():
    """A field of each type, and arrays of each: with elements and without."""
    fields = [(f"value.{kind}", kind, value) for kind, value in EXAMPLES.items()]
    fields += [(f"array.{kind}", (ARRAY, kind), [value] * 3) for kind, value in EXAMPLES.items()]
    fields += [(f"empty.{kind}", (ARRAY, kind), []) for kind in EXAMPLES]
    return [*fields, ("empty", STRING, ""), ("words", (ARRAY, STRING), ["", "a", "", "long " * 9, "日本"])]


def fields_of(header, fields):
    """The same fields with the values that the header has."""
    found = []
    for key, kind, _ in fields:
        if isinstance(kind, tuple):
            found.append((key, kind, header.strings(key) if kind[1] == STRING else header.numbers(key)))
        else:
            found.append((key, kind, header.metadata[key]))
    return found


def outcome(data: bytes, window_bytes: int) -> str:
    """All that a header says, or why it is refused; as text, in which a NaN equals itself."""
    try:
        header = gguf_header.read_header(BytesSource("model.gguf", data), window_bytes)
    except MetadataError as error:
        return str(error)
    return repr((header.version, header.alignment, header.data_offset, header.metadata, header.tensors))


def test_every_kind_of_field_is_read_with_an_edge_at_any_of_its_bytes():
    """The first window ends after each byte of the header in turn; the later ones wherever they come to."""
    fields, num_reads = every_kind(), set()
    data = build(fields, TENSORS)
    header_bytes = gguf_header.read_header(BytesSource("model.gguf", data), len(data)).data_offset
    for window_bytes in range(1, header_bytes + 1):
        source = Recorder(data)
        header = gguf_header.read_header(source, window_bytes)
        num_reads.add(len(source.reads))
        assert fields == fields_of(header, fields), window_bytes
        assert {n: ne[::-1] for n, (ne, _) in TENSORS.items()} == {n: t.shape for n, t in header.tensors.items()}
        offsets = [tensor.offset - header.data_offset for tensor in header.tensors.values()]
        assert ([0, 32, 1056, 1248], header_bytes) == (offsets, header.data_offset), window_bytes
    assert {1, 2, 3, 10} <= num_reads


def test_the_window_that_files_are_read_with_may_end_anywhere_too():
    """Every large vocabulary brings its edge somewhere: it was a refusal, and at some bytes another number."""
    fields = every_kind()
    whole = build([("pad", (ARRAY, 0), []), *fields], {}) + bytes(64)
    at = whole.index(b"pad") + 3 + 4 + 4
    for shift in range(len(whole) - at - 64):
        padding = WINDOW_BYTES - at - 8 - shift
        source = Recorder(whole[:at] + struct.pack("<Q", padding) + bytes(padding) + whole[at + 8 :])
        assert fields == fields_of(gguf_header.read_header(source), fields), shift
        assert [(0, WINDOW_BYTES)] == source.reads[:1]


def kinds_of_values():
    """Strategies for the values of each type."""
    whole = {kind: 8 * struct.calcsize(LAYOUTS[kind]) for kind in (0, 1, 2, 3, 4, 5, 10, 11)}
    values = {
        kind: st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if kind in (1, 3, 5, 11) else st.integers(0, (1 << bits) - 1)
        for kind, bits in whole.items()
    }
    values |= {6: st.floats(allow_nan=False, width=32), 12: st.floats(allow_nan=False), BOOL: st.booleans()}
    return values | {STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=40)}


def some_kind():
    """(type, value) of any type, arrays included."""
    plain = [st.tuples(st.just(kind), values) for kind, values in kinds_of_values().items()]
    arrays = [st.tuples(st.just((ARRAY, kind)), st.lists(v, max_size=12)) for kind, v in kinds_of_values().items()]
    return st.one_of(*plain, *arrays)


some_fields = st.lists(some_kind(), max_size=12).map(lambda kinds: [(f"k{i}", *kind) for i, kind in enumerate(kinds)])


@settings(max_examples=200, deadline=None)
@given(fields=some_fields, window_bytes=st.integers(1, 300))
def test_any_fields_are_read_as_they_were_written(fields, window_bytes):
    data = build(fields, TENSORS)
    header = gguf_header.read_header(BytesSource("model.gguf", data), window_bytes)
    assert fields == fields_of(header, fields)
    assert outcome(data, len(data)) == outcome(data, window_bytes)


@settings(max_examples=200, deadline=None)
@given(
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    num_bytes=st.integers(0, 3000),
    window_bytes=st.integers(1, 300),
)
def test_a_broken_file_says_the_same_through_every_window(flips, num_bytes, window_bytes):
    """Truncated, flipped, or both: the same header or the same refusal as with the whole file in one window."""
    data = bytearray(build(every_kind(), TENSORS)[:num_bytes])
    for place, value in flips:
        if data:
            data[place % len(data)] = value
    assert outcome(bytes(data), 1 << 20) == outcome(bytes(data), window_bytes)


@pytest.mark.parametrize("kind", [ARRAY, 13])
def test_an_array_of_arrays_is_refused_through_every_window(kind):
    file = GgufFile().add("k", ARRAY, struct.pack("<IQ", kind, 1) + encode((ARRAY, 4), [1, 2]))
    seen = {outcome(file.build(), window_bytes) for window_bytes in range(1, 100)}
    assert {f"model.gguf: metadata key 'k' is an array of unknown or nested value type {kind}"} == seen


def test_a_window_grows_to_four_times_its_size_and_little_is_read_twice():
    """Of a number at an edge the bytes before it; of a string there none, since it is only passed."""
    words = ["word" * 5] * 1000
    source = Recorder(build([("words", (ARRAY, STRING), words), ("last", 4, 7)], {}))
    assert 7 == gguf_header.read_header(source, 1000).metadata["last"]
    assert [1000, 2000, *[4000] * 6] == [length for _, length in source.reads][:-1]
    assert all(-20 <= begin + length - later < 8 for (begin, length), (later, _) in itertools.pairwise(source.reads))


def test_what_is_skipped_is_not_read():
    source = Recorder(bytes(range(200)))
    cursor = Cursor(source, 10)
    assert bytes(range(3)) == cursor.take(3, "x")
    cursor.skip(150, "x")
    assert (153, [(0, 10)]) == (cursor.position, source.reads)
    assert bytes(range(153, 158)) == cursor.take(5, "x")
    assert [(0, 10), (153, 20)] == source.reads
