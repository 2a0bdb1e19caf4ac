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
"""One rebalance of an engine group: results and aborts go home, a plan is made, requests move.

All ranks of a column come here after the same number of steps. Three messages, each to every rank:

1. what ended or grew here of other ranks' requests, requests that their origin has aborted, and the rank's load;
2. after the plan, which is the same on every rank: the requests that leave, without KV;
3. which of those there was room for, and how many blocks each still needs; then the blocks themselves.

A request leaves its engine only after its blocks have been sent, and one that finds no room stays where it is: nothing
is lost and nothing is recomputed. Before each message, each round of blocks and the step that follows all ranks of the
engine group meet (channel.py), and what one has raised since they met before all of them raise.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .channel import Column, RebalanceError
from .engine_requests import Arrival, EngineRequests, Parcel
from .kv_blocks import copy_blocks
from .ledger import Key, Ledger
from .planner import Move, Policy, RankState, RequestState, plan


@dataclass
class Counts:
    """What has been moved since the engine was made, as seen by this rank; for logs and tests."""

    exchanges: int = 0
    plans: int = 0
    running_out: int = 0
    waiting_out: int = 0
    running_in: int = 0
    waiting_in: int = 0
    came_home: int = 0
    refused: int = 0
    blocks_in: int = 0
    blocks_shared: int = 0
    bytes_out: int = 0
    results_home: int = 0
    aborted: int = 0


@dataclass
class _Report:
    state: RankState | None
    drafting: bool
    results: list = field(default_factory=list)
    aborts: list[int] = field(default_factory=list)


class Rebalancer:
    """Moves requests between this process' engine and those of its column.

    Args:
        column: Column of this process.
        engine: EngineRequests of this process.
        ledger: Ledger of this rank.
        policy: the planner's while drafts are used, the same on every rank.
        tensors: of the KV cache.
        staging_bytes: limit of a buffer of KV blocks.
    """

    def __init__(
        self,
        column: Column,
        engine: EngineRequests,
        ledger: Ledger,
        policy: Policy,
        tensors: Sequence,
        staging_bytes: int,
    ) -> None:
        self._column, self._engine, self._ledger = column, engine, ledger
        self._policy, self._tensors, self._staging_bytes = policy, tensors, staging_bytes
        self.counts = Counts()
        # By rank: outputs of its requests that ran here, and serials of requests of ours that we have aborted there.
        self.outbox: list[list] = []
        self.aborts: list[list[int]] = []
        self.forget()

    def forget(self) -> None:
        """Empties what would go out next: all of it has been sent, or is about requests that nobody waits for."""
        self.outbox = [[] for _ in range(self._column.size)]
        self.aborts = [[] for _ in range(self._column.size)]

    def before_dummy(self) -> None:
        """To be called before a step without requests."""
        self._engine.forget_slots()

    def rebalance(self, planning: bool) -> list:
        """A collective call of the column. Returns EngineCoreOutputs, in order, for this rank's output processor.

        Args:
            planning: whether requests may move; otherwise only results and aborts are delivered.

        Raises:
            RebalanceError: on every rank of the engine group, when one has failed or has another plan. What else this
                rank raises the others wait for, until the caller has told them (Column.fail).
        """
        self.counts.exchanges += 1
        reports = self._column.exchange(self._reports(planning))
        self._end_aborted(reports)
        results = [self._renamed(one) for report in reports for one in report.results]
        self.counts.results_home += len(results)
        if planning:
            drafting = any(report.drafting for report in reports)  # ranks of a dense model pause each by itself
            moves = plan([report.state for report in reports], self._policy if drafting else self._policy.paused())
            self._check_same(moves)
            if moves:
                self.counts.plans += 1
                self._move(moves)
                self._column.largest()  # before the step: who has failed does not come to the model's collectives
        return results

    def _check_same(self, moves: Sequence[Move]) -> None:
        """Each tensor-parallel rank moves its shard of a request's blocks, so all have to have the same plan."""
        digest = int.from_bytes(hashlib.sha256(json.dumps(moves).encode()).digest()[:7], "big")
        if self._column.largest([digest, -digest]) != [digest, -digest]:
            raise RebalanceError("the ranks of an engine group have planned different moves")

    def _reports(self, planning: bool) -> list[_Report]:
        state = self._state() if planning else None
        reports = [
            _Report(state, self._engine.is_drafting(), *mail) for mail in zip(self.outbox, self.aborts, strict=True)
        ]
        self.forget()
        return reports

    def _state(self) -> RankState:
        scheduler = self._engine.scheduler
        pool = scheduler.kv_cache_manager.block_pool
        return RankState(
            rank=self._column.rank,
            running=[self._request_state(request) for request in scheduler.running],
            waiting=[self._request_state(request) for request in scheduler.waiting],
            free_blocks=pool.get_num_free_blocks(),
            total_blocks=pool.num_gpu_blocks,
            max_num_seqs=scheduler.max_num_running_reqs,
        )

    def _request_state(self, request) -> RequestState:
        return RequestState(
            request_id=_text(self._ledger.key(request.request_id)),
            blocks=len(self._engine.blocks(request)),
            tokens=request.num_tokens,
            expected_tokens=max(0, request.max_tokens - request.num_output_tokens),
            movable=self._engine.is_movable(request),
        )

    def _end_aborted(self, reports: Sequence[_Report]) -> None:
        for origin, report in enumerate(reports):
            for serial in report.aborts:
                self.end_guest((origin, serial))

    def end_guest(self, key: Key) -> None:
        """Aborts a request that was moved here; no-op when it has ended by itself."""
        if self._ledger.is_here(key):
            self._engine.abort([self._ledger.name(key)])
            self._ledger.gone(key)
            self.counts.aborted += 1

    def send_abort(self, key: Key) -> None:
        """Notes for the next exchange that one of our own requests, which is away, is aborted; nobody waits for it."""
        self.aborts[self._ledger.away.pop(key[1])].append(key[1])

    def _renamed(self, one: tuple[int, Any]) -> Any:
        serial, output = one
        output.request_id = self._ledger.original(serial)
        if output.finish_reason is not None:
            self._ledger.away.pop(serial, None)
        return output

    def _move(self, moves: Sequence[Move]) -> None:
        me = self._column.rank
        leaving = [[move for move in moves if (move.source, move.destination) == (me, rank)] for rank in self._ranks()]
        parcels = self._column.exchange([self._parcels(some) for some in leaving])
        arrivals: list[list[Arrival | None]] = []
        # What a rank has room for is told to all: the origin of a request may be a third rank.
        answers = self._column.exchange([self._receive(parcels, arrivals)] * self._column.size)
        self._copy(leaving, arrivals, answers)
        for rank, some in enumerate(leaving):
            self._leave(some, answers[rank][me])
        self._note_away(answers)
        for some in arrivals:
            self._settle([one for one in some if one is not None])

    def _ranks(self) -> range:
        return range(self._column.size)

    def _parcels(self, moves: Sequence[Move]) -> list[Parcel | None]:
        """A parcel a move, None for a request that has been aborted since the plan was made."""
        return [self._parcel(_key(move.request_id)) for move in moves]

    def _parcel(self, key: Key) -> Parcel | None:
        request = self._request(key)
        return self._engine.pack(request, *key) if request and self._engine.is_movable(request) else None

    def _request(self, key: Key):
        if not self._ledger.is_here(key):
            return None
        return self._engine.scheduler.requests.get(self._ledger.name(key))

    def _receive(self, parcels: Sequence[Sequence[Parcel | None]], arrivals: list) -> list[list]:
        """Makes room for what comes, into `arrivals`. Returns by source (key, first missing block, blocks) or None."""
        for some in parcels:
            arrivals.append([self._arrival(parcel) if parcel else None for parcel in some])
        return [[_answer(one) for one in some] for some in arrivals]

    def _arrival(self, parcel: Parcel) -> Arrival | None:
        return self._engine.receive(parcel, self._ledger.new_name((parcel.origin, parcel.serial)))

    def _copy(self, leaving: Sequence[Sequence[Move]], arrivals: Sequence[Sequence[Arrival | None]], answers) -> None:
        table = {
            (source, destination): sum(one[2] for one in some if one)
            for destination, answer in enumerate(answers)
            for source, some in enumerate(answer)
        }
        table = {pair: blocks for pair, blocks in table.items() if blocks}
        me = self._column.rank
        sent = {rank: self._sent_blocks(some, answers[rank][me]) for rank, some in enumerate(leaving)}
        received = {rank: [b for one in some if one for b in one.blocks] for rank, some in enumerate(arrivals)}
        self.counts.bytes_out += copy_blocks(self._column, self._tensors, sent, received, table, self._staging_bytes)

    def _sent_blocks(self, moves: Sequence[Move], answers: Sequence) -> list[int]:
        blocks = []
        for move, answer in zip(moves, answers, strict=True):
            if answer:
                blocks += self._engine.used_blocks(self._request(_key(move.request_id)))[answer[1] :]
        return blocks

    def _leave(self, moves: Sequence[Move], answers: Sequence) -> None:
        for move, answer in zip(moves, answers, strict=True):
            if answer is None:
                self.counts.refused += 1
                continue
            key = _key(move.request_id)
            self._engine.remove(self._request(key))
            self._ledger.gone(key)
            self.counts.waiting_out += move.waiting
            self.counts.running_out += not move.waiting

    def _note_away(self, answers: Sequence) -> None:
        """Every rank's book says where its own requests are now."""
        for destination, answer in enumerate(answers):
            for key, _, _ in (one for some in answer for one in some if one):
                if key[0] == self._column.rank != destination:
                    self._ledger.away[key[1]] = destination

    def _settle(self, arrivals: Sequence[Arrival]) -> None:
        for arrival in arrivals:
            parcel = arrival.parcel
            key = (parcel.origin, parcel.serial)
            self._engine.insert(arrival)
            self._ledger.arrived(key, arrival.request.request_id)
            self.counts.came_home += key[0] == self._column.rank
            self.counts.running_in += parcel.running
            self.counts.waiting_in += not parcel.running
            self.counts.blocks_in += len(arrival.blocks)
            self.counts.blocks_shared += arrival.missing_from


def _answer(arrival: Arrival | None) -> tuple[Key, int, int] | None:
    if arrival is None:
        return None
    parcel = arrival.parcel
    return (parcel.origin, parcel.serial), arrival.missing_from, len(arrival.blocks)


def _text(key: Key) -> str:
    """The key as the planner has it; digits are filled so that text sorts as numbers do."""
    return f"{key[0]:05d}:{key[1]:08d}"


def _key(text: str) -> Key:
    origin, serial = text.split(":")
    return int(origin), int(serial)
