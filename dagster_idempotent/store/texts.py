"""Texts from outside, such as errors and references, in a form that PostgreSQL takes."""

LONGEST_TEXT = 4000


def storable(text: str) -> str:
    """Return a text without what would make its row fail: NUL, lone surrogates, endless length."""
    return text[:LONGEST_TEXT].encode("utf-8", "replace").decode().replace("\0", "\ufffd")
