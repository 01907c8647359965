"""Artifact: the plain data that a compilation leaves, which runs a kernel and describes it.

A Kernel works from an Artifact alone, so that a saved kernel and a cached one are the kernel that was compiled.
Programs are kept as the text that `neptune.ir.text.parser` reads back. `pack` gives a JSON object and named texts,
which a folder of files (`neptune.runtime.saved`) and a cache entry (`neptune.driver.cache`) hold alike.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from neptune.errors import NeptuneError, RecordError
from neptune.ir.text.parser import parse_program
from neptune.runtime.calls.addressing import LOADS, Addressing, Json, kernel_json, read_kernel, read_span, span_json
from neptune.runtime.facts import Facts, KernelFacts, LoopFacts, Remark
from neptune.runtime.family import FAMILY, check_family
from neptune.runtime.forms import FORMS, FormData
from neptune.runtime.parts import Parts, first_rows, parts_json, read_parts

FORMAT = "neptune-kernel"
VERSION = 1
"""Of what `pack` writes: another one is refused."""
STAGES = ("loops", "scheduled", "fused", "tile")
WIDER = "wider"
"""The program that modules with int64 offsets run, where it is not "fused"."""
COUNTS = "counts.json"
"""The file of `Artifact.counts`."""
OFFSETS = ("int32", "int64")
WARNINGS, PREDICTION, AT = "warnings", "prediction", "at"
"""Entries of an explanation: what makes the kernel slow, what is predicted, and the sizes that it speaks of."""
STAGES_OF_LOADS, WARPS = "num_stages", "num_warps"
PINNED = "pinned"
"""The entry with the parameters that the caller gave, which stay as they are where a launch is refused
(`neptune.runtime.launching.refused`); only where there are any."""


@dataclass(frozen=True)
class Artifact:
    """A compiled kernel as plain data.

    `explanation` is what explain(json=True) says, `programs` the text of every stage that ir() shows,
    `declarations` the parameters of the tile program as a Program without a body, `modules` the Triton
    modules and what they ask of tensors, by "pointer" and "descriptor", `parts` how each launch chooses
    the numbers that it does choose. `form` is another form of the kernel beside tiles, where it has one. `counts` are
    what the cost model needs to tell its variants apart (`neptune.tune.chooser`), "" for a saved kernel, which needs no
    model.
    """

    explanation: Json
    programs: Mapping[str, str]
    declarations: str
    modules: Mapping[str, Addressing]
    parts: tuple[Parts, ...] = ()
    form: FormData | None = None
    counts: str = ""

    @property
    def name(self) -> str:
        return str(self.explanation["name"])

    @property
    def target(self) -> str:
        return str(self.explanation["target"])

    @property
    def template(self) -> str:
        return str(self.explanation["template"])

    @property
    def params(self) -> dict[str, int]:
        return dict(self.explanation["params"])

    @property
    def of_one(self) -> dict[str, dict[str, int]]:
        """The values that stand in `params` for one launch alone, by the name of its function."""
        launches: dict[str, dict[str, int]] = {}
        functions = {launch_name(self.name, k.function): k.function for k in self.modules[LOADS[0]].kernels}
        for name, value in self.params.items():
            kernel, dot, plain = name.rpartition(".")
            if dot:
                launches.setdefault(functions[kernel], {})[plain] = value
        return launches

    @property
    def chosen(self) -> tuple[str, ...]:
        """The numbers that each launch chooses."""
        return tuple(p.number for p in self.parts)

    @property
    def bounds(self) -> dict[str, int]:
        return dict(self.explanation["bounds"])

    @property
    def shapes(self) -> dict[str, int]:
        return dict(self.explanation["shapes"])

    @property
    def chosen_at(self) -> dict[str, int]:
        """The sizes that its choice is for; nothing where none were named, nor told apart from others."""
        return self.shapes or dict(self.explanation.get(AT) or (self.family or {}).get(AT) or {})

    @property
    def facts(self) -> Facts:
        """Kernels, loops, temporaries and traversals, read off the explanation."""
        return facts_of(self.explanation)

    @property
    def family(self) -> Json | None:
        """The variants that sizes decide between, of which this is one; None for a kernel that is the only one."""
        described = self.explanation.get(FAMILY)
        return None if described is None else dict(described)

    @property
    def warnings(self) -> tuple[Remark, ...] | None:
        """What makes the kernel slower than it need be; None where it was not judged with its present parameters."""
        rows = self.explanation.get(WARNINGS)
        return None if rows is None else tuple(Remark(**row) for row in rows)

    def unjudged(self, at: Mapping[str, int] | None = None) -> Artifact:
        """The same kernel without what was said of other parameters; with `at`, judged at these sizes next time."""
        kept = {k: v for k, v in self.explanation.items() if k not in (WARNINGS, PREDICTION)}
        return replace(self, explanation={**kept, **({AT: dict(at)} if at else {})})

    def pinning(self, names: Iterable[str]) -> Artifact:
        """The same kernel, whose parameters with these names are the caller's."""
        kept = {k: v for k, v in self.explanation.items() if k != PINNED}
        given = sorted(names)
        return replace(self, explanation={**kept, **({PINNED: given} if given else {})})

    def with_values(self, numbers: Mapping[str, int]) -> Artifact:
        """The same kernel with other values of its parameters, which are known to be legal."""
        # What was said of other parameters does not hold of these, and another form has tiles of its own.
        explanation = {**self.unjudged().explanation, "params": {**self.params, **numbers}}
        return replace(self, explanation=explanation, form=None)

    def alone(self) -> Artifact:
        """The same kernel for all sizes."""
        return replace(self, explanation={k: v for k, v in self.explanation.items() if k != FAMILY}, counts="")

    def without_model(self) -> Artifact:
        """The same kernel as it is saved: sizes tell its variants apart by a tree."""
        return replace(self, counts="")

    def undecided(self) -> Artifact:
        """The same kernel without what tells its variants apart, which is another thing once it is saved."""
        explanation = dict(self.explanation)
        if (family := self.family) is not None:
            explanation[FAMILY] = [{n: v[n] for n in ("template", "params")} for v in family["variants"]]
        return replace(self, explanation=explanation, counts="")

    def for_target(self, target: str) -> Artifact:
        """The same kernel for another target: all of them run the same programs."""
        return replace(self, explanation={**self.explanation, "target": target})


