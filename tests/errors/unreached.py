"""Places that no must-fail program reaches, each with its reason.

Most are guards: something in front of them refuses first, and they stay because their function is right without
knowing its callers. An entry that is reached, or whose code is gone, fails the test.
"""

NO_CALLER = "no call of a user's takes the text of a tile program yet; tests/unit/tile/test_tile_parser.py refuses some"
IN_TORCH = "raised below torch's dispatcher, whose frames stay; tests/unit/runtime/test_custom_op.py provokes it"
NO_CALLER_ASYNC = (
    "no call of a user's takes the text of an asynchronous kernel; tests/unit/hopper/test_roles.py reads some"
)
UNREACHED: dict[str, str] = {
    "functional/softmax_attention.py:call#1": "of tensors of a GPU alone; tests/gpu/test_functional.py provokes it",
    "functional/mods.py:traced#2": "raised where torch.compile traces, which wraps it",
    "functional/operators.py:check_tensors#1": "torch has devices beside these, but no tensor of one here",
    "functional/mods.py:Mod.expression#1": "a guard: rows refuse what they do not take in words of their own",
    "runtime/artifact.py:unpack#1": "a folder has texts; a pickle without any is none of ours",
    "runtime/custom_op.py:check_gradients#1": IN_TORCH,
    "runtime/custom_op.py:fake_results#1": IN_TORCH,
    "graph/launch.py:_check_index#1": "raised in a compiled graph, whose frames stay; tests/defects/test_regions.py",
    "mirage/enumeration/abstract.py:apply#1": "programs have no running maxima; tests/unit/mirage/test_search.py",
    "mirage/layouts.py:solve#1": "who asks for layouts looks first; tests/unit/mirage/test_layouts.py provokes it",
    "frontend/tvmscript.py:_Importer.pair#2": "what `updates` lets through has old values and new ones",
    "fusion/split_k.py:_check_local#2": "the solver finds no bound for what reads a result of which part is deferred",
    "schedule/primitives/compute_at.py:_check_reads#1": "what is read is complete there, unless a fusion owes a repair",
    "tile/localize.py:_extent#1": "the verifier refuses programs in which a tile of unknown extent is private",
    "tile/stage.py:StageTranslator.store#1": "the verifier refuses stages that write one element several times",
    "tile/parser.py:TileLine.assigned#1": NO_CALLER,
    "tile/parser.py:TileLine.infix#1": NO_CALLER,
    "tile/parser.py:TileLine.load_tile#1": NO_CALLER,
    "tile/parser.py:TileLine.plain#1": NO_CALLER,
    "tile/parser.py:index_dims#1": NO_CALLER,
    "hopper/parser.py:AsyncLine.ring#1": NO_CALLER_ASYNC,
    "hopper/parser.py:_Reader.of_role#1": NO_CALLER_ASYNC,
}
