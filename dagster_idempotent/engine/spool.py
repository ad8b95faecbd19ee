"""A body while it comes in: held on disk once it is large, its hash and size told as it grows."""

from collections.abc import Callable, Iterator
from hashlib import sha256
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Self

IN_MEMORY = 1024 * 1024
PIECE = 1024 * 1024


class Spool:
    """Takes a body piece by piece, at most `most` bytes of it; as a context it forgets it at the end.

    What is beyond `IN_MEMORY` lies in the folder for temporary files (TMPDIR).
    """

    def __init__(self, most: int, too_large: Callable[[], Exception]) -> None:
        self.size = 0
        self._most, self._too_large = most, too_large
        self._hash = sha256()
        self._file = SpooledTemporaryFile[bytes](max_size=IN_MEMORY)

    def __enter__(self) -> Self:
        """Take a body until the block ends."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Forget it."""
        self._file.close()

    @property
    def sha256(self) -> str:
        """The hash of what has come in, hexadecimal."""
        return self._hash.hexdigest()

    def write(self, piece: bytes) -> None:
        """Take the next piece."""
        self.size += len(piece)
        if self.size > self._most:
            raise self._too_large()
        self._hash.update(piece)
        self._file.write(piece)

    def pieces(self) -> Iterator[bytes]:
        """Give everything back, from its beginning."""
        self._file.seek(0)
        while piece := self._file.read(PIECE):
            yield piece

    def read(self) -> bytes:
        """Give everything back at once."""
        self._file.seek(0)
        return self._file.read()
