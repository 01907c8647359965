"""Work in shares: workers give what one process gives, and one that is killed loses only what it had."""

import time

from neptune.mirage.enumeration.enumerate import Solution
from neptune.mirage.enumeration.problems import Bounds, Source
from neptune.mirage.enumeration.shares import FEW, Result, Searcher, Share, Workers
from tests.unit.mirage.programs_by_hand import RMS_NORM

PROBLEM = Source(RMS_NORM, Bounds()).single()[0]
DEPTH = 7


def shares() -> list[Share]:
    paths, _ = Searcher().enumerator(0, PROBLEM).prefixes(DEPTH, 2)
    return [Share(PROBLEM, 0, DEPTH, path) for path in paths]


def here() -> list[Result]:
    with Workers(1) as workers:
        return list(workers.run(shares(), FEW, None))


def solutions(results: list[Result]) -> list[Solution]:
    return [s for r in results for s in r.solutions]


def test_shares_together_are_the_whole() -> None:
    results = here()
    assert len(results) > 8 and all(r.whole for r in results)
    whole, complete = Searcher().enumerator(0, PROBLEM).solve(DEPTH)
    assert complete and solutions(results) == whole and whole


def test_a_killed_worker_loses_only_its_share() -> None:
    expected = here()
    with Workers(2) as workers:
        done: list[Result] = []
        for result in workers.run(shares(), FEW, None):
            if not done:
                for process in workers.processes[:1]:
                    process.kill()
                    process.join()
            done.append(result)
        # One that had nothing left to do may be dead and nobody has asked it.
        assert sum(process.is_alive() for process in workers.processes) == 1
    assert len(done) == len(expected)
    lost = [n for n, r in enumerate(done) if r.lost]
    assert len(lost) <= 1 and all(not done[n].whole for n in lost)
    for n, (mine, theirs) in enumerate(zip(done, expected, strict=True)):
        if n not in lost:
            assert mine.solutions == theirs.solutions and mine.counts == theirs.counts


def test_with_no_worker_left_the_work_is_done_here() -> None:
    with Workers(2) as workers:
        results = workers.run(shares(), FEW, None)
        first = next(results)
        for process in workers.processes:
            process.kill()
            process.join()
        rest = list(results)
    assert sum(r.lost for r in rest) <= 2
    assert len([first, *rest]) == len(shares()) and sum(r.whole for r in rest) >= len(rest) - 2


def test_a_share_ends_at_the_deadline() -> None:
    searcher = Searcher()
    assert not searcher.do(shares()[0], time.process_time() - 1).whole
    start = time.process_time()
    result = searcher.do(Share(PROBLEM, 0, 14, ()), start + 0.2)
    assert not result.whole and time.process_time() - start < 5
