"""What the cost model knows of a point, as numbers that a correction can learn from (`neptune.autotune.learn`).

features(model.predict_all(columns, machine), columns, ("BLOCK_M",)).keys()  →  {"matrix", …, "waves", "BLOCK_M", …}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from neptune.tune.model.numbers import Array
from neptune.tune.model.prediction import SPENT, Predictions

LAUNCH = ("num_warps", "num_stages")


def features(predictions: Predictions, columns: Mapping[str, Array], tiles: Iterable[str]) -> dict[str, Array]:
    """Columns with an element a point, float64 and finite. Each of SPENT: the share of the predicted time that it would
    take alone, all kernels together. "us", the "waves", "resident" and "programs" of the longest kernel, warps, stages
    and `tiles`: log₂. What does not fit has zeros."""
    us = np.asarray(predictions.us, np.float64)
    runs = np.isfinite(us) & (us > 0)
    total = np.where(runs, us, 1.0)
    spent = sum(np.where(runs, k.spent, 0.0) for k in predictions.kernels) / total
    longest = np.stack([np.where(runs, k.us, 0.0) for k in predictions.kernels]).argmax(axis=0)[None]

    def of_longest(rows: Sequence[Array]) -> Array:
        return np.take_along_axis(np.stack([np.broadcast_to(r, us.shape) for r in rows]), longest, axis=0)[0]

    numbers = {
        "us": total,
        "waves": of_longest([k.waves for k in predictions.kernels]),
        "resident": of_longest([k.resident for k in predictions.kernels]),
        "programs": of_longest([k.programs for k in predictions.kernels]),
        **{n: np.broadcast_to(np.asarray(columns[n], np.float64), us.shape) for n in (*LAUNCH, *tiles)},
    }
    logs = {n: np.where(runs, np.log2(np.maximum(x, 2.0**-10)), 0.0) for n, x in numbers.items()}
    return dict(zip(SPENT, spent, strict=True)) | logs
