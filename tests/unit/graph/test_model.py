"""A whole model through the backend: regions of all layers, with one kernel for those that are alike."""

from __future__ import annotations

import pytest
import torch

from neptune.graph.backend import Backend

transformers = pytest.importorskip("transformers")


@pytest.mark.slow
@pytest.mark.compared
def test_a_llama_through_the_backend_agrees_and_its_layers_share_kernels() -> None:
    config = transformers.LlamaConfig(
        vocab_size=61, hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    model.set_attn_implementation("eager")
    ids = torch.randint(0, 61, (2, 9))
    backend = Backend("llvm")
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        eager, found = (f(ids, use_cache=False).logits for f in (model, compiled))
    assert float((found - eager).norm() / eager.norm()) < 2e-6
    (report,) = backend.reports
    attention = [c for c in report.taken if c.region.name == "bmm_amax_sum"]
    assert len(attention) == 2 and attention[0].kernel is attention[1].kernel
    assert all(c.kernel is not None and len(c.kernel.facts.kernels) == 1 for c in attention)
