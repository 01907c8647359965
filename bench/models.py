"""Models of transformers on Neptune: errors, operators used, and tokens per second on a GPU.

    python -m bench.models [--json FILE] [--seconds 600] [--only WORD]

Without a GPU: small widths, errors of prefill and decoding beside eager attention, in float32 against float64, as far
as the code of the models keeps it (norms and softmax are float32 there). With one: besides, 1B-like widths in bfloat16,
prefill of 4096 tokens and decoding of one at a cache of 4096, with Neptune's attention, SDPA, FlexAttention, and the
whole model through Inductor and through torch.compile(backend="neptune"). Rows that the file has already are not
measured again; no row starts after `--seconds`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

import neptune.graph
import neptune.models
from neptune.functional.kernels import compiled

SMALL = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
LARGE = {
    "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 16384,
}  # fmt: skip
TOKENS, REPEATS = 4096, 10


@dataclass(frozen=True)
class Model:
    """Classes of transformers, and what a configuration says beside widths."""

    name: str
    config: str
    causal: str
    small: dict[str, Any] = field(default_factory=dict)
    large: dict[str, Any] = field(default_factory=dict)


_GEMMA = {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}
_GEMMA_LARGE = {"head_dim": 128, "sliding_window": 1024, "query_pre_attn_scalar": 128}
MODELS = (
    Model("llama", "LlamaConfig", "LlamaForCausalLM"),
    Model("gemma2", "Gemma2Config", "Gemma2ForCausalLM", _GEMMA, _GEMMA_LARGE),
    Model("gemma3", "Gemma3TextConfig", "Gemma3ForCausalLM", _GEMMA, _GEMMA_LARGE),
    Model("qwen3", "Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 16}, {"head_dim": 64}),
    Model(
        "gpt_oss",
        "GptOssConfig",
        "GptOssForCausalLM",
        {"head_dim": 16, "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
        {"head_dim": 64, "sliding_window": 128, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
)


def made(model: Model, widths: dict[str, Any], more: dict[str, Any], dtype: torch.dtype, device: str) -> Any:
    """A model of random weights."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, model.config)(**{**widths, **more})
    with torch.device(device):
        return getattr(transformers, model.causal)(config).to(dtype).eval()


# --- errors ---------------------------------------------------------------------------------------


def errors(model: Model, device: str) -> dict[str, Any]:
    """Relative errors of logits against float64, of Neptune's attention and of eager attention in float32."""
    net = made(model, SMALL, model.small, torch.float32, device)
    if hasattr(net, "set_experts_implementation"):
        # Grouped products of torch are none of float64.
        net.set_experts_implementation("eager")
    ids = torch.randint(0, SMALL["vocab_size"], (2, 23), device=device)
    keep = torch.ones_like(ids)
    # Behind the sequence: in front, eager attention of some versions is NaN in rows that see nothing.
    keep[1, -5:] = 0
    found: dict[str, list[torch.Tensor]] = {}
    for name, dtype in (("exact", torch.float64), ("eager", torch.float32), ("neptune", torch.float32)):
        net.to(dtype).set_attn_implementation("neptune" if name == "neptune" else "eager")
        with torch.no_grad():
            padded = net(ids, attention_mask=keep).logits[keep.bool()]
            out = net(ids, use_cache=True)
            steps = [padded, out.logits]
            # The same tokens for all: what follows differs by the attention alone.
            for t in range(8):
                token = ids[:, t : t + 1]
                out = net(token, past_key_values=out.past_key_values, use_cache=True)
                steps.append(out.logits)
        found[name] = steps
    rows = {"padded": slice(0, 1), "prefill": slice(1, 2), "decode": slice(2, None)}
    return {
        f"{what}_{name}": _error(found[name][part], found["exact"][part])
        for what, part in rows.items()
        for name in ("neptune", "eager")
    }


def _error(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    return max(float((f.double() - e).norm() / e.norm()) for f, e in zip(found, exact, strict=True))


def operators(model: Model, device: str) -> list[str]:
    """Neptune's kernels that a forward pass compiles or finds, by what they were compiled for."""
    before = set(compiled())
    net = made(model, SMALL, model.small, torch.bfloat16, device)
    net.set_attn_implementation("neptune")
    with torch.no_grad():
        net(torch.randint(0, 97, (1, 9), device=device))
    found = [s for s, where in compiled().keys() - before if where == device]
    return [f"{s.operator}({', '.join(f'{n}={v}' for n, v in s.options if v)})" for s in found]


# --- tokens per second ------------------------------------------------------------------------------

WAYS: dict[str, tuple[str, str | None]] = {
    "neptune": ("neptune", None),
    "sdpa": ("sdpa", None),
    "flex_attention": ("flex_attention", None),
    "eager": ("eager", None),
    "inductor": ("sdpa", "inductor"),
    "neptune+inductor": ("neptune", "inductor"),
    "backend": ("eager", "neptune"),
}
"""Ways to run a model: the attention by its name, and the backend of torch.compile."""


def speed(model: Model, way: str) -> dict[str, Any]:
    """Tokens per second of prefill and of decoding, by the median of several passes."""
    attention, backend = WAYS[way]
    net = made(model, LARGE, model.large, torch.bfloat16, "cuda")
    net.set_attn_implementation(attention)
    run: Callable[..., Any] = net if backend is None else torch.compile(net, backend=backend)
    ids = torch.randint(0, LARGE["vocab_size"], (1, TOKENS), device="cuda")
    with torch.no_grad():
        prefill = _seconds(lambda: run(ids, use_cache=False))
        cache = net(ids, use_cache=True).past_key_values
        token = ids[:, :1]

        def step() -> None:
            # The cache grows by a token a step.
            run(token, past_key_values=cache, use_cache=True)

        decode = _seconds(step)
    return {"prefill": TOKENS / prefill, "decode": 1 / decode}


def _seconds(act: Callable[[], object]) -> float:
    for _ in range(3):
        act()
    times = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        act()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times)[REPEATS // 2]


# --- rows -------------------------------------------------------------------------------------------


def jobs(gpu: bool) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Everything there is to measure, by name."""
    device = "cuda" if gpu else "cpu"
    for m in MODELS:
        yield f"errors {m.name}", partial(judged, m, device)
    for m in MODELS if gpu else ():
        for way in WAYS:
            yield f"speed {m.name} {way}", partial(speed, m, way)


def judged(model: Model, device: str) -> dict[str, Any]:
    """Errors, and the operators used."""
    return errors(model, device) | {"operators": operators(model, device)}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--only", default="")
    options = parser.parse_args(argv)
    neptune.models.register()
    path: Path | None = options.json
    rows: dict[str, Any] = json.loads(path.read_text()) if path is not None and path.exists() else {}
    end = time.monotonic() + options.seconds
    for name, job in jobs(torch.cuda.is_available()):
        if options.only not in name or name in rows:
            continue
        if time.monotonic() > end:
            print(f"out of time before {name}: run it again to go on")
            break
        try:
            rows[name] = job()
        except Exception as failure:
            rows[name] = {"failed": f"{type(failure).__name__}: {failure}"[:400]}
        torch._dynamo.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        print(name, json.dumps(rows[name]), flush=True)
        if path is not None:
            path.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
