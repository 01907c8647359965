"""A Llama of random weights on Neptune's attention: one call, and the models of transformers take it by name.

    python examples/llama_attention.py

It needs `pip install "neptune-compiler[models]"`. On a GPU kernels run there, else on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch

import neptune.models

try:
    from transformers import LlamaConfig, LlamaForCausalLM
except ModuleNotFoundError:
    raise SystemExit('this example needs transformers: pip install "neptune-compiler[models]"') from None


def main() -> float:
    """Compare prefill and decoding with eager attention; the largest relative error of any logits."""
    neptune.models.register()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    built: Any = LlamaForCausalLM(config)
    model = built.to(device).eval()
    prompt = torch.randint(0, 128, (2, 17), device=device)
    found = {}
    for name in ("eager", "neptune"):
        model.set_attn_implementation(name)
        # Prefill of 17 tokens, then 8 of one token each with a cache.
        steps = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=9,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        found[name] = steps.logits
    pairs = zip(found["neptune"], found["eager"], strict=True)
    worst = max(float((a - b).norm() / b.norm()) for a, b in pairs)
    print(f"{len(found['eager'])} steps, largest relative error of the logits beside eager attention: {worst:.1e}")
    return worst


if __name__ == "__main__":
    main()
