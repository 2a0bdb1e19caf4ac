# Copyright 2025 Individual Contributor: patchctl
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Whose request is whose, as one data-parallel rank knows it.

vllm names requests by a counter of each engine and a random suffix, so names of two ranks can be the same, and those of
one request differ between tensor-parallel ranks. Here a request is (rank of origin, its serial number there), which is
the same in every process. Where it is a guest, or has come home, it runs under a name made for that stay: an engine may
not have forgotten an earlier one yet.
"""

from dataclasses import dataclass, field

Key = tuple[int, int]


@dataclass
class Ledger:
    """The book of one rank; it is empty between generations.

    Attributes:
        rank: data-parallel rank of this process.
        away: rank that has it, of each request of ours that is elsewhere, by serial.
    """

    rank: int
    away: dict[int, int] = field(default_factory=dict)
    _serials: dict[str, int] = field(default_factory=dict)
    _ids: list[str] = field(default_factory=list)
    _stays: dict[str, Key] = field(default_factory=dict)
    _names: dict[Key, str] = field(default_factory=dict)
    _arrivals: int = 0

    def key(self, name: str) -> Key:
        """The key of a request that is here by this name. One of ours gets a serial when it is first asked for."""
        if name in self._stays:
            return self._stays[name]
        if name not in self._serials:
            self._serials[name] = len(self._ids)
            self._ids.append(name)
        return self.rank, self._serials[name]

    def original(self, serial: int) -> str:
        """The name that our own request has in our output processor."""
        return self._ids[serial]

    def is_here(self, key: Key) -> bool:
        """Whether the book has the request on this rank; it may have ended since."""
        return key in self._names or (key[0] == self.rank and key[1] not in self.away)

    def name(self, key: Key) -> str:
        """The name of a request that is here."""
        return self._names[key] if key in self._names else self._ids[key[1]]

    def stay(self, name: str) -> Key | None:
        """The key of a request that has been moved here, None for one that never left."""
        return self._stays.get(name)

    def new_name(self, key: Key) -> str:
        """A name for a stay of the request here that no other request has, nor had."""
        self._arrivals += 1
        return f"{key[0]}/{key[1]}/{self._arrivals}"

    def arrived(self, key: Key, name: str) -> None:
        self._stays[name], self._names[key] = key, name
        if key[0] == self.rank:
            self.away.pop(key[1], None)

    def gone(self, key: Key) -> None:
        """The request has left this rank or has ended here."""
        name = self._names.pop(key, None)
        self._stays.pop(name, None)

    def where(self, name: str) -> tuple[int, Key] | None:
        """Rank and key of one of our own requests, by its original name; None when it never left."""
        serial = self._serials.get(name)
        if serial is None:
            return None
        key = (self.rank, serial)
        if serial in self.away:
            return self.away[serial], key
        return (self.rank, key) if key in self._names else None

    def guests(self) -> int:
        """How many requests that were moved are here."""
        return len(self._stays)

    def clear(self) -> None:
        """Forgets everything, at the end of a generation. Raises RuntimeError when a request is not at home."""
        if self._stays or self.away:
            raise RuntimeError(f"requests are not at home: {self.away}, guests {list(self._stays.values())}")
        self._serials.clear()
        self._ids.clear()
