"""Files of every kind that Neptune reads, damaged in every way: what is read is refused, passed over or taken.

    python -m qa.fuzz_faults --count 5000 --seed 0

Each seed damages one file: its bytes (flipped, cut short, put in), or what its JSON says (numbers of 400 and 5000
digits, 1e999, NaN, nesting, other types, texts that are no UTF-8), signed anew or not. Anything raised that is no
NeptuneError is a finding.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import neptune
from neptune import config
from neptune.driver import cache as compiled
from neptune.errors import NeptuneError
from neptune.hopper.validate import verdicts
from neptune.mirage.foreign_json import graphs_of
from neptune.ops.softmax import softmax
from neptune.records.record import parse
from neptune.records.store import SHIPPED
from neptune.runtime import artifact, saved
from neptune.runtime.hopper import accepted
from neptune.runtime.launching import refused
from neptune.schedule.trace import trace_from_json, trace_to_json
from neptune.tune.model import calibrated
from qa.harness import Outcome, command

NUMBERS = ("1" + "0" * 400, "-" + "9" * 5000, "1e999", "-1e999", "NaN", "Infinity", "1e-400", "0", "-1", "1.5", "true")
OTHERS = ('""', '"\\ud800"', "null", "[]", "{}", '"' + "x" * 5000 + '"', '{"a": 1}', "[[0]]", '"0"', '"\\u0000/../"')
CONSTANTS = {
    "clock": 1.7, "memory": 4000.0, "port": 1.0, "special": 1.0, "processors": 132, "l2": 50,
    "matrix": {"float16": 900.0},
}  # fmt: skip
VERDICT = accepted.Verdict(
    **asdict(accepted.Figures(1024, 0, 0, 0, (), (240, 24), (240,), (24,), (), 4, 1, 2, 1)),
    key="0" * 64, protocol="clean", compared=accepted.Compared(3, 1e-6, 1e-3),
    timed=accepted.Timed((1.0, 2.0, 3.0), (1.0, 2.0, 3.0), {"n": 4}, "H200"),
)  # fmt: skip


# --- damage ---------------------------------------------------------------------------------------


def places(said: Any) -> Iterator[tuple[Any, Any]]:
    """(an object or list, a key of it) for all that a JSON text holds."""
    todo = [said]
    while todo:
        at = todo.pop()
        for key in at if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ():
            yield at, key
            todo.append(at[key])


def hostile(draw: random.Random) -> str:
    depth = draw.choice((70, 300, 900, 990, 3000, 100_000))
    return draw.choice((*NUMBERS, *OTHERS, "[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth))


def damaged(text: str, draw: random.Random) -> str:
    """A JSON text with something else in one to three places."""
    said = json.loads(text)
    for _ in range(draw.randint(1, 3)):
        found = list(places(said))
        at, key = draw.choice(found) if found else (None, None)
        if at is None or (isinstance(at, dict) and draw.random() < 0.15):
            (at or {}).pop(key, None)
            continue
        at[key] = f"HERE{draw.randint(0, 1 << 30)}"
    return re.sub(r'"HERE\d+"', lambda _: hostile(draw).replace("\\", r"\\")[:], json.dumps(said)).replace(
        r"\\u", r"\u"
    )


def bytes_damaged(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    match draw.randrange(4):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + draw.randbytes(draw.randint(1, 40)) + data[at:]
        case 2:
            return data[:at] + draw.randbytes(draw.randint(1, 40)) + data[at + 20 :]
    return draw.randbytes(draw.randint(0, 300))


def any_damage(text: str, draw: random.Random) -> bytes:
    if draw.random() < 0.4:
        return bytes_damaged(text.encode(), draw)
    return damaged(text, draw).encode("utf-8", "surrogatepass")


# --- kinds of files -------------------------------------------------------------------------------


@cache
def kernel() -> neptune.Kernel:
    return neptune.compile(softmax(), target="interpret")


def calibration(draw: random.Random, folder: Path) -> Any:
    calibrated.keep(folder, "gpu", "sm_90", CONSTANTS)
    file = folder / calibrated.FILE
    file.write_bytes(any_damage(file.read_text(), draw))
    return calibrated.kept(folder, "gpu", "sm_90")


def manifest(draw: random.Random, folder: Path) -> Any:
    at = folder / "k"
    kernel().save(at)
    if draw.random() < 0.3:
        file = draw.choice(sorted(at.iterdir()))
        file.write_bytes(bytes_damaged(file.read_bytes(), draw))
        return neptune.load(at, target="interpret")
    file = at / saved.MANIFEST
    file.write_bytes(signed(damaged(file.read_text(), draw)).encode("utf-8", "surrogatepass"))
    return neptune.load(at, target="interpret")


def signed(text: str) -> str:
    """A damaged manifest with a digest that fits; what cannot be signed as it is."""
    try:
        said = json.loads(text)
        for of in (*said.get("variants", {}).values(), said):
            of["digest"] = artifact.digest(of)
        return json.dumps(said)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return text


def entry(draw: random.Random, folder: Path) -> Any:
    shelf = compiled.Store(folder)
    shelf.put("key", kernel().executable.artifact)
    return _shelf(shelf, lambda: shelf.get("key"), draw)


def verdict(draw: random.Random, folder: Path) -> Any:
    shelf = verdicts.shelf(folder)
    shelf.write("key", json.dumps(accepted.written(VERDICT)).encode())
    return _shelf(shelf, lambda: verdicts._kept(shelf, "key"), draw)


def choice(draw: random.Random, folder: Path) -> Any:
    shelf = refused.shelf(folder)
    shelf.write("key", json.dumps({"choice": "key", "lacking": "shared memory", "said": "Triton: …"}).encode())
    return _shelf(shelf, lambda: refused.read(shelf, "key") or None, draw)


def _shelf(shelf: Any, get: Callable[[], Any], draw: random.Random) -> Any:
    """An entry that is damaged, and signed anew in most cases."""
    path = shelf.path("key")
    head, _, body = path.read_bytes().partition(b"\n")
    made = any_damage(body.decode(), draw)
    if shelf.name == compiled.FOLDER and draw.random() < 0.5:
        said = json.loads(body)
        # As text: what is damaged may be no JSON, or a number that Python does not read.
        manifest = signed(damaged(json.dumps(said["manifest"]), draw))
        rest = json.dumps({n: x for n, x in said.items() if n != "manifest"})
        made = f'{rest[:-1]}, "manifest": {manifest}}}'.encode("utf-8", "surrogatepass")
    if draw.random() < 0.8:
        head = shelf.magic + hashlib.sha256(made).hexdigest().encode()
    path.write_bytes(head + b"\n" + made)
    return get()


@cache
def lines() -> list[bytes]:
    return [x for f in sorted(SHIPPED.glob("*.jsonl")) for x in f.read_bytes().splitlines()[:20]]


def record(draw: random.Random, _: Path) -> Any:
    return parse(any_damage(draw.choice(lines()).decode(), draw).replace(b", ", b",").replace(b": ", b":"))


def setting(draw: random.Random, _: Path) -> Any:
    names = ("TARGET", "VERIFY", "DUMP", "CACHE_DIR", "LOGS", "FUSION_FUEL", "STRICT", "RECORDS", "FORM")
    text = hostile(draw)[:100_000] if draw.random() < 0.7 else draw.randbytes(20).decode("latin1").replace("\0", "")
    return config.read({f"NEPTUNE_{draw.choice(names)}": text})


def trace(draw: random.Random, _: Path) -> Any:
    return trace_from_json(any_damage(TRACE, draw).decode("utf-8", "replace"))


TRACE = trace_to_json(())
GRAPHS = '[[{"op_type": "kn_matmul_op", "input_tensors": [{"dim": [4, 4], "num_dims": 2}], "output_tensors": []}]]'


def graphs(draw: random.Random, _: Path) -> Any:
    return graphs_of(any_damage(GRAPHS, draw).decode("utf-8", "replace"))


KINDS = (calibration, manifest, entry, verdict, choice, record, setting, trace, graphs)


def trial(seed: int) -> Outcome:
    """One file of one kind, damaged."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    draw = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    folder = Path(tempfile.mkdtemp())
    try:
        made = kind(draw, folder)
    except NeptuneError:
        return Outcome("refused", kind.__name__)
    finally:
        logging.disable(before)
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome("refused" if made is None else "right", kind.__name__)


if __name__ == "__main__":
    command(trial, __doc__)
