"""Tensors and DTensors filled from a set of shards: PyTorch's distributed checkpoint plans what a rank needs of which piece, for
any number of ranks then and now.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

if TYPE_CHECKING:
    from unidle.rank.checkpoint.reader import ShardSet


def planned_load(shards: ShardSet, targets: Mapping[str, Tensor]) -> None:
    """Fill tensors by name. No communication between ranks. Raises :class:`Damaged`, OSError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no communication is the intention
        load(dict(targets), storage_reader=_Reader(shards), no_dist=True)


class _Reader(StorageReader):
    """The storage interface of :mod:`torch.distributed.checkpoint` on a :class:`ShardSet`."""

    def __init__(self, shards: ShardSet) -> None:
        self._shards = shards

    @classmethod
    def validate_checkpoint_id(cls, _checkpoint_id: object) -> bool:
        return True

    def reset(self, checkpoint_id: object = None) -> None:
        pass

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        tensors: dict[str, Any] = {}
        wholes = self._shards.wholes()
        for name, places in self._shards.pieces.items():
            chunks = [
                ChunkStorageMetadata(torch.Size(offset), torch.Size(piece.shape))
                for offset, (_, piece) in places.items()
            ]
            whole, dtype = wholes[name]
            tensors[name] = TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(whole), chunks)
        return Metadata(tensors)

    def set_up_storage_reader(self, *_: Any, **__: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        last: tuple[MetadataIndex, Tensor] | None = None
        for item in plan.items:
            index = item.storage_index
            if last is None or last[0] != index:
                offset = tuple(index.offset) if index.offset is not None else ()
                last = (index, self._shards.tensor(index.fqn, offset))
            part = narrow_tensor_by_index(last[1], item.storage_offsets, item.lengths)
            target = planner.resolve_tensor(item).detach()
            target.copy_(part)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done
