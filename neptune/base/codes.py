"""The kinds of mistakes that an error can tell of, each with a code that stays (docs/errors.md has an entry for each).

An error finds its kind by itself: by its class and the module that makes it, the longest prefix first. Where one
module makes errors of several kinds, the `raise` names it: `ShapeError(…, kind="dtype")`. A code is never given to
another kind; new kinds go to the end of their class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neptune.versions import install

INSTALL_TE = install("te")
"""The remedy where TVM is missing."""
PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True)
class Kind:
    """A kind of mistake. `number` begins with the letter of its class; `keys` are modules below the package, and words
    that a `raise` gives; `cure` is what helps in general, where the message has no better."""

    number: str
    title: str
    cure: str
    keys: tuple[str, ...]

    @property
    def code(self) -> str:
        return f"NPT-{self.number}"


CLASSES: Mapping[str, str] = {
    "ExpressionError": "E",
    "ScheduleError": "S",
    "FusionError": "F",
    "ShapeError": "C",
    "TargetError": "T",
    "RecordError": "R",
    "NeptuneError": "N",
}
"""The letter of each class; classes below these have theirs."""

OTHER_TEMPLATE = "Another template, or none: then one that applies is chosen. kernel.explain() says what each misses."
GIVE_NAMES = "Give each size by its name, of kernel.scalars, as a whole number of at least 1."
EXPRESSIONS = (
    Kind(
        "E001",
        "What is to be compiled is no expression",
        "Write the operator by the builder (placeholder, compute, sum, …) and compile the tensor that it returns.",
        ("driver.imports", "driver.jit", "frontend.typed"),
    ),
    Kind(
        "E002",
        "A reduction inside a larger expression, where it cannot be",
        "Give the reduction a compute of its own, and read that.",
        ("reduction_inside", "frontend.nested"),
    ),
    Kind(
        "E003",
        "A tensor is read with the wrong indices",
        "One index for each dimension, each an integer expression within the dimension.",
        ("reading",),
    ),
    Kind(
        "E004",
        "Inputs, outputs or scalars of a program that do not fit together",
        "List every placeholder and scalar once as an input, and computed tensors once as outputs.",
        ("frontend.assemble",),
    ),
    Kind(
        "E005",
        "A name that cannot be used, or that two things have",
        "Names are Python identifiers, each used once.",
        ("naming",),
    ),
    Kind(
        "E006",
        "A definition that the builder does not take",
        "A shape of integers and sizes, and a function that takes one index for each dimension.",
        ("frontend.builder",),
    ),
    Kind(
        "E007",
        "A reduction over something else than reduce axes, or of a value that it does not fold",
        "Name the axes that reduce_axis returned; cast the value where the message says so.",
        ("frontend.choices", "frontend.ranges", "frontend.reductions"),
    ),
    Kind(
        "E008",
        "A function of the builder got a value of another type",
        "Cast it by .astype(…), or compare it to get a condition.",
        ("frontend.composed", "frontend.functions"),
    ),
    Kind(
        "E009",
        "There is no such dtype",
        "A dtype is one of the names that the message lists, as a string.",
        ("dtypes",),
    ),
    Kind(
        "E010",
        "TE or a PrimFunc says something that is not imported",
        "Write that stage as a plain compute or reduction, or use the builder.",
        ("frontend.te", "frontend.tvm_blocks", "frontend.tvm_expr", "frontend.tvmscript"),
    ),
    Kind("E011", "The text of a program that cannot be read", "Compare the line with kernel.ir('loops').", ("ir",)),
    Kind(
        "E012",
        "A program written by hand breaks a rule",
        "Every buffer is written before it is read, inside its shape, once for each element.",
        ("driver.passes",),
    ),
    Kind("E013", "A mask that cannot be", "A mask of neptune.ops.masks, or a function (b, h, i, j).", ("ops.masks",)),
    Kind("E014", "A shipped operator has no such option or value", "One of the values that are legal.", ("ops",)),
    Kind(
        "E015",
        "A mod of attention that is no expression",
        "torch's functions of the score, the four indices and captured tensors at them; torch.where in place of if.",
        ("functional",),
    ),
    Kind(
        "E016",
        "What neptune.fuse is given is no function, or no way to take regions",
        'A torch function, and take="predicted", "all" or "none".',
        ("graph",),
    ),
    Kind(
        "E017",
        "A µGraph that is not valid, or a program that no µGraph has",
        "docs/mirage.md says what a graph is; compile the program by a template where it has masks or indices.",
        ("mirage",),
    ),
)
SCHEDULES = (
    Kind(
        "S001",
        "There is no such stage, loop or axis",
        "sch.loops(stage) lists the loops of a stage, print(sch.program) shows all.",
        ("schedule.state",),
    ),
    Kind(
        "S002",
        "A primitive got an argument of the wrong kind",
        "Loops come from sch.loops(stage); stages are named.",
        ("schedule.checked",),
    ),
    Kind(
        "S003",
        "A schedule is asked for something that it has not",
        "docs/schedule.md says what each call takes.",
        ("schedule.schedule",),
    ),
    Kind(
        "S004",
        "A template is declared wrongly",
        "@neptune.template(BLOCK_M=[64, 128]) over a function of sch and block_m.",
        ("schedule.template",),
    ),
    Kind(
        "S005",
        "A template does not serve this program",
        OTHER_TEMPLATE,
        ("schedule.roles", "schedule.operands", "templates", "no_template"),
    ),
    Kind("S006", "There is no such template", "A shipped name, or a function over a Schedule.", ("tune.choose",)),
    Kind(
        "S007",
        "A parameter or its value is not legal",
        "kernel.params holds those that there are; tile sizes are powers of two.",
        ("tune.params", "param"),
    ),
    Kind(
        "S008",
        "A kernel with warnings, where strict=True allows none",
        "What each line says, or strict=False.",
        ("driver.loud",),
    ),
    Kind("S009", "An assumption that the kernel does not make", "Names of kernel.explain(), Assumptions.", ("assume",)),
    Kind(
        "S010",
        "The order of additions would depend on other sizes (batch_invariant)",
        "Split the axis by a param in place of cover.",
        ("tune.invariance",),
    ),
    Kind("S011", "No candidate to tune", "Fewer or other params.", ("autotune",)),
    Kind("S012", "There is no such form of a kernel", "One of the stages that are legal.", ("kernel.shown",)),
    Kind(
        "S013",
        "A temporary cannot stay on chip",
        "Fuse its readers into the kernel that computes it, or leave it in global memory.",
        ("tile.localize",),
    ),
    Kind(
        "S020",
        "bind: a loop cannot run on the grid",
        "Bind loops whose iterations are independent.",
        ("schedule.primitives.bind",),
    ),
    Kind(
        "S021",
        "cache_read, cache_write or set_scope is refused",
        "docs/schedule.md says what it takes.",
        ("schedule.primitives.buffers",),
    ),
    Kind(
        "S022",
        "compute_at, reverse_compute_at or fuse_at is refused",
        "Choose a loop around all that the stage shares with the stages there; what it reads has to be complete.",
        ("schedule.primitives.compute_at", "schedule.primitives.fuse_at"),
    ),
    Kind(
        "S023",
        "decompose_reduction is refused",
        "Once, on a reduction, at a loop of it.",
        ("schedule.primitives.decompose_reduction",),
    ),
    Kind(
        "S024",
        "fuse, split or reorder of loops is refused",
        "Loops that enclose each other directly, of one stage.",
        ("schedule.primitives.fuse", "schedule.primitives.split", "schedule.primitives.reorder"),
    ),
    Kind(
        "S025",
        "inline is refused",
        "Maps can be inlined, reductions and outputs cannot.",
        ("schedule.primitives.inline",),
    ),
    Kind(
        "S026",
        "pack is refused",
        "An axis of heads that share keys, before any other primitive.",
        ("schedule.primitives.pack",),
    ),
    Kind(
        "S027",
        "partition is refused",
        "A loop that a condition on its variable cuts.",
        ("schedule.primitives.partition",),
    ),
    Kind("S028", "rename is refused", "A name that is free.", ("schedule.primitives.rename",)),
    Kind(
        "S029",
        "replicate is refused",
        "A stage that lacks the axis that its readers run over.",
        ("schedule.primitives.replicate",),
    ),
    Kind(
        "S030", "privatize is refused", "A reduction, and loops of it that are not on the grid.", ("fusion.privatize",)
    ),
    Kind(
        "S031",
        "split_k is refused as a schedule",
        "Before anything else is scheduled, on a reduced axis.",
        ("fusion.split_k",),
    ),
    Kind(
        "S032",
        "hoist_factor or write_directly is refused as a schedule",
        "docs/schedule.md says what it takes.",
        ("fusion.hoist_factor", "fusion.direct"),
    ),
    Kind(
        "S033",
        "A graph has no schedule, or is of another program",
        "A graph of this program, with fewer axes in the grid of its kernels.",
        ("mirage", "rewriting"),
    ),
    Kind("S034", "reverse is refused", "A loop that is bound to the grid.", ("schedule.primitives.reverse",)),
)
FUSIONS = (
    Kind(
        "F001",
        "No repair is proved for a reduction in this loop",
        "Write it so that what changes in the loop is a factor or is subtracted in exp, or fuse at an outer loop.",
        ("fusion.repairs.repair",),
    ),
    Kind(
        "F002",
        "A repaired number may leave the range of its dtype",
        "Accumulate in float32, or leave the factor where it is.",
        ("range",),
    ),
    Kind(
        "F003",
        "A fusion does not fit where it is asked for",
        "Choose another loop, or fuse before stages are partitioned, guarded or moved.",
        ("fusion.rewriting.plan", "fusion.rewriting.place", "fusion.rolling_update", "fusion.rewriting.running"),
    ),
    Kind(
        "F004",
        "An axis cannot be split in parts",
        "Leave the axis whole, or inline what the message names.",
        ("fusion.split_k",),
    ),
    Kind(
        "F005",
        "A factor cannot be taken out of a sum",
        "Leave it in the sum; the reason says what is not proved.",
        ("fusion.hoist_factor",),
    ),
    Kind(
        "F006", "Parts cannot be written directly", "Leave the combination to a kernel of its own.", ("fusion.direct",)
    ),
    Kind("F007", "No shipped template settles what it owes", OTHER_TEMPLATE, ("tune.choose",)),
    Kind("F008", "An exact check has rejected a template", OTHER_TEMPLATE, ("driver.compilation",)),
    Kind(
        "F009",
        "A program that owes repairs is compiled",
        "rolling_update, split_k or privatize on the stage.",
        ("codegen.llvm",),
    ),
    Kind("F010", "The fuel of fusions is spent", "Unset NEPTUNE_FUSION_FUEL.", ("schedule.trace",)),
    Kind(
        "F011",
        "A graph uses the fold of a tile as if it were that of the whole axis",
        "An accumulator in front of what is not linear in the sum.",
        ("mirage",),
    ),
)
CALLS = (
    Kind(
        "C001",
        "A call gives too many or too few arguments, or misnames one",
        "kernel.inputs, then kernel.scalars: first tensors, then the sizes and scalars that no shape gives.",
        ("count",),
    ),
    Kind("C002", "An argument is no dense tensor in memory", "A plain torch.Tensor.", ("runtime.calls.arguments",)),
    Kind("C003", "An argument requires a gradient", "Call under torch.no_grad(), or detach it.", ("gradient",)),
    Kind(
        "C004",
        "An argument is on another device",
        "Move it by .to(…), or compile for its device by target=.",
        ("device",),
    ),
    Kind("C005", "An argument has another dtype", "Cast it, or build the operator with this dtype.", ("dtype",)),
    Kind("C006", "An argument has another shape", "The shape that the last line of the message shows.", ("shape",)),
    Kind(
        "C007",
        "An argument has strides that the kernel does not take",
        "contiguous(), or another layout.",
        ("strides",),
    ),
    Kind("C008", "Two arguments share a size and differ in it", "Tensors that agree in it.", ("sizes",)),
    Kind(
        "C009",
        "A size or a scalar is outside of its range",
        "A value in the range, or compile with other bounds.",
        ("bound",),
    ),
    Kind("C010", "A scalar is no number of its type", "A Python number of this type.", ("scalar",)),
    Kind(
        "C011", "out= does not fit", "One tensor for each output, of its shape and dtype, sharing no memory.", ("out",)
    ),
    Kind(
        "C012",
        "workspace= does not fit",
        "torch.empty(kernel.workspace(…), dtype=torch.uint8, device=…).",
        ("runtime.calls.workspace",),
    ),
    Kind(
        "C013",
        "A number of parts that a call cannot choose",
        "A positive number, by the name that is legal.",
        ("runtime.parts",),
    ),
    Kind(
        "C014",
        "Sizes that are given by name are wrong",
        GIVE_NAMES,
        ("named_sizes", "tune.params", "kernel.variants", "autotune"),
    ),
    Kind(
        "C015",
        "A loop of the schedule is too long for these sizes",
        "A schedule that does not fuse these loops.",
        ("runtime.calls.products",),
    ),
    Kind(
        "C016",
        "An index leads out of a tensor",
        "Indices from 0 to the size of the dimension less 1.",
        ("runtime.calls.indices", "runtime.calls.empty", "graph.launch"),
    ),
    Kind("C017", "launcher= is no function of a kernel", "torch.library.wrap_triton.", ("runtime.executable",)),
    Kind(
        "C018",
        "A program is run directly on other tensors than its own",
        "Tensors as the program declares them.",
        ("codegen.llvm",),
    ),
    Kind(
        "C019",
        "A name that no operator of torch can have",
        "A namespace and a name of its own, such as mylib::attention.",
        ("runtime.custom_op",),
    ),
    Kind(
        "C020",
        "A call of neptune.functional with tensors or options that do not fit",
        "Tensors of one device and dtype, with the shapes that the message shows, that require no gradients.",
        ("functional",),
    ),
    Kind("C021", "The attention of a model is for inference", "model.eval() and torch.no_grad().", ("models",)),
    Kind(
        "C022",
        "A class of models has attention of its own",
        'attn_implementation="eager"; docs/transformers.md lists the classes that are served.',
        ("model_class",),
    ),
    Kind(
        "C023",
        "What no operator of torch has, where torch makes a graph of operators",
        "A call with tensors and scalars alone, or launcher=torch.library.wrap_triton.",
        ("kernel.traced",),
    ),
)
TARGETS = (
    Kind(
        "T001",
        "There is no such target",
        '"cuda", "cuda:90", "hip:gfx942", "llvm" or "interpret".',
        ("runtime.launching.launch", "codegen.compile"),
    ),
    Kind(
        "T002",
        "The machine has no such GPU",
        'target="interpret" or "llvm" runs anywhere; kernel.asm() needs no GPU.',
        ("no_gpu", "autotune"),
    ),
    Kind("T003", "A package that this needs is missing", f"{INSTALL_TE} for TVM.", ("package",)),
    Kind(
        "T004", "The target does not have a dtype", "Another dtype, or a later GPU.", ("runtime.launching.capability",)
    ),
    Kind("T005", "Triton does not compile a kernel", "Other tile sizes, num_warps or num_stages.", ("triton",)),
    Kind(
        "T006",
        "A schedule cannot be expressed by tiles",
        "Split or tile the loop that the message names, or leave a stage in a kernel of its own.",
        ("tile",),
    ),
    Kind(
        "T007",
        "A target without this figure or launch",
        "A target on which Triton runs.",
        ("report.resources", "runtime.executable"),
    ),
    Kind("T008", "A calibration that cannot be believed", "Calibrate when nothing else runs.", ("autotune.calibrate",)),
    Kind(
        "T009",
        "A kernel or a target without the form that was asked for",
        'form="auto" or form="triton": then another form of the kernel runs.',
        ("driver.forms",),
    ),
)
RECORDS = (
    Kind(
        "R001",
        "A saved kernel cannot be read",
        "Compile it again and kernel.save(path).",
        ("runtime.artifact", "runtime.saved", "runtime.kernel"),
    ),
    Kind("R002", "A kernel cannot be saved there", "A path where nothing is, in a folder of yours.", ("saving",)),
    Kind(
        "R003",
        "A record of a measurement, or their file, is none",
        "neptune cache prune drops what is damaged.",
        ("records",),
    ),
    Kind(
        "R004",
        "A trace of a schedule cannot be read",
        "trace_to_json(sch.trace) writes one.",
        ("schedule.trace", "fusion.schedule"),
    ),
    Kind(
        "R005",
        "A loaded kernel has no programs",
        "kernel.ir(stage) and explain() need none; else compile it again.",
        ("kernel.shown",),
    ),
    Kind("R006", "A template has changed since its kernel was cached", "Compile it again.", ("driver.cache",)),
)
OTHERS = (
    Kind(
        "N001",
        "An environment variable has a value that it cannot have",
        "help(neptune.config) lists them.",
        ("config", "base.logs", "report.dump"),
    ),
    Kind(
        "N002",
        "A search is asked for something that it has not",
        "One of the values that are legal.",
        ("autotune", "tune.budget"),
    ),
    Kind("N003", "A report cannot be written", "A path in a folder of yours.", ("report.page",)),
)
KINDS = (*EXPRESSIONS, *SCHEDULES, *FUSIONS, *CALLS, *TARGETS, *RECORDS, *OTHERS)
BY_KEY = {(k.number[0], key): k for k in KINDS for key in k.keys}
BY_CODE = {k.code: k for k in KINDS}


def kind_of(error: type[Exception], key: str) -> Kind | None:
    """The kind of an error of this class with this key: a word, or the full name of the module that makes it. None for
    an error of a module outside of the package, say of a user's template.

    (ShapeError, "dtype") → C005; (FusionError, "neptune.fusion.split_k") → F004
    """
    letter = next((CLASSES[c.__name__] for c in error.__mro__ if c.__name__ in CLASSES), "N")
    word = key.removeprefix(f"{PACKAGE}.")
    while word:
        if (letter, word) in BY_KEY:
            return BY_KEY[letter, word]
        word = word.rpartition(".")[0]
    return None
