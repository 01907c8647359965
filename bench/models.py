"""Models of transformers on Neptune: tokens per second on a GPU.

    python -m bench.models [--json FILE] [--seconds 600] [--only WORD]

1B-like widths in bfloat16, prefill of 4096 tokens and decoding of one at a cache of 4096, with Neptune's attention,
SDPA, FlexAttention, and the whole model through Inductor and through torch.compile(backend="neptune"). Rows that the
file has already are not measured again; no row starts after `--seconds`. Errors are `qa.transformers_families`'.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import neptune.graph
import neptune.models

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
    more: dict[str, Any] = field(default_factory=dict)


_GEMMA = {"head_dim": 128, "sliding_window": 1024, "query_pre_attn_scalar": 128}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
MODELS = (
    Model("llama", "LlamaConfig", "LlamaForCausalLM"),
    Model("gemma2", "Gemma2Config", "Gemma2ForCausalLM", _GEMMA),
    Model("gemma3", "Gemma3TextConfig", "Gemma3ForCausalLM", _GEMMA),
    Model("qwen3", "Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 64}),
    Model("gpt_oss", "GptOssConfig", "GptOssForCausalLM", {"head_dim": 64, "sliding_window": 128, **_EXPERTS}),
)


def made(model: Model) -> Any:
    """A model of random weights."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, model.config)(**{**LARGE, **model.more})
    with torch.device("cuda"):
        return getattr(transformers, model.causal)(config).to(torch.bfloat16).eval()


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
    net = made(model)
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
    for name, model, way in ((f"speed {m.name} {way}", m, way) for m in MODELS for way in WAYS):
        if options.only not in name or name in rows:
            continue
        if time.monotonic() > end:
            print(f"out of time before {name}: run it again to go on")
            break
        try:
            rows[name] = speed(model, way)
        except Exception as failure:
            rows[name] = {"failed": f"{type(failure).__name__}: {failure}"[:400]}
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        print(name, json.dumps(rows[name]), flush=True)
        if path is not None:
            path.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