def launch_name(program: str, kernel: str) -> str:
    """The name of one launch in parameters, such as `o_combine` in {"o_combine.num_warps": 1}.

    >>> launch_name("decode", "decode_o_combine_kernel"), launch_name("softmax", "softmax")
    ('o_combine', 'softmax')
    """
    return kernel.removesuffix("_kernel").removeprefix(f"{program}_")


@dataclass(frozen=True)
class Packed:
    """An Artifact taken apart: a JSON object that names files, and their texts."""

    manifest: Json
    files: Mapping[str, str]


def pack(artifact: Artifact, made_with: Mapping[str, str | None]) -> Packed:
    """The Artifact as JSON and texts; a text that several forms share is there once.

    The manifest holds the SHA-256 of every text and of itself (`digest`).
    """
    files = {f"{stage}.txt": text for stage, text in artifact.programs.items()}
    modules: Json = {}
    names: dict[str, str] = {}
    for loads, module in artifact.modules.items():
        sources: Json = {}
        for offsets, text in zip(OFFSETS, module.texts, strict=True):
            name = names.setdefault(text, f"kernel_{loads}{'' if offsets == OFFSETS[0] else f'_{offsets}'}.py")
            files[name] = text
            sources[offsets] = name
        modules[loads] = {
            "source": sources,
            "aligned": list(module.aligned),
            "spans": [span_json(s) for s in module.spans],
            "kernels": [kernel_json(k) for k in module.kernels],
        }
    more: Json = {}
    if (form := artifact.form) is not None:
        source = f"kernel_{form.name}.py"
        more, files[source] = {form.name: {"source": source, **form.as_json()}}, form.text
    if artifact.counts:
        files[COUNTS] = artifact.counts
    manifest: Json = {
        "format": FORMAT,
        "version": VERSION,
        "made_with": dict(made_with),
        "kernel": artifact.explanation,
        "programs": {stage: f"{stage}.txt" for stage in artifact.programs},
        "declarations": artifact.declarations.splitlines(),
        "modules": modules,
        "parts": [parts_json(p) for p in artifact.parts],
        **more,
        "files": {name: sha256(text) for name, text in files.items()},
    }
    return Packed({**manifest, "digest": digest(manifest)}, files)


def with_variants(own: Packed, variants: Mapping[int, Packed]) -> Packed:
    """A kernel with the other variants of its family, by number."""
    files = dict(own.files)
    for k, p in variants.items():
        files |= {f"variant{k}_{name}": text for name, text in p.files.items()}
    manifest = {
        **own.manifest,
        "variants": {str(k): p.manifest for k, p in variants.items()},
        "files": {name: sha256(text) for name, text in files.items()},
    }
    return Packed({**manifest, "digest": digest(manifest)}, files)


def unpack_variants(packed: Packed) -> dict[int, Artifact]:
    """The other variants that a kernel was packed with, by number; RecordError as `unpack`."""
    artifacts: dict[int, Artifact] = {}
    variants = packed.manifest.get("variants", {})
    if not isinstance(variants, dict) or not all(k.isascii() and k.isdecimal() and len(k) < 9 for k in variants):
        raise damaged("its variants have no numbers")
    for k, manifest in variants.items():
        check_manifest(manifest)
        prefix = f"variant{k}_"
        files = {n.removeprefix(prefix): text for n, text in packed.files.items() if n.startswith(prefix)}
        artifacts[int(k)] = unpack(Packed(manifest, files), prefix)
    return artifacts


