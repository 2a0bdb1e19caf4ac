# Part of patchctl's patch delta_weight_update; not in upstream verl.
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
"""What both sides of delta_in_place share. Digests are of plain integer operators, which every device has; torch.hash_tensor is of some."""

import torch

# Name of the first tensor of an update, uint8 [1]: 1 where all weights follow, 0 where changes do.
BEGINS = "__delta_in_place__"

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Odd, and below 2^31: products of 16 bits do not even wrap, and those that do wrap alike on all devices.
FIRST, SECOND = 0x6C8E9CF5, 0x45D9F3B3
# Elements at a time: their 64-bit copies take eight bytes each.
PART = 1 << 24


def mixed(bits: torch.Tensor) -> torch.Tensor:
    """int64 for int64, another number for each; 0 stays 0."""
    bits = bits * FIRST
    return (bits ^ (bits >> 15)) * SECOND


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """int64 of the tensor's shape: each element's bits."""
    return tensor.view(BITS[tensor.element_size()]).to(torch.int64)


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """int64 []: the sum of all elements' bits, mixed. Layout and order do not count, and zeros add nothing, such as padding."""
    tensor = tensor.detach()
    if not tensor.numel():
        return torch.zeros((), dtype=torch.int64, device=tensor.device)
    return torch.stack([mixed(bits_of(part)).sum() for part in parts_of(tensor)]).sum()


def digest_of_change(old: torch.Tensor, new: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    """int64 []: what the digest of `old` gains where it becomes `new`; all three have one shape, `where` is bool."""
    total = torch.zeros((), dtype=torch.int64, device=old.device)
    for before, after, came in zip(*map(parts_of, (old.detach(), new, where)), strict=True):
        total += torch.where(came, mixed(bits_of(after)) - mixed(bits_of(before)), 0).sum()
    return total


def parts_of(tensor: torch.Tensor):
    """Its rows, some at a time."""
    rows = tensor if tensor.dim() else tensor[None]
    return rows.split(max(1, PART * len(rows) // max(1, rows.numel())))


def digest_of_pairs(positions: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """int64 []: the same of positions, int32, with the value that is for each; of values alone, with their places."""
    total = torch.zeros((), dtype=torch.int64, device=values.device)
    for start in range(0, values.numel(), PART):
        bits = bits_of(values[start : start + PART])
        if positions.numel():
            where = positions[start : start + PART].to(torch.int64)
        else:
            where = torch.arange(start, start + bits.numel(), device=bits.device)
        total += mixed(mixed(where + 1) + bits).sum()
    return total
