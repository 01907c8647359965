"""Places that no must-fail program reaches, each with its reason.

Most are guards: something in front of them refuses first, and they stay because their function is right without
knowing its callers. An entry that is reached, or whose code is gone, fails the test.
"""

TUPLES = "no reducer on tuples can be written down yet"

UNREACHED: dict[str, str] = {
    "frontend/te.py:_Importer._tensor#3": "te.compute itself refuses, or pads, a lambda of another number of axes",
    "frontend/te.py:_Scope.reduction#1": "a stage of several values is refused before its reduction is looked at",
    "fusion/plan.py:place_in#1": "the stage is outside of the loop, so the loop belongs to another stage",
    "fusion/plan.py:_reduction#2": TUPLES,
    "fusion/plan.py:_check_place#2": "the trial placement in front of it refuses readers that come too early",
    "fusion/privatize.py:_check_action#3": TUPLES,
    "schedule/fuse_at.py:fuse_definition#1": "fuse_at and rolling_update refuse in their own words before",
    "schedule/fuse_at.py:fuse_at#3": "the stage is outside of the loop, so the loop belongs to another stage",
    "schedule/split.py:_check#1": "loops start at 0 in a schedule; pieces that do not are refused as pieces",
    "tile/localize.py:_extent#1": "the verifier refuses programs in which a tile of unknown extent is private",
    "tile/stage.py:StageTranslator.store#1": "the verifier refuses stages that write one element several times",
    "tile/stage.py:StageTranslator.update#1": TUPLES,
    "tile/stage.py:StageTranslator.update#2": "localize takes every reduction on chip, or refuses by itself",
}
