"""A resolver for service names: A records over UDP, everything else politely empty.

`answer` is pure. Names outside of the table do not exist: a pod of this cluster reaches nothing else.
"""

import asyncio
import struct
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address
from typing import cast

TYPE_A, CLASS_IN = 1, 1
# Response, authoritative, recursion available; plus the code for "no such name".
FLAGS, NO_SUCH_NAME = 0x8480, 3
TTL_S = 1
# A reply over UDP has 512 bytes at most.
MAX_RECORDS = 16


def question_name(query: bytes) -> tuple[str, int]:
    """The name of the first question, without its last dot, and the offset behind it. IndexError when cut short."""
    labels, offset = [], 12
    while length := query[offset]:
        labels.append(query[offset + 1 : offset + 1 + length].decode("ascii", "replace"))
        offset += 1 + length
    return ".".join(labels).lower(), offset + 1


def answer(query: bytes, table: Mapping[str, list[str]]) -> bytes:
    """The reply to one query (RFC 1035). Raises IndexError or struct.error when the query is malformed."""
    name, end = question_name(query)
    (kind,) = struct.unpack_from("!H", query, end)
    addresses = table.get(name, [])[:MAX_RECORDS] if kind == TYPE_A else []
    flags = FLAGS | (0 if name in table else NO_SUCH_NAME)
    (identity,) = struct.unpack_from("!H", query)
    header = struct.pack("!HHHHHH", identity, flags, 1, len(addresses), 0, 0)
    # 0xc00c points back at the question's name.
    record = struct.pack("!HHHIH", 0xC00C, TYPE_A, CLASS_IN, TTL_S, 4)
    return header + query[12 : end + 4] + b"".join(record + IPv4Address(ip).packed for ip in addresses)


class Resolver(asyncio.DatagramProtocol):
    """Answers from whatever table `current` returns at that moment."""

    def __init__(self, current: Callable[[], Mapping[str, list[str]]]) -> None:
        self._current = current

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # asyncio's own datagram transport is no subclass of the interface that it documents.
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str | int, int]) -> None:
        try:
            self._transport.sendto(answer(data, self._current()), addr)
        except (IndexError, struct.error):
            return
