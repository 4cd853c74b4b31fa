"""Records of iterations: packed on the device, copied to the host and unpacked there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.kernels.base import Draw
from modicum.progress import logger

MOST_PINNED = 2**32  # bytes of pinned memory that the draws of one run may use
RESERVED = 2**28  # bytes that are reserved at a time
# Statistics of one dtype as one array, keyed by their names: on the device, and on the host.
Packed: TypeAlias = dict[tuple[str, ...], jax.Array]
HostPacked: TypeAlias = dict[tuple[str, ...], np.ndarray]
Record: TypeAlias = dict[str, np.ndarray]


def packed(draw: Draw) -> Packed:
    """Stack the statistics of each dtype: one array to write per iteration, not a dozen.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from modicum.run.records import packed
    >>> draw = {"position": jnp.zeros(3), "lp": jnp.asarray(-1.0), "energy": jnp.asarray(2.0)}
    >>> {names: values.shape for names, values in packed(draw).items()}
    {('position',): (3,), ('energy', 'lp'): (2,)}
    """
    groups: dict[np.dtype, list[str]] = {}
    for name in sorted(draw):
        if name != "position":
            groups.setdefault(jnp.asarray(draw[name]).dtype, []).append(name)
    together = {tuple(names): jnp.stack([draw[n] for n in names]) for names in groups.values()}
    return {("position",): draw["position"], **together}


def unpacked(record: HostPacked) -> Record:
    """Undo `packed` for records with leading axes for chains and iterations."""
    apart = {"position": record["position",]}
    for names, values in record.items():
        if names != ("position",):
            apart |= {name: values[..., k] for k, name in enumerate(names)}
    return apart


def joined(parts: Sequence[Record]) -> Record:
    """Concatenate records of consecutive iterations."""
    return {k: np.concatenate([p[k] for p in parts], axis=1) for k in parts[0]} if parts else {}


def side_by_side(of_groups: Sequence[Sequence[Record]]) -> list[Record]:
    """Concatenate the records of groups of chains, part by part, along the chains."""
    return [
        {name: np.concatenate([record[name] for record in records]) for name in records[0]}
        for records in zip(*of_groups, strict=True)
    ]


# From an accelerator ----------------------------------------------------------------------


@dataclass
class PinnedPages:
    """Pinned host memory, into which an accelerator copies its records.

    Plain copies from an accelerator go through small buffers, at a thirtieth of the speed of pinned
    memory; and copying draws from there to new pages would take several times as long as the
    iterations. So draws stay where they arrive until the run ends and all are joined. Pinned memory
    is scarce and slow to allocate: it is reserved while loops are compiled, and once a run has used
    its share, later draws are copied.
    """

    left: int = MOST_PINNED  # bytes

    def reserve(self, size: int) -> None:
        """Make JAX's allocator reserve `size` bytes, or as many as a run may use."""
        held = []
        try:
            for _ in range(-(-min(size, self.left) // RESERVED)):  # pieces are made on the device
                piece = self.send({("piece",): jnp.zeros(RESERVED, jnp.uint8)})
                held.append(jax.block_until_ready(piece))
        except RuntimeError as error:  # no room: memory is then allocated as draws arrive
            logger.info("pinned memory was not reserved: %s", error)

    def send(self, record: Packed) -> Packed:
        """Start to copy a record asynchronously, while iterations continue."""
        device = next(iter(next(iter(record.values())).devices()))
        pinned = "pinned_host" in {memory.kind for memory in device.addressable_memories()}
        kind = "pinned_host" if pinned else None
        return jax.device_put(record, jax.sharding.SingleDeviceSharding(device, memory_kind=kind))

    def arrived(self, record: Packed, count: int) -> HostPacked:
        """Wait for a record that was sent, and return its first `count` slots."""
        slots, size = record["position",].shape[1], sum(v.nbytes for v in record.values())
        stay = size <= self.left and 2 * count > slots  # a few slots would block all the memory
        self.left -= size if stay else 0
        views = {names: np.asarray(values)[:, :count] for names, values in record.items()}
        return views if stay else {names: view.copy() for names, view in views.items()}
