"""JSON files of our own as typed records: read as their dataclass says, or refused with one error."""

from __future__ import annotations

import json
from typing import TypeVar

from patchctl.manifest.typeinfo import build

T = TypeVar("T")


class BadRecord(ValueError):
    """Why a file is not what its class says. `version` is the one that it has, where that is another than is known here."""

    def __init__(self, why: str, version: object = None) -> None:
        super().__init__(why)
        self.version = version


def parse(kind: type[T], text: str | bytes, version: tuple[str, object] | None = None, *, others: bool = False) -> T:
    """A record of `kind`. `version`: the key that has the version, and the one that is known; it is no field. `others`: keys that
    the class does not have are passed over. Raises BadRecord."""
    try:
        data = json.loads(text)
        found = data.pop(version[0]) if version else None
        if version and (found != version[1] or isinstance(found, bool)):
            raise BadRecord(f"{version[0]} {version[1]!r} was expected and {found!r} found", found)
        record: T = build(kind, data, others=others)
    except BadRecord:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadRecord(str(error) or "a value is missing") from error
    return record
