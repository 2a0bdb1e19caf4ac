"""Reads the rows of a data set from local files, as the public sets have them: JSON, JSON lines and parquet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.ending import WrongUse

BATCH = 4096
FORMATS = ".json, .jsonl and .parquet"


@dataclass(frozen=True)
class Row:
    """One row of an input file. `number` counts from 1, as `head -n` and a table's first row do."""

    file: str
    number: int
    fields: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.file}, row {self.number}"


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of one file, in its order. Raises WrongUse where the file is none, or cannot be read as what it is."""
    if not path.is_file():
        raise WrongUse("no such file", where=str(path), hint="give files, not folders or names of data sets")
    readers = {".json": _json, ".jsonl": _json_lines, ".parquet": _parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise WrongUse(f"{path.suffix or 'no suffix'}: only {FORMATS} are read", where=str(path))
    for number, fields in enumerate(reader(path), 1):
        if not isinstance(fields, dict):
            raise WrongUse(f"row {number} is {type(fields).__name__}, not an object with fields", where=str(path))
        yield Row(str(path), number, fields)


def _json(path: Path) -> Iterator[Any]:
    """A list of objects; or, as some sets name them too, one object a line."""
    text = _text(path)
    if not text.lstrip().startswith("["):
        yield from _json_lines(path)
        return
    try:
        yield from json.loads(text)
    except json.JSONDecodeError as error:
        raise WrongUse(f"line {error.lineno} is no JSON: {error.msg}", where=str(path)) from None


def _json_lines(path: Path) -> Iterator[Any]:
    # Not splitlines(): a U+2028 inside a text is no end of a line.
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            raise WrongUse(f"line {number} is no JSON: {error.msg}", where=str(path)) from None


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise WrongUse(f"byte {error.start} is no UTF-8", where=str(path)) from None
    if text.startswith("version https://git-lfs"):
        raise WrongUse("this is a Git LFS pointer, not the data", where=str(path), hint="git lfs pull")
    return text


def _parquet(path: Path) -> Iterator[Any]:
    """Batch by batch: dapo-math-17k is published with 1.8 million rows."""
    import pyarrow.lib
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        for batch in file.iter_batches(batch_size=BATCH):
            yield from batch.to_pylist()
    except pyarrow.lib.ArrowException as error:
        raise WrongUse(f"no parquet: {error}", where=str(path), hint="git lfs pull, or fetch it again") from None
