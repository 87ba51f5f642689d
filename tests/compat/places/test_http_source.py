"""Remote headers: ranged reads over HTTP, hub locations, and everything a server can do wrong."""

import contextlib
import http.server
import random
import re
import select
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from headers_builder import GgufFile, safetensors_bytes

from paceline_compat import MetadataError, MissingFileError, SourceError, open_location, pinned_location, read_target
from paceline_compat.formats.gguf_header import read_header
from paceline_compat.formats.safetensors_header import read_folder
from paceline_compat.places.budget import Budget
from paceline_compat.places.source import find


@dataclass
class FakeHub:
    """Files by path; `mode` says how the server misbehaves, `seen` what it was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    mode: str = "ranges"
    redirect_to: str = ""
    seen: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    address: str = ""
    release: threading.Event = field(default_factory=threading.Event)
    commit: str = ""


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: FakeHub

    def log_message(self, *args):
        """Keep the test's output clean."""

    def do_GET(self):
        hub = self.hub
        hub.seen.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        if hub.mode == "hangs":
            hub.release.wait(5)
        if hub.mode == "denies":
            return self.send_error(403)
        if hub.redirect_to and not self.path.startswith("/storage"):
            self.send_response(302)
            self.send_header("Location", hub.redirect_to + self.path)
            if hub.commit:
                self.send_header("X-Repo-Commit", hub.commit)
            return self.end_headers()
        data = hub.files.get(self.path.removeprefix("/storage"))
        if data is None:
            return self.send_error(404)
        return self._send(data)

    def _send(self, data):
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"])
        shift = self.hub.mode == "shifted"
        begin, end = int(match[1]) + shift, int(match[2]) + 1 + shift
        part = data if self.hub.mode == "whole" else data[begin:end]
        if not part:
            return self.send_error(416)
        self.send_response(200 if self.hub.mode == "whole" else 206)
        if self.hub.mode in ("ranges", "short", "shifted"):
            self.send_header("Content-Range", f"bytes {begin}-{begin + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        if self.hub.commit:
            self.send_header("X-Repo-Commit", self.hub.commit)
        self.end_headers()
        return self.wfile.write(part[: len(part) // 2] if self.hub.mode == "short" else part)


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """A client that gave up, as the tests of timeouts do, is no error of the server."""


@pytest.fixture
def hubs() -> Iterator[list[FakeHub]]:
    """Two servers at two addresses; the second stands for a storage host."""
    running, threads = [], []
    hubs = [FakeHub(), FakeHub()]
    for hub in hubs:
        server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
        hub.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        running.append(server)
        threads.append(thread)
    yield hubs
    for hub, server, thread in zip(hubs, running, threads, strict=True):
        hub.release.set()
        server.shutdown()
        server.server_close()
        thread.join()


FILE = safetensors_bytes({"a": ("F32", (4,)), "b": ("F32", (50_000,))})


def test_only_the_headers_of_a_remote_file_are_read(hubs):
    hub = hubs[0]
    hub.files["/models/m/model.safetensors"] = FILE
    folder = open_location(f"{hub.address}/models/m/").folder
    assert set(read_folder(folder)) == {"a", "b"}
    assert [seen[1] for seen in hub.seen] == ["bytes=0-65535", "bytes=0-65535"]
    assert hub.seen[0][0].endswith("index.json")


def test_a_hub_location_resolves_to_repository_revision_and_file(hubs):
    hub = hubs[0]
    hub.files["/org/model/resolve/v1.0/model.safetensors"] = FILE
    location = open_location("hf://org/model@v1.0", endpoint=hub.address + "/", token="secret")
    assert location.name == "hf://org/model@v1.0"
    assert set(read_folder(location.folder)) == {"a", "b"}
    assert {seen[2] for seen in hub.seen} == {"Bearer secret"}


def test_a_hub_location_is_read_at_the_commit_that_it_stands_for(hubs, monkeypatch):
    """A push between two reads mixes nothing, and messages name what the user wrote."""
    hub = hubs[0]
    hub.files["/org/model/resolve/v1.0/config.json"] = b"{}"
    hub.files["/org/model/resolve/c0ffee/model.safetensors"] = FILE
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    hub.commit = "c0ffee"
    location, commit = pinned_location("hf://org/model@v1.0")
    assert (location.name, commit) == ("hf://org/model@v1.0", "c0ffee")
    assert set(read_folder(location.folder)) == {"a", "b"}
    hub.files["/org/model/resolve/refs%2Fpr%2F1/q.gguf"] = b"GGUF"
    assert pinned_location("hf://org/model@refs%2Fpr%2F1/q.gguf")[0].gguf_file == "q.gguf"


def test_the_hub_says_the_commit_also_of_a_file_that_lies_elsewhere(hubs, monkeypatch):
    """Weights, a GGUF file among them, come from a storage host that knows no commits: the redirect names it."""
    hub, storage = hubs
    hub.redirect_to, hub.commit = f"{storage.address}/storage", "c0ffee"
    storage.files["/org/model/resolve/main/q.gguf"] = b"GGUF"
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    assert pinned_location("hf://org/model/q.gguf")[1] == "c0ffee"


@pytest.mark.parametrize("said", [None, "", "..", "a/b", "x" * 129])
def test_without_a_commit_a_hub_location_is_read_as_named(hubs, monkeypatch, said):
    """The hub does not say it, or says what is none; other places have none."""
    hub = hubs[0]
    hub.files["/org/model/resolve/v1.0/config.json"] = b"{}"
    hub.files["/org/model/resolve/v1.0/model.safetensors"] = FILE
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    hub.commit = said
    location, commit = pinned_location("hf://org/model@v1.0")
    assert commit is None
    assert set(read_folder(location.folder)) == {"a", "b"}


def test_a_folder_has_no_commit(tmp_path):
    assert pinned_location(str(tmp_path))[1] is None


def test_a_remote_gguf_is_read_by_its_name(hubs):
    hub = hubs[0]
    file = GgufFile().add_value("general.architecture", "llama").add_value("llama.block_count", 1)
    file.add_value("llama.embedding_length", 32).add_value("llama.attention.head_count", 2)
    file.add_value("llama.feed_forward_length", 64).add_value("llama.context_length", 128)
    file.add_tensor("token_embd.weight", (32, 8), 0, 1024)
    hub.files["/org/model/resolve/main/q4/m.gguf"] = file.build()
    target = read_target(open_location("hf://org/model/q4/m.gguf", environment={"HF_ENDPOINT": hub.address}))
    assert (target.architecture, target.vocab_size, target.name) == ("llama", 8, "hf://org/model/q4/m.gguf")


def test_the_token_stays_with_the_hub_when_storage_is_elsewhere(hubs):
    hub, storage = hubs
    hub.redirect_to = storage.address + "/storage"
    storage.files["/o/m/resolve/main/config.json"] = b"{}"
    folder = open_location("hf://o/m", endpoint=hub.address, token="secret").folder
    assert folder.open("config.json").read(0, 2) == b"{}"
    assert hub.seen[0][2] == "Bearer secret"
    assert storage.seen[0][2] is None


def test_redirects_leave_http_for_nothing_else(hubs):
    hubs[0].redirect_to = "file:///etc/passwd"
    with pytest.raises(SourceError, match=r"file://, which is not followed|config\.json"):
        open_location(hubs[0].address).folder.open("config.json")


@pytest.mark.parametrize("edge", [64 << 10, 100_000])
def test_any_range_of_a_remote_file_is_its_bytes(hubs, edge):
    """Around the end of what opening it read, and at the file's end."""
    data = random.Random(0).randbytes(100_000)
    hubs[0].files["/m.bin"] = data
    source = open_location(hubs[0].address).folder.open("m.bin")
    for begin in range(edge - 4, edge + 1):
        for end in range(begin, min(edge + 4, len(data)) + 1):
            assert data[begin:end] == source.read(begin, end - begin)
    assert data == source.read(0, len(data))
    asked = [tuple(map(int, seen[1].removeprefix("bytes=").split("-"))) for seen in hubs[0].seen]
    assert all(begin >= 64 << 10 for begin, _ in asked[1:]), "what is known is not asked for again"
    assert (64 << 10, 99_999) == asked[-1]


def test_another_part_than_was_asked_for_is_refused(hubs):
    """A cache that answers with what it has, say: the bytes would be taken for those at the place that was asked for."""
    hubs[0].files["/m.bin"] = bytes(300_000)
    source = open_location(hubs[0].address).folder.open("m.bin")
    hubs[0].mode = "shifted"
    with pytest.raises(SourceError, match="gave bytes from 100001 on where those from 100000 on were asked for"):
        source.read(100_000, 100)


def test_a_vocabulary_of_megabytes_takes_few_requests(hubs):
    """The budget of the webhook is a few seconds, and each request costs it a new connection."""
    words = ["some" * 1000] * 2000
    file = GgufFile().add_value("words", words).add_tensor("t", (2 << 20,), 0, 8 << 20)
    hubs[0].files["/m.gguf"] = file.build()
    header = read_header(open_location(f"{hubs[0].address}/m.gguf").folder.open("m.gguf"))
    assert (2000, 2 << 20) == (header.count("words"), header.tensors["t"].num_elements)
    asked = [tuple(map(int, seen[1].removeprefix("bytes=").split("-"))) for seen in hubs[0].seen]
    assert 8_000_000 < header.data_offset < 8_100_000
    assert [(0, 65_535), (65_536, (1 << 20) - 1)] == asked[:2]
    assert 5 == len(asked)
    assert sum(end + 1 - begin for begin, end in asked) < header.data_offset + (4 << 20)


def test_a_token_from_the_environment_never_reaches_a_plain_address(hubs):
    hub = hubs[0]
    hub.files["/config.json"] = b"{}"
    open_location(hub.address, token="given", environment={"HF_TOKEN": "secret"}).folder.open("config.json")
    assert hub.seen[0][2] is None


def test_a_missing_file_is_told_from_an_unreachable_place(hubs):
    folder = open_location(hubs[0].address).folder
    assert find(folder, "config.json") is None
    with pytest.raises(MissingFileError):
        folder.open("config.json")
    hubs[0].mode = "denies"
    with pytest.raises(SourceError, match=r"answered 403.*token"):
        find(folder, "config.json")


def test_a_closed_port_is_an_error_of_ours():
    with pytest.raises(SourceError, match="could not be reached"):
        open_location("http://127.0.0.1:1").folder.open("config.json")


@pytest.mark.parametrize("mode", ["whole", "unranged", "short"])
def test_a_server_without_ranges_is_refused_for_large_files(hubs, mode):
    hubs[0].mode = mode
    hubs[0].files["/m.bin"] = bytes(100_000)
    with pytest.raises(SourceError, match=r"ranged|broke off|could not be reached"):
        open_location(hubs[0].address).folder.open("m.bin")


def test_a_small_file_is_taken_whole_from_a_server_without_ranges(hubs):
    hubs[0].mode = "whole"
    hubs[0].files["/config.json"] = b'{"a": 1}'
    source = open_location(hubs[0].address).folder.open("config.json")
    assert source.read(0, source.size_bytes) == b'{"a": 1}'


def test_an_empty_file_has_size_zero(hubs):
    hubs[0].files["/config.json"] = b""
    assert open_location(hubs[0].address).folder.open("config.json").size_bytes == 0


def test_reads_outside_the_file_ask_nobody(hubs):
    hubs[0].files["/m.bin"] = bytes(100_000)
    source = open_location(hubs[0].address).folder.open("m.bin")
    assert source.read(99_000, 1000) == bytes(1000)
    for offset, length in ((99_000, 1001), (-1, 4), (0, -1), (1 << 60, 1)):
        with pytest.raises(SourceError, match="outside the file"):
            source.read(offset, length)
    assert len(hubs[0].seen) == 2


def test_a_budget_bounds_the_bytes_of_all_reads_together(hubs):
    hubs[0].files["/m.bin"] = bytes(1_000_000)
    source = open_location(hubs[0].address, budget=Budget(max_bytes=200_000)).folder.open("m.bin")
    source.read(100_000, 100_000)
    with pytest.raises(SourceError, match="more than the 200000 bytes"):
        source.read(200_000, 100_000)


def test_a_budget_bounds_the_time(hubs):
    hubs[0].mode = "hangs"
    with pytest.raises(SourceError, match="could not be reached: timed out"):
        open_location(hubs[0].address, budget=Budget(timeout_s=0.2)).folder.open("m.bin")
    with pytest.raises(SourceError, match="not read within 0 s"):
        open_location(hubs[0].address, budget=Budget(timeout_s=0)).folder.open("m.bin")


@pytest.mark.parametrize(
    ("start", "message"),
    [(b"HTTP/1.1 206 OK\r\nX: ", "not read within 0.1 s"), (b"HTTP/1.1 302 OK\r\nLocation: /\r\n\r\n", "could not be reached")],
    ids=["header", "body of a redirect"],
)
def test_a_budget_bounds_the_time_of_what_comes_byte_by_byte(start, message):
    """Each byte within the timeout, and no end: a thread of the webhook would never come back."""
    hung_up = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip():
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(start)
                for _ in range(300):  # until the reader has hung up, or has shown that it does not
                    if select.select([connection], [], [], 0.02)[0] and not connection.recv(1 << 16):
                        hung_up.set()
                        break
                    connection.sendall(b"a")

        thread = threading.Thread(target=drip)
        thread.start()
        folder = open_location(f"http://127.0.0.1:{listener.getsockname()[1]}", budget=Budget(timeout_s=0.1)).folder
        with pytest.raises(SourceError, match=message):
            folder.open("config.json")
        thread.join()
    assert hung_up.is_set()


@pytest.mark.parametrize(
    "text, message",
    [
        ("hf://org/model", "set HF_ENDPOINT"),
        ("hf://model", "is not hf://org/name"),
        ("hf://org/model@a/../../b", "is not hf://org/name"),
        ("hf://../model", "is not hf://org/name"),
        ("s3://bucket/model", "neither a path nor hf:// nor https://"),
        ("https://user@host/model", "plain address"),
        ("https://host/model?token=x", "https://host/model must be"),
        ("https://[host/model", "plain address"),
        ("https://host:99999/model", "plain address"),
        ("https://:443/model", "plain address"),
        ("/no/such/folder", "no such folder"),
        ("", "location: is empty"),
    ],
)
def test_a_location_that_is_none_is_refused(text, message):
    with pytest.raises(MetadataError) as caught:
        open_location(text, environment={})
    assert message in str(caught.value).replace(": must be", " must be")


@pytest.mark.parametrize(
    "endpoint", ["ftp://x", "ftp://user:secret@x", "https://user:secret@x", "https://x?secret", "http://[x"]
)
def test_an_endpoint_must_be_an_address(endpoint):
    """The message names the variable and shows no password of it."""
    shown = f"{endpoint.partition('://')[0]}://{'[' if '[' in endpoint else ''}x"
    with pytest.raises(MetadataError) as caught:
        open_location("hf://o/m", environment={"HF_ENDPOINT": endpoint})
    assert str(caught.value).startswith(f"HF_ENDPOINT: '{shown}' is not an http")
