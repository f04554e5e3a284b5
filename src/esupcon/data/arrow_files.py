"""Columns of Arrow and Parquet files, some rows at a time, through pyarrow."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from esupcon.data.decode import Encoded
from esupcon.data.listing import stamp_of

_ROWS = 64  # images held encoded at a time


class ArrowImages:
    """The images of one column, read in order; a few are held at a time."""

    def __init__(self, files: list[Path], column: str) -> None:
        self._files = files
        self._column = column
        self._counts = [_n_rows(file) for file in files]
        self.n_bytes = sum(file.stat().st_size for file in files)

    def __len__(self) -> int:
        return sum(self._counts)

    def __iter__(self) -> Iterator[Encoded]:
        for file in self._files:
            yield from self._in_file(file)

    def sample(self, n: int) -> Iterator[Encoded]:
        """The first rows of every file."""
        for file in self._files:
            yield from islice(self._in_file(file), max(1, n // len(self._files)))

    def _in_file(self, file: Path) -> Iterator[Encoded]:
        for cells in column_cells(file, self._column):
            for cell in cells:
                yield _encoded(cell, file.parent)

    def name(self, i: int) -> str:
        for file, count in zip(self._files, self._counts, strict=True):
            if i < count:
                return f"{file}, row {i}"
            i -= count
        raise IndexError(i)

    def stamp(self) -> list[object]:
        return [self._column, [(str(file.absolute()), *stamp_of(str(file))) for file in self._files]]


def _encoded(cell: Any, folder: Path) -> Encoded:
    """A cell is the bytes, or {bytes, path} of which one may be missing."""
    data, path = (cell.get("bytes"), cell.get("path")) if isinstance(cell, dict) else (cell, None)
    if data is None and path:
        return str(folder / path)
    return bytes(data) if isinstance(data, bytes) else b""


def pyarrow_module() -> Any:
    try:
        import pyarrow  # noqa: PLC0415 - an extra, and slow to import
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError:
        raise ModuleNotFoundError(
            "Arrow and Parquet files are read by pyarrow, which is not installed: pip install 'esupcon[parquet]'."
        ) from None
    return pyarrow


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """A ParquetFile, or the stream of record batches that `datasets` writes."""
    pa = pyarrow_module()
    try:
        if _is_parquet(file):
            with pa.parquet.ParquetFile(file) as table:
                _refuse_swollen(table.metadata.num_rows, file)
                yield table
        else:
            with pa.memory_map(str(file)) as mapped, pa.ipc.open_stream(mapped) as stream:
                yield stream
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(f"{file} cannot be read: {' '.join(str(error).split())}.") from None


def column_cells(file: Path, column: str) -> Iterator[list[Any]]:
    """The values of the column, some rows at a time."""
    with opened(file) as table:
        for batch in _batches(table, file, column):
            where = batch.schema.get_field_index(column)
            if where < 0:
                raise ValueError(f"{file} has no column {column!r}, unlike the others.")
            values = batch.column(where)
            for start in range(0, len(values), _ROWS):
                yield values.slice(start, _ROWS).to_pylist()


def _batches(table: Any, file: Path, column: str) -> Iterator[Any]:
    if _is_parquet(file):
        yield from table.iter_batches(batch_size=_ROWS, columns=[column])
        return
    rows = 0
    for batch in table:
        rows += batch.num_rows
        _refuse_swollen(rows, file)
        batch.validate(full=True)  # the file's word on where a value lies is else believed, be it outside the file
        yield batch


def _n_rows(file: Path) -> int:
    with opened(file) as table:
        if _is_parquet(file):
            return int(table.metadata.num_rows)
        return sum(batch.num_rows for batch in table)


def _is_parquet(file: Path) -> bool:
    return file.suffix.lower() == ".parquet"


def _refuse_swollen(rows: int, file: Path) -> None:
    """No image takes less than a byte; a column that repeats one value may claim any number of rows."""
    size = file.stat().st_size
    if rows > size:
        raise ValueError(f"{file} claims {rows:,} rows or more in {size:,} bytes: it holds no images.")
