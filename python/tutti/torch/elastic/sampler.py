# SPDX-License-Identifier: Apache-2.0
"""A sampler that remembers which samples of an epoch were processed."""

from __future__ import annotations

import random
import warnings
from typing import Any, Dict, Iterator, List, Optional, Sized

import torch

from tutti import _basics


class ElasticSampler(torch.utils.data.Sampler):
    """Shares out the samples of an epoch that no rank has processed yet.

    Call record_batch after each batch, set_epoch at the end of an epoch, and keep it in a
    TorchState, which shares what the ranks have processed at each commit. `indices` are this rank's
    samples of this pass; `rank` and `num_replicas` are those for which they were dealt out. When
    the rest of an epoch was dealt out anew, batches may be counted from 0 again or on from where
    they were: the first number that comes is that of the pass's first batch. It belongs to one
    thread. """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_indices: set = set()
        self._unshared: List[int] = []  # processed here, and not known to the other ranks yet
        self.remaining_indices: List[int] = []
        self.indices: List[int] = []
        self._first_batch: Optional[int] = 0  # the number of the pass's first batch; None: not known
        self.num_replicas = 1
        self.rank = 0
        self.num_samples = 0
        self.total_size = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, of which no sample is processed."""
        self.epoch = epoch
        self.processed_indices = set()
        self._unshared = []
        self.reset()

    def get_indices(self, batch_idx: int, batch_size: int) -> List[int]:
        """Returns this rank's samples in batch number `batch_idx`; none beyond the pass."""
        if self._first_batch is None:
            self._first_batch = batch_idx
        place = max(batch_idx - self._first_batch, 0)
        return self.indices[place * batch_size:(place + 1) * batch_size]

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Notes batch number `batch_idx` as processed. Warns where the pass has no such batch."""
        indices = self.get_indices(batch_idx, batch_size)
        if not indices:
            warnings.warn(f"record_batch({batch_idx}, {batch_size}) notes nothing: this pass has "
                          f"{len(self.indices)} samples, of which the first batch was number "
                          f"{self._first_batch}", stacklevel=2)
        self.record_indices(indices)

    def record_indices(self, indices: Any) -> None:
        """Notes samples as processed."""
        numbers = [int(index) for index in indices]  # `indices` may be a tensor or a generator
        self._unshared.extend(numbers)
        self.processed_indices.update(numbers)

    @property
    def processed_num(self) -> int:
        """Returns how many samples are noted as processed; Horovod's attribute."""
        return len(self.processed_indices)

    def unshared(self) -> torch.Tensor:
        """Returns the samples noted here since the last take_shared."""
        return torch.tensor(self._unshared, dtype=torch.int64, device="cpu")

    def take_shared(self, indices: torch.Tensor) -> None:
        """Notes the samples that all ranks have processed. The parts of this pass stay
        unchanged."""
        self.processed_indices.update(indices.tolist())
        self._unshared = []

    def state_dict(self) -> Dict[str, Any]:
        """Returns the argument for load_state_dict."""
        return {"epoch": self.epoch, "processed_indices": set(self.processed_indices),
                "processed_num": self.processed_num}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Continues where `state` was, with the present ranks. A state of Horovod's has only the
        number of processed samples, in its own order."""
        self.epoch = state["epoch"]
        if "processed_indices" in state:
            self.processed_indices = set(state["processed_indices"])
        else:
            order = list(range(len(self.dataset)))
            if self.shuffle:
                random.Random(self.seed + self.epoch).shuffle(order)
            self.processed_indices = set(order[:state["processed_num"]])
        self._unshared = []
        self.reset()

    def reset(self) -> None:
        """Shares out the remaining samples among the present ranks."""
        job = _basics.job()
        self.rank, self.num_replicas = (job.rank(), job.size()) if job.is_initialized() else (0, 1)
        self.remaining_indices = [i for i in range(len(self.dataset))
                                  if i not in self.processed_indices]
        self._first_batch = None if self.processed_indices else 0
        self._deal()

    def _deal(self) -> None:
        """Sets the part of remaining_indices for this rank."""
        order = list(self.remaining_indices)
        if self.shuffle:
            generator = torch.Generator("cpu").manual_seed(self.seed + self.epoch)
            shuffled = torch.randperm(len(order), generator=generator, device="cpu")
            order = [order[i] for i in shuffled.tolist()]
        # All parts are equal; the first samples are taken twice where they do not come out even.
        self.num_samples = -(-len(order) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        while order and len(order) < self.total_size:
            order += order[:self.total_size - len(order)]
        self.indices = order[self.rank:self.total_size:self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        self._deal()  # the program may have changed attributes since
        return iter(list(self.indices))

    def __len__(self) -> int:
        return self.num_samples
