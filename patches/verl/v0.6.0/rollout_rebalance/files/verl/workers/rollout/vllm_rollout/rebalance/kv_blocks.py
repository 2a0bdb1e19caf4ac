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
"""The contents of KV blocks, from one data-parallel rank to another.

vllm-ascend's caches are tensors with the block as first dimension: key and value of each layer, or the two (with sparse
attention three) parts of multi-head latent attention (NPUModelRunner._reshape_kv_cache_tensors), so one index finds a
block in each. Blocks are sent in rounds that all ranks of the column compute alike from the largest transfer between
any two of them, so that the buffers stay below a limit.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch


class KVLayoutError(ValueError):
    """The engine keeps its KV cache in a way that blocks cannot be copied out of."""


def cache_tensors(runner, num_blocks: int, block_size: int) -> list[torch.Tensor]:
    """All tensors of the KV cache, each with a block as first and its tokens as second dimension; shared ones once.

    Args:
        runner: the engine's NPUModelRunner.
        num_blocks, block_size: as the scheduler counts blocks.

    Raises:
        KVLayoutError: another layout, or tensors of several dtypes.
    """
    found = {}
    for cache in runner.kv_caches:
        for tensor in cache if isinstance(cache, tuple | list) else (cache,):
            if tensor.dim() < 3 or tensor.shape[0] < num_blocks or tensor.shape[1] != block_size:
                raise KVLayoutError(
                    f"a KV cache tensor of shape {tuple(tensor.shape)} does not have {num_blocks} blocks of "
                    f"{block_size} tokens as its first dimensions"
                )
            found[tensor.data_ptr()] = tensor
    tensors = list(found.values())
    if len({tensor.dtype for tensor in tensors}) != 1:
        raise KVLayoutError(f"KV cache tensors of dtypes {sorted({str(tensor.dtype) for tensor in tensors})}")
    return tensors


def rounds(row_bytes: Sequence[int], most_blocks: int, limit: int) -> Iterator[tuple[int, int, int, int]]:
    """Cuts the tensors' blocks into rounds of at most `limit` bytes for any pair of ranks (or one block of one tensor).

    Args:
        row_bytes: bytes of one block in each tensor.
        most_blocks: the most blocks that a rank sends another.

    Yields:
        (first tensor, end, first block, end): neighbouring tensors with all blocks, or one tensor with some.
    """
    first = 0
    while most_blocks and first < len(row_bytes):
        end, size = first, 0
        while end < len(row_bytes) and size + row_bytes[end] * most_blocks <= limit:
            size += row_bytes[end] * most_blocks
            end += 1
        if end > first:
            yield first, end, 0, most_blocks
            first = end
            continue
        step = max(1, limit // row_bytes[first])
        for block in range(0, most_blocks, step):
            yield first, first + 1, block, min(block + step, most_blocks)
        first += 1


@torch.inference_mode()
def copy_blocks(
    column,
    tensors: Sequence[torch.Tensor],
    sent: Mapping[int, Sequence[int]],
    received: Mapping[int, Sequence[int]],
    table: Mapping[tuple[int, int], int],
    limit: int,
) -> int:
    """Copies blocks between the ranks of the column; a collective call of it. Returns bytes sent by this rank.

    Args:
        column: Column.
        tensors: of the KV cache, as `cache_tensors`.
        sent: block numbers of this rank, in order, by rank of destination.
        received: where to put what comes, by rank of source: as many blocks as that rank sends here.
        table: blocks by (source, destination), the same on every rank.
        limit: bytes of a rank's buffer to send, and of that to receive.
    """
    degrees = [[pair[side] for pair in table] for side in (0, 1)]
    partners = max((side.count(rank) for side in degrees for rank in side), default=1)
    device = tensors[0].device
    row_bytes = [tensor[0].numel() * tensor.element_size() for tensor in tensors]
    outgoing = [torch.tensor(sent.get(rank, ()), dtype=torch.long, device=device) for rank in range(column.size)]
    incoming = [torch.tensor(received.get(rank, ()), dtype=torch.long, device=device) for rank in range(column.size)]
    for first, end, start, stop in rounds(row_bytes, max(table.values(), default=0), limit // partners):
        part = tensors[first:end]
        elements = sum(tensor[0].numel() for tensor in part)
        rows = [blocks[start:stop] for blocks in incoming]
        packed = [_gather(part, blocks[start:stop]) for blocks in outgoing]
        arrived = column.exchange_elements(packed, [len(blocks) * elements for blocks in rows])
        for blocks, flat in zip(rows, arrived, strict=True):
            _scatter(part, blocks, flat)
    return sum(len(blocks) for blocks in outgoing) * sum(row_bytes)


def _gather(tensors: Sequence[torch.Tensor], blocks: torch.Tensor) -> torch.Tensor:
    """The blocks of each tensor, flat: all of the first tensor, then of the next."""
    return torch.cat([tensor.index_select(0, blocks).reshape(-1) for tensor in tensors])


def _scatter(tensors: Sequence[torch.Tensor], blocks: torch.Tensor, flat: torch.Tensor) -> None:
    if not len(blocks):
        return
    sizes = [len(blocks) * tensor[0].numel() for tensor in tensors]
    for tensor, part in zip(tensors, flat.split(sizes), strict=True):
        tensor[blocks] = part.view(len(blocks), *tensor.shape[1:])
