"""A protobuf message as its fields, by the wire format alone (protobuf.dev/programming-guides/encoding): for tests of files that
we write, without any of our writers."""

from __future__ import annotations

import struct
from collections.abc import Iterator


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def signed(value: int) -> int:
    """An int64 field."""
    return value - (1 << 64) if value >> 63 else value


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value, in order: an int of varints, bytes of everything else."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = varint(data, at)
            yield tag >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, at = varint(data, at)
        assert size is not None and at + size <= len(data), f"field {tag >> 3} of wire type {kind} at byte {at}"
        yield tag >> 3, data[at:at + size]
        at += size


def field(data: bytes, number: int, default: int | bytes | None = None) -> int | bytes | None:
    """The last one of this number, as readers take it."""
    for found, value in fields(data):
        if found == number:
            default = value
    return default


def records(content: bytes) -> Iterator[bytes]:
    """The messages of an event file, by the framing of TFRecord: length, its checksum, payload, its checksum."""
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        yield content[12:12 + length]
        content = content[12 + length + 4:]


def fixed64(value: int | bytes | None) -> int:
    assert isinstance(value, bytes)
    return int(struct.unpack("<Q", value)[0])
