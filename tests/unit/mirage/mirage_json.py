"""JSON in the form of Mirage's files, written by hand: the graphs that it publishes for three benchmarks at b = 8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]
NONE = {"x": -1, "y": -1, "z": -1}


class File:
    """A graph as it is written. Tensors are numbered as they come; methods return their objects."""

    def __init__(self) -> None:
        self.operators: list[Json] = []
        self.guid = 10000000

    def tensor(self, dims: Sequence[int]) -> Json:
        self.guid += 1
        four = [*dims, 0, 0, 0, 0][:4]
        return {"data_type": 941, "dim": four, "guid": self.guid, "layout": "DmemRowMajor", "num_dims": len(dims)}

    def op(self, kind: str, inputs: list[Json], dims: Sequence[int]) -> Json:
        made = self.tensor(dims)
        self.operators.append({"op_type": kind, "input_tensors": inputs, "output_tensors": [made]})
        return made

    def input(self, *dims: int) -> Json:
        return self.op("kn_input_op", [], dims)

    def output(self, tensor: Json) -> list[Json]:
        """The whole graph."""
        self.operators.append({"op_type": "kn_output_op", "input_tensors": [tensor], "output_tensors": []})
        return self.operators

    def kernel(self, inputs: list[Json], block: Block) -> list[Json]:
        made = [x["dtensor"] for x in block.operators if x["op_type"] == "tb_output_op"]
        self.operators.append(
            {"op_type": "kn_customized_op", "bgraph": block.json(), "input_tensors": inputs, "output_tensors": made}
        )
        return made


class Block(File):
    """A kernel as it is written."""

    def __init__(self, file: File, grid: tuple[int, int, int], loop: int = 1, dimx: int = 64) -> None:
        super().__init__()
        self.file, self.grid, self.loop, self.dimx = file, dict(zip("xyz", grid, strict=True)), loop, dimx
        self.guid = file.guid * 2

    def load(self, tensor: Json, loop: int = -1, **maps: int) -> Json:
        cut = NONE | maps
        dims = list(tensor["dim"][: tensor["num_dims"]])
        for c, d in cut.items():
            dims[d] //= self.grid[c] if d >= 0 else 1
        dims[loop] //= self.loop if loop >= 0 else 1
        made = self.op("tb_input_op", [], dims)
        self.operators[-1] |= {"dtensor": tensor, "input_map": cut, "forloop_dim": loop}
        return made

    def save(self, tile: Json, **maps: int) -> None:
        to = NONE | maps
        dims = list(tile["dim"][: tile["num_dims"]])
        for c, d in to.items():
            dims[d] *= self.grid[c] if d >= 0 else 1
        self.operators.append(
            {
                "op_type": "tb_output_op",
                "dtensor": self.file.tensor(dims),
                "output_map": to,
                "input_tensors": [tile],
                "output_tensors": [],
            }
        )

    def json(self) -> Json:
        return {
            "block_dim": {"x": 128, "y": 1, "z": 1},
            "forloop_range": self.loop,
            "grid_dim": self.grid,
            "operators": self.operators,
            "reduction_dimx": self.dimx,
        }


def rms_norm() -> list[Json]:
    """(x w) / root mean square of x, both summed in one loop."""
    f = File()
    x, w = f.input(16, 4096), f.input(4096, 6144)
    b = Block(f, (256, 1, 1), loop=64)
    a, c = b.load(x, loop=1), b.load(w, loop=0, x=1)
    root = b.op("tb_forloop_accum_red_ld_rms_op", [a], (16, 1))
    product = b.op("tb_forloop_accum_nored_op", [b.op("tb_matmul_op", [a, c], (16, 24))], (16, 24))
    b.save(b.op("tb_div_op", [product, root], (16, 24)), x=1)
    return f.output(f.kernel([x, w], b)[0])


def gated_mlp() -> list[Json]:
    """Both products in one loop, silu behind it, their product a library operator."""
    f = File()
    x, w, u = f.input(8, 4096), f.input(4096, 4096), f.input(4096, 4096)
    b = Block(f, (128, 1, 1), loop=64)
    a, c, d = b.load(x, loop=1), b.load(w, loop=0, x=1), b.load(u, loop=0, x=1)
    gate, up = (b.op("tb_forloop_accum_nored_op", [b.op("tb_matmul_op", [a, t], (8, 32))], (8, 32)) for t in (c, d))
    b.save(up, x=1)
    b.save(b.op("tb_silu_op", [gate], (8, 32)), x=1)
    made = f.kernel([x, w, u], b)
    return f.output(f.op("kn_mul_op", made, (8, 4096)))


def gqa(steps: int = 1) -> list[Json]:
    """Keys over y: every program writes products beside those of the others, and weights tile by tile; a second kernel
    adds up both, in one step or in a loop."""
    f = File()
    q, k, v = f.input(16, 256, 64), f.input(16, 64, 4096), f.input(16, 4096, 64)
    b = Block(f, (16, 16, 4), loop=4)
    a, c, d = b.load(q, x=0, z=1), b.load(k, loop=2, x=0, y=2), b.load(v, loop=1, x=0, y=1)
    e = b.op("tb_exp_op", [b.op("tb_matmul_op", [a, c], (1, 64, 64))], (1, 64, 64))
    weights = b.op("tb_forloop_accum_nored_op", [e], (1, 64, 64))
    b.save(weights, x=0, y=2, z=1)
    product = b.op("tb_forloop_accum_nored_op", [b.op("tb_matmul_op", [e, d], (1, 64, 64))], (1, 64, 64))
    b.save(product, x=0, y=2, z=1)
    weights, products = f.kernel([q, k, v], b)
    b = Block(f, (16, 16, 1), loop=steps, dimx=64)
    a, c = (b.load(t, loop=2 if steps > 1 else -1, x=0, y=1) for t in (weights, products))
    total = b.op("tb_forloop_accum_red_ld_sum_op", [a], (1, 16, 1))
    top = b.op("tb_forloop_accum_redtox_ld_sum_op", [c], (1, 16, 64))
    b.save(b.op("tb_div_op", [top, total], (1, 16, 64)), x=0, y=1)
    return f.output(f.kernel([weights, products], b)[0])


def qk_norm() -> list[Json]:
    """The wrong graph: y cuts queries of q, the depth of k and keys of v, and scores are (Σ_d q)·(one row of k)."""
    f = File()
    q, k, v = f.input(16, 256, 64), f.input(16, 64, 4096), f.input(16, 4096, 64)
    b = Block(f, (16, 64, 1))
    a, c, d = (b.load(t, x=0, y=1) for t in (q, k, v))
    total = b.op("tb_forloop_accum_red_ld_sum_op", [b.op("tb_rms_norm_op", [a], (1, 4, 64))], (1, 4, 1))
    row = b.op("tb_forloop_accum_nored_op", [c], (1, 1, 4096))
    b.save(b.op("tb_forloop_accum_nored_op", [d], (1, 64, 64)), x=0, y=2)
    b.save(b.op("tb_matmul_op", [total, row], (1, 4, 4096)), x=0, y=2)
    values, scores = f.kernel([q, k, v], b)
    b = Block(f, (16, 64, 1))
    a, c = b.load(values, x=0, y=2), b.load(scores, x=0, y=2)
    e = b.op("tb_exp_op", [c], (1, 4, 4096))
    b.save(b.op("tb_rms_norm_op", [a], (1, 64, 64)), x=0, y=1)
    b.save(b.op("tb_div_op", [e, b.op("tb_reduction_2_op", [e], (1, 4, 1))], (1, 4, 4096)), x=0, y=1)
    values, weights = f.kernel([values, scores], b)
    return f.output(f.op("kn_matmul_op", [weights, values], (16, 256, 64)))


def qk_norm_unsplit() -> list[Json]:
    """The same mistake with labels that fit: (Σ_d q)·(Σ_d k) in one loop over keys."""
    f = File()
    q, k, v = f.input(16, 256, 64), f.input(16, 64, 4096), f.input(16, 4096, 64)
    b = Block(f, (16, 64, 1), loop=64)
    a, c, d = b.load(q, x=0, y=1), b.load(k, loop=2, x=0), b.load(v, loop=1, x=0)
    total = b.op("tb_reduction_2_op", [b.op("tb_rms_norm_op", [a], (1, 4, 64))], (1, 4, 1))
    e = b.op("tb_matmul_op", [total, b.op("tb_reduction_1_op", [c], (1, 1, 64))], (1, 4, 64))
    e = b.op("tb_exp_op", [e], (1, 4, 64))
    product = b.op("tb_matmul_op", [e, b.op("tb_rms_norm_op", [d], (1, 64, 64))], (1, 4, 64))
    product = b.op("tb_forloop_accum_nored_op", [product], (1, 4, 64))
    b.save(b.op("tb_div_op", [product, b.op("tb_forloop_accum_red_ld_sum_op", [e], (1, 4, 1))], (1, 4, 64)), x=0, y=1)
    return f.output(f.kernel([q, k, v], b)[0])