def unpack(packed: Packed, prefix: str = "") -> Artifact:
    """The Artifact again. RecordError where the manifest or a text, of which the names of files begin with `prefix`, is
    not what `pack` wrote."""
    check_manifest(packed.manifest)
    if not isinstance(packed.files, Mapping):
        raise damaged("its texts are missing")
    for name, expected in packed.manifest["files"].items():
        if not isinstance(packed.files.get(name), str):
            raise damaged(f"{prefix}{name} is missing")
        if sha256(packed.files[name]) != expected:
            raise damaged(f"{prefix}{name} has been changed")
    try:
        # A text that no hash speaks for is not there.
        return _unpacked(packed.manifest, {name: packed.files[name] for name in packed.manifest["files"]})
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, NeptuneError) as error:
        # Its own digest fits, so that another program has written it.
        what = f"has no entry {error}" if isinstance(error, KeyError) else "holds something else than a kernel"
        raise damaged(f"its manifest {what}") from None


def check_manifest(manifest: Any) -> None:
    """RecordError unless this is a whole manifest of this format and version."""
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise RecordError("read a kernel", "this was not written by Neptune", legal=("what kernel.save(path) wrote",))
    if manifest.get("version") != VERSION:
        other, made_with = manifest.get("version"), manifest.get("made_with")
        by = made_with.get("neptune") if isinstance(made_with, dict) else None
        raise RecordError(
            "read a kernel",
            f"it has format {other!r:.40}, written by Neptune {by!s:.40}, and this one reads format {VERSION}",
            hint="save it again with this version of Neptune, or load it with that one",
        )
    if manifest.get("digest") != digest(manifest) or not isinstance(manifest.get("files"), dict):
        raise damaged("its manifest has been changed")


def damaged(what: str) -> RecordError:
    """Return the error for a stored kernel that cannot be read."""
    return RecordError("read a kernel", what, hint="compile it again and kernel.save(path)")


def facts_of(e: Json) -> Facts:
    """The facts that an explanation holds."""
    programs = {k["name"]: k["programs"] for k in (e.get(PREDICTION) or {}).get("kernels", ())}
    kernels = tuple(
        KernelFacts(
            k["name"],
            dict(k["grid"]),
            tuple(LoopFacts(x["axis"], x["trips"]) for x in k["loops"]),
            tuple(k["temporaries"]),
            # Kernels that were saved before these were have none.
            tuple(k.get("products", ())),
            programs.get(k["name"]),
        )
        for k in e["kernels"]
    )
    traversals = {n: math.inf if isinstance(t, str) else t for n, t in e["traversals"].items()}
    return Facts(kernels, tuple(e["temporaries"]), traversals)


def sha256(text: str) -> str:
    """The SHA-256 of a text, in hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def digest(manifest: Mapping[str, Any]) -> str:
    """The SHA-256 of a manifest, but for its own `digest`, whatever the layout of its text."""
    rest = {k: v for k, v in manifest.items() if k != "digest"}
    return sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")))


# --- parts ---------------------------------------------------------------------------------------


def _unpacked(manifest: Json, files: Mapping[str, str]) -> Artifact:
    modules = {
        loads: Addressing(
            texts=(files[m["source"][OFFSETS[0]]], files[m["source"][OFFSETS[1]]]),
            aligned=tuple(m["aligned"]),
            spans=tuple(read_span(s) for s in m["spans"]),
            kernels=tuple(read_kernel(k) for k in m["kernels"]),
        )
        for loads, m in ((x, manifest["modules"][x]) for x in LOADS)
    }
    stages = (*STAGES, WIDER) if WIDER in manifest["programs"] else STAGES
    programs = {stage: files[manifest["programs"][stage]] for stage in stages}
    declarations = "\n".join(manifest["declarations"]) + "\n"
    # A form that is not known here is left out: tiles run everywhere.
    kind = next((name for name in FORMS if name in manifest), None)
    form = None if kind is None else FORMS[kind].read(manifest[kind], files[manifest[kind]["source"]], declarations)
    parts, counts = _parts(manifest, declarations), files.get(COUNTS, "")
    artifact = Artifact(manifest["kernel"], programs, declarations, modules, parts, form, counts)
    if artifact.family is not None:
        check_family(artifact.family)
    # Whatever a kernel reads off it later is there.
    _ = (
        artifact.name,
        artifact.target,
        artifact.template,
        artifact.params,
        artifact.chosen,
        artifact.bounds,
        artifact.shapes,
        artifact.facts,
        artifact.of_one,
        artifact.warnings,
    )
    return artifact


def _parts(manifest: Json, declarations: str) -> tuple[Parts, ...]:
    """Return how launches choose numbers; for a kernel saved before this was data, as they did then."""
    if not manifest["kernel"]["chosen"]:
        return ()
    declared = parse_program(declarations)
    grids = [k["grid"] for k in manifest["kernel"]["kernels"]]
    return read_parts(manifest["parts"] if "parts" in manifest else first_rows(declared, grids), declared)


def texts(files: Iterable[tuple[str, bytes]]) -> dict[str, str]:
    """File contents as text; RecordError for bytes that are none."""
    decoded = {}
    for name, data in files:
        try:
            decoded[name] = data.decode("utf-8")
        except UnicodeDecodeError:
            raise damaged(f"{name} has been changed") from None
    return decoded
