"""Candidates on an existing Ray cluster: compiled by actors with a processor each, measured by actors with a GPU each.

    nodes with a GPU ─┬─ Remote (num_gpus=1): compares and times, one request at a time
                      └─ Remote (num_cpus=1) ×n: compile, into the cache of Triton on that node

Each actor holds a `Place`, whose process may hang or die as on one machine. A GPU of another kind than the task's is
not used. An actor that is lost is replaced, and its candidate tried once more. Finalists are timed by one GPU.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neptune.autotune.place import OVERTIME, Bench, Case, Lost, Outcome, Place, believed, packed_json
from neptune.autotune.rounds import ROUND
from neptune.errors import NeptuneError
from neptune.kernel import Kernel
from neptune.versions import install

ASKED = "tune with executor='ray'"
START = 90.0
"""Seconds in which a GPU of the cluster must be free, and its actor ready."""
TRIES = 2
"""How often a candidate is tried whose actor is lost."""
END = 2.0
"""Seconds that actors have to clear up."""
NO_GPU = "no GPU of the cluster is left"


class Remote(Place):
    """A place in an actor, with a copy of the case of its own."""

    def __init__(self, case: Case, bench: Bench, env: dict[str, str | None] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="neptune-tune-")
        super().__init__(case.written(Path(self._folder.name), bench), env)

    def node(self) -> str:
        """The node of the cluster."""
        return str(_ray().get_runtime_context().get_node_id())

    def close(self) -> None:
        super().close()
        self._folder.cleanup()


@dataclass(eq=False)
class Actor:
    """A Remote by its handle, on a node, and whether it is busy."""

    handle: Any
    node: str
    busy: bool = False


@dataclass
class Work:
    """Kernels of a round by number: those that are `new`, `built` on a node, or `running` somewhere."""

    packed: Sequence[Any]
    new: deque[int]
    built: dict[str, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    running: dict[Any, tuple[Actor, int]] = field(default_factory=dict)
    lost: Counter[int] = field(default_factory=Counter)

    def tried(self, k: int) -> bool:
        """Note that the actor of a kernel was lost; True if it may be tried again."""
        self.lost[k] += 1
        return self.lost[k] < TRIES


class Cluster:
    """The executor of a Ray cluster, for one case."""

    here = False

    def __init__(self, folder: Path, case: Case, bench: Bench, left: Callable[[], float]) -> None:
        """`folder` is not used: each actor has one of its own. `left` gives the seconds that are left."""
        self._ray, self._own = connected()
        self._bench, self._left, self._device = bench, left, case.device
        self._case = self._ray.put(case)
        self._unfused: Any = None
        self._gpus: list[Actor] = []
        self._compilers: list[Actor] = []
        self._starting: dict[Any, Actor] = {}
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def check() -> None:
        """NeptuneError where there is no Ray, no cluster, or no GPU in it."""
        ray, _ = connected()
        if not ray.cluster_resources().get("GPU"):
            raise NeptuneError(ASKED, "the Ray cluster has no GPU", hint='executor="local", or a node with a GPU')

    @staticmethod
    def workers() -> int:
        """Processes that compile, where nobody says how many: as many as there are candidates of a round."""
        return ROUND

    def measured(self, kernels: Sequence[Kernel]) -> Iterator[tuple[int, Outcome]]:
        if self._unfused is None:
            self._unfused = believed(self._first("trust", self._bench.limit))
        work = Work([self._ray.put(packed_json(k)) for k in kernels], deque(range(len(kernels))))
        while True:
            if self._left():
                self._dispatch(work)
            if not work.running or not (self._left() or any(a in self._gpus for a, _ in work.running.values())):
                return
            done, _ = self._ray.wait([*work.running], timeout=self._limit() + END)
            if not done:
                return
            actor, k = work.running.pop(done[0])
            outcome, lost = self._answer(actor, done[0])
            if lost and work.tried(k):
                work.new.appendleft(k)
            elif isinstance(outcome, Outcome):
                yield k, outcome
            else:
                # Where it does not compile, measuring says why.
                work.built[actor.node].append(k)

    def time(self, kernel: Kernel) -> Outcome:
        outcome: Outcome = self._first("outcome", "time", packed_json(kernel), self._limit())
        return outcome

    def close(self) -> None:
        actors = [*self._gpus, *self._compilers, *self._starting.values()]
        with suppress(Exception):
            self._ray.wait([a.handle.close.remote() for a in actors], num_returns=len(actors), timeout=END)
        for actor in actors:
            self._end(actor.handle)
        if self._own:
            self._ray.shutdown()

    # --- requests ----------------------------------------------------------------------------------

    def _dispatch(self, work: Work) -> None:
        """Give every idle actor something to do: what was compiled on a node is measured there."""
        waiting = [*self._starting]
        for hello in self._ray.wait(waiting, num_returns=len(waiting), timeout=0)[0] if waiting else ():
            self._compilers.append(self._starting.pop(hello))
        compiling = {a.node for a in self._compilers}
        for actor in (*self._gpus, *self._compilers):
            # A node on which nothing compiles measures what is new.
            measures = actor in self._gpus
            source = work.built[actor.node] if measures and actor.node in compiling else work.new
            if actor.busy or not source:
                continue
            k, limit, actor.busy = source.popleft(), self._limit(), True
            if measures:
                asked = actor.handle.outcome.remote("measure", work.packed[k], limit, unfused=self._unfused)
            else:
                asked = actor.handle.compile.remote(work.packed[k], limit)
            work.running[asked] = actor, k

    def _answer(self, actor: Actor, asked: Any) -> tuple[Any, bool]:
        """What an actor answers, and whether it was lost; then there is another one in its place."""
        try:
            answer = self._ray.get(asked, timeout=self._bench.limit + END)
        except self._ray.exceptions.RayError as error:
            measured = actor in self._gpus
            self._replace(actor)
            why = (str(error).splitlines() or [""])[0]
            return Outcome(failed="died", why=f"its actor was lost: {why:.120}") if measured else None, True
        actor.busy = False
        return answer, False

    def _first(self, do: str, *args: Any) -> Any:
        """The answer of the first GPU, which is always the same one as long as it is there."""
        for _ in range(TRIES):
            actor = self._gpus[0]
            answer, lost = self._answer(actor, getattr(actor.handle, do).remote(*args))
            if not lost:
                return answer
        raise Lost(NO_GPU)

    def _limit(self) -> float:
        return min(self._bench.limit, self._left() + OVERTIME)

    # --- actors ------------------------------------------------------------------------------------

    def _start(self) -> None:
        """An actor on every GPU that is free and of the right kind, and on their nodes those that compile. NeptuneError
        where there is none."""
        free = int(self._ray.available_resources().get("GPU", 0))
        self._gpus = self._ready([self._measurer() for _ in range(max(1, min(free, ROUND)))])
        if not self._gpus:
            raise NeptuneError(
                ASKED,
                f"the Ray cluster has no free {self._device}",
                hint="target= of the GPUs that the cluster has; a longer budget",
            )
        for k in range(self._bench.workers):
            self._compile_on(self._gpus[k % len(self._gpus)].node)

    def _ready(self, handles: Sequence[Any]) -> list[Actor]:
        """Those of the actors that have a GPU of the right kind; the others end."""
        asked = {h.device.remote(self._bench.limit): h for h in handles}
        self._ray.wait([*asked], num_returns=len(asked), timeout=min(START, self._left()))
        found = []
        for hello, handle in asked.items():
            with suppress(self._ray.exceptions.RayError):
                if self._ray.get(hello, timeout=0) == self._device:
                    found.append(Actor(handle, self._ray.get(handle.node.remote())))
                    continue
            self._end(handle)
        return found

    def _replace(self, actor: Actor) -> None:
        """Start another actor in the place of one that was lost. Lost where no GPU is left."""
        self._end(actor.handle)
        if actor in self._compilers:
            self._compilers.remove(actor)
            self._compile_on(actor.node)
            return
        at = self._gpus.index(actor)
        self._gpus[at : at + 1] = self._ready([self._measurer()])
        if not self._gpus:
            raise Lost(NO_GPU)
        nodes = {a.node for a in self._gpus}
        for idle in [a for a in self._compilers if a.node not in nodes]:
            self._compilers.remove(idle)
            self._end(idle.handle)

    def _measurer(self) -> Any:
        return self._ray.remote(Remote).options(num_gpus=1, num_cpus=1).remote(self._case, self._bench)

    def _compile_on(self, node: str) -> None:
        """Start an actor that compiles; it does so when there is a processor for it."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # It asks for no GPU, and must see of which kind they are.
        env: dict[str, str | None] = {"CUDA_VISIBLE_DEVICES": None}
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        made = self._ray.remote(Remote).options(num_cpus=1, scheduling_strategy=where)
        handle = made.remote(self._case, self._bench, env)
        self._starting[handle.node.remote()] = Actor(handle, node)

    def _end(self, handle: Any) -> None:
        with suppress(Exception):
            self._ray.kill(handle)


def connected() -> tuple[Any, bool]:
    """Ray, connected to a cluster, and whether this call did that. NeptuneError where there is none."""
    try:
        ray = _ray()
    except ImportError:
        raise NeptuneError(ASKED, "Ray is not installed", hint=f'{install("ray")}, or executor="local"') from None
    if ray.is_initialized():
        return ray, False
    try:
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise NeptuneError(
            ASKED,
            f"there is no Ray cluster: {(str(error).splitlines() or [''])[0]:.120}",
            hint="`ray start --head` on a machine, or RAY_ADDRESS=… of a cluster",
        ) from None
    return ray, True


def _ray() -> Any:
    """Ray is an extra."""
    import ray

    return ray
