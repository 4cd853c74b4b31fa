"""Actors of a Ray cluster that run whole calls for the driver, such as chunks of chains.

A call carries everything it needs, so that Ray can repeat it on the replacement of an actor that
died.
"""

from __future__ import annotations

from collections.abc import Sequence

from modicum.engines.faults import RESTARTS, SILENCE, fault_of, silence_of
from modicum.engines.ray_library import ray_library
from modicum.engines.shipping import Answer, Reference, packed, unpacked


class RayHosts:
    """Actors of one class.

    Attributes
    ----------
    accelerators
        Whether each actor has one of the cluster's accelerators.
    """

    def __init__(self, actors: list[object], accelerators: bool) -> None:
        self._actors, self.accelerators = actors, accelerators

    def __len__(self) -> int:
        return len(self._actors)

    def share(self, settings: object, rows: object) -> list[Reference]:
        """Put what all hosts read into the cluster's memory, for `fetched` to get.

        Rows are pickled by Ray itself, since they may hold its handles.
        """
        ray = ray_library()
        return [ray.put(packed(settings)), ray.put(rows)]

    def calls(self, method: str, arguments: Sequence[tuple[object, ...]]) -> list[Answer]:
        """Call `method` of the first hosts, one tuple of arguments each; return their answers."""
        ray = ray_library()
        pairs = zip(self._actors, arguments, strict=False)
        references = [getattr(actor, method).remote(*own) for actor, own in pairs]
        _, missing = ray.wait(references, num_returns=len(references), timeout=SILENCE)
        if missing:
            raise silence_of(len(self._actors))
        try:
            return list(ray.get(references))
        except ray.exceptions.RayError as error:
            raise fault_of(error) from None

    def close(self) -> None:
        """Release the hosts."""
        ray = ray_library()
        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor)


def started_hosts(kind: type, most: int) -> RayHosts:
    """Start up to `most` actors of class `kind`: one per accelerator, or per core without any."""
    ray = ray_library()
    resources = ray.cluster_resources()
    accelerators = int(resources.get("GPU", 0))
    number = max(1, min(most, accelerators or int(resources.get("CPU", 1))))
    while most % number:  # every host gets the same number of chains
        number -= 1
    # Workers may have reserved all cores, but have little to do while chains run.
    remote = ray.remote(kind).options(
        num_cpus=0,
        num_gpus=int(accelerators > 0),
        max_restarts=RESTARTS,
        max_task_retries=-1,
        scheduling_strategy="SPREAD",
    )
    return RayHosts([remote.remote() for _ in range(number)], accelerators > 0)


def fetched(shared: list[Reference]) -> tuple[Answer, Answer]:
    """Return the settings and rows that `RayHosts.share` put into the cluster's memory."""
    ray = ray_library()
    settings, rows = ray.get(list(shared))
    return unpacked(settings), rows
