"""What iterations record: packed on the device, copied to the host and unpacked there."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.kernels.base import Draw
from modicum.runtime import jit

__all__ = [
    "COPY_THREADS",
    "PIECE",
    "HostPacked",
    "Packed",
    "Record",
    "copy_to",
    "packed",
    "precompile",
    "room_for",
    "unpacked",
]

PIECE = 2**25  # bytes that are copied from an accelerator at a time
IN_FLIGHT = 3  # pieces on their way
COPY_THREADS = min(8, os.cpu_count() or 1)  # that share the copying of a piece
# The names of what lies side by side, and the array of it: where it was made, and on the host.
Packed: TypeAlias = dict[tuple[str, ...], jax.Array]
HostPacked: TypeAlias = dict[tuple[str, ...], np.ndarray]
Record: TypeAlias = dict[str, np.ndarray]


def packed(draw: Draw) -> Packed:
    """Lay numbers of one type side by side: one array to write per iteration, not a dozen.

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
    """Undo `packed` for whole records, whose leading axes are chains and iterations."""
    apart = {"position": record["position",]}
    for names, values in record.items():
        if names != ("position",):
            apart |= {name: values[..., k] for k, name in enumerate(names)}
    return apart


# From an accelerator ----------------------------------------------------------------------


@jit(static=2)
def _piece(record: Packed, start: jax.Array | int, size: int) -> Packed:
    """`size` slots from `start` on of a record of chains stacked along a leading axis."""
    return {
        names: jax.lax.dynamic_slice_in_dim(values, start, size, axis=1)
        for names, values in record.items()
    }


def precompile(record: Packed) -> None:
    """Compile what copies a record of this shape."""
    _piece.lower(record, 0, _size(record)).compile()


def room_for(record: Packed, count: int) -> HostPacked:
    """Arrays on the host for `count` slots of records like this one."""
    return {k: np.empty((len(v), count, *v.shape[2:]), v.dtype) for k, v in record.items()}


def copy_to(
    room: HostPacked, at: int, record: Packed, count: int, threads: ThreadPoolExecutor
) -> None:
    """Copy the first `count` slots of a record to `room`, from slot `at` on.

    Plain copies from an accelerator go through small buffers, at a thirtieth of the speed that
    pages which stay in place allow. From there to the room, where every page is new, one thread
    would take several times as long as the iterations: `threads` share the chains. What does not
    count stays where it is; pieces of one size are compiled for once.
    """
    positions = record["position",]
    slots, size = positions.shape[1], _size(record)
    device = next(iter(positions.devices()))
    pinned = "pinned_host" in {memory.kind for memory in device.addressable_memories()}
    where = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host" if pinned else None)
    starts = [min(start, slots - size) for start in range(0, count, size)]

    def fetch(start: int) -> Packed:
        return jax.device_put(_piece(record, start, size), where)

    # Pinned pages are expensive: only a few are in flight, and draws are copied out at once.
    coming = deque(fetch(start) for start in starts[:IN_FLIGHT])
    for k, start in enumerate(starts):
        arrived = {names: np.asarray(values) for names, values in coming.popleft().items()}
        there = slice(at + start, at + min(start + size, count))
        _copy_out(room, there, arrived, threads)
        del arrived
        if k + IN_FLIGHT < len(starts):
            coming.append(fetch(starts[k + IN_FLIGHT]))


def _copy_out(
    room: HostPacked, there: slice, arrived: HostPacked, threads: ThreadPoolExecutor
) -> None:
    """Copy slots to their place in `room`, each thread those of some chains."""

    def copy(chains: slice) -> None:
        for names, values in arrived.items():
            room[names][chains, there] = values[chains, : there.stop - there.start]

    number = len(arrived["position",])
    share = -(-number // COPY_THREADS)
    list(threads.map(copy, [slice(k, k + share) for k in range(0, number, share)]))


def _size(record: Packed) -> int:
    """Slots of a piece."""
    slots = int(record["position",].shape[1])
    of_slot = sum(v.size * v.dtype.itemsize for v in record.values()) // slots
    return max(1, min(slots, PIECE // of_slot))
