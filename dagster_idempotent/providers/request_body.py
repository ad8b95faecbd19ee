"""A request body in its own terms: JSON as JSON, a form as fields, a multipart as parts, anything else as a hash."""

import json
from collections.abc import Iterator, Mapping
from email.message import Message
from hashlib import sha256
from urllib.parse import parse_qsl


def body_payload(body: bytes, content_type: str, content_encoding: str | None = None) -> Mapping[str, object]:
    """Return one entry that names the kind of body, so that fields that differ can be named; none for no body.

    The random boundary of a multipart body is not part of it. What cannot be read as what it says it is stands as
    hash and size.
    """
    if not body:
        return {}
    header = _header(content_type)
    if content_encoding in {None, "", "identity"}:
        found = _structured(body, header)
        if found is not None:
            return found
    return {"body": {"sha256": sha256(body).hexdigest(), "size": len(body), "type": header.get_content_type()}}


def _structured(body: bytes, header: Message) -> Mapping[str, object] | None:
    kind = header.get_content_type()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            return {"json": json.loads(body)}
        except (ValueError, RecursionError):
            return None
    if kind == "application/x-www-form-urlencoded":
        return _form(body)
    boundary = header.get_param("boundary")
    if kind.startswith("multipart/") and isinstance(boundary, str) and boundary:
        parts = list(_parts(body, boundary.encode()))
        return {"parts": parts} if parts else None
    return None


def _form(body: bytes) -> Mapping[str, object] | None:
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True)
    except ValueError:
        return None
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return {"form": fields} if fields else None


def _parts(body: bytes, boundary: bytes) -> Iterator[Mapping[str, object]]:
    for piece in (b"\r\n" + body).split(b"\r\n--" + boundary)[1:]:
        if piece.startswith(b"--"):
            return  # what follows the closing delimiter is not part of the message
        head, _, content = piece.partition(b"\r\n\r\n")
        yield _part(head, content)


def _part(head: bytes, content: bytes) -> Mapping[str, object]:
    # The head as it is: reading names out of it would make one of two that differ by a blank or a quote.
    described = {"head": head.removeprefix(b"\r\n").decode("utf-8", "backslashreplace").split("\r\n")}
    if b"filename" not in head.lower():
        try:
            return {**described, "value": content.decode()}
        except UnicodeDecodeError:
            pass  # a field of bytes is told apart by its hash
    return {**described, "sha256": sha256(content).hexdigest(), "size": len(content)}


def _header(content_type: str) -> Message:
    header = Message()
    header["Content-Type"] = content_type or "application/octet-stream"
    return header
