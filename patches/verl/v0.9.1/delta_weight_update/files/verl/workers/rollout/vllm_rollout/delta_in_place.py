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
"""Changed weights, written where they lie in a vllm worker: by the model's own loaders, of which only what changed is copied.

Of each weight that changed a tensor is made that holds the new values, and NaN elsewhere. The loaders cut it, turn it and give it to fused
weights as they do with a whole one, and end in Tensor.copy_, or in an assignment to a slice, which leave alone what is NaN. Layouts are those of
the loaders, therefore, and what the engine derives from weights is made by process_weights_after_loading as after a whole update.

Digests tell whether that is what happened. Before the first piece the worker's weights are as the last update left them; after the last one
they differ by what was copied, which is no more than was sent, and no place was copied to twice for one weight, as by a loader that computes
with what it has written. Otherwise the update is not taken, and the next one brings all weights.
"""

import json
import logging
from contextlib import contextmanager

import torch

from verl.utils.delta_in_place import BEGINS, digest, digest_of_change
from verl.workers.rollout.vllm_rollout.weight_update_utils import apply_buffer_updates, split_buffer_updates

logger = logging.getLogger(__name__)
# Bytes of the tensors, as large as whole weights, that are given to the model's loader at a time.
CHUNK = 512 << 20


class InPlace:
    """Updates of one worker's models: `begin`, `write` for each bucket, `end`."""

    def __init__(self) -> None:
        self._left = None  # digests by model, as the last update left them
        self._whole = True

    def begin(self, models, whole: bool) -> None:
        """`whole` says that whole weights follow, which are loaded as always."""
        self._whole = whole
        self._refused = None
        if not whole and (self._left is None or self._digests(models) != self._left):
            self._refused = "the weights are not those that the last update left"
        self._added = self._written = self._sent = 0

    def write(self, models, pieces) -> None:
        """`pieces` are those of DeltaInPlaceCheckpointEngine.receive_weights."""
        chunk, size = {}, 0
        for label, packed in pieces:
            if self._refused:
                return
            label = json.loads(label)
            weight = self._with_nan(label, packed)
            if chunk and (label["name"] in chunk or size + weight.nbytes > CHUNK):
                self._load(models, chunk)
                chunk, size = {}, 0
            chunk[label["name"]] = weight
            size += weight.nbytes
        if chunk:
            self._load(models, chunk)

    def end(self, models) -> bool:
        """Whether the update was taken. Called after process_weights_after_loading."""
        now = self._digests(models)
        if not self._whole and self._refused is None:
            expected = sum(self._left) + int(self._added)
            if (sum(now) - expected) % 2**64:
                self._refused = "weights changed otherwise than what changed was written"
            elif int(self._written) > self._sent * len(models):
                self._refused = f"{int(self._written)} values were written of {self._sent} that came"
        self._left = None if self._refused else now
        if self._refused:
            logger.warning("delta_in_place: %s; the next update brings all", self._refused)
        return self._refused is None

    @staticmethod
    def _digests(models) -> list[int]:
        found = [torch.stack([digest(one) for one in model.parameters()]).sum() for model in models]
        return [int(one) for one in found]

    def _with_nan(self, label, packed) -> torch.Tensor:
        count, kind = label["count"], getattr(torch, label["dtype"])
        values = packed[count:].view(kind)[:count]
        if not kind.is_floating_point or bool(values.isnan().any()):
            self._refused = f"{label['name']} has NaN, or no floating-point numbers"
            values = values.to(torch.float32)
        self._sent += count
        whole = torch.full(
            (torch.Size(label["shape"]).numel(),), float("nan"), dtype=values.dtype, device=packed.device
        )
        return whole.index_copy_(0, packed[:count].long(), values).view(label["shape"])

    def _load(self, models, weights) -> None:
        for model in models:
            parameters, buffers, _ = split_buffer_updates(model, list(weights.items()))
            with self._only_what_came(model):
                model.load_weights(parameters)
                apply_buffer_updates(model, buffers)

    @contextmanager
    def _only_what_came(self, model):
        copy, assign = torch.Tensor.copy_, torch.Tensor.__setitem__
        counted = set(map(_storage, model.parameters()))  # digests are of parameters
        kept = counted | set(map(_storage, model.buffers()))
        written = set()

        def copied(into, source, *args, **kwargs):
            # Elsewhere than in the model, NaN travels on.
            here = isinstance(source, torch.Tensor) and source.is_floating_point() and _storage(into) in kept
            if not here or into.shape != source.shape or not into.numel():
                return copy(into, source, *args, **kwargs)
            source = source.to(device=into.device, dtype=into.dtype)
            came = ~source.isnan()
            if _storage(into) in counted:
                place = into.data_ptr(), into.shape, into.stride()
                if place in written:
                    self._refused = "a loader computes with what it has written"
                written.add(place)
                self._added = self._added + digest_of_change(into, source, came)
                self._written = self._written + came.sum()
            return copy(into, torch.where(came, source, into))

        def assigned(into, index, source):
            here = isinstance(source, torch.Tensor) and source.is_floating_point() and _storage(into) in kept
            view = into[index] if here else None
            if view is not None and view.shape == source.shape and _storage(view) == _storage(into):
                copied(view, source)
            else:
                assign(into, index, source)

        torch.Tensor.copy_, torch.Tensor.__setitem__ = copied, assigned
        try:
            yield
        finally:
            torch.Tensor.copy_, torch.Tensor.__setitem__ = copy, assign


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def begins(weights) -> bool:
    return bool(weights) and weights[0][0] == BEGINS
