"""A two-layer causal language model learns a real text, byte by byte: the same curve as with the
framework's own attention, on the CPU in f32 against eager, on a GPU in bf16 against SDPA."""
import pathlib

import pytest
import torch

transformers = pytest.importorskip("transformers")
import tilewise.transformers  # noqa: E402, F401

TEXT = pathlib.Path(__file__).parents[2] / "docs" / "semantics.md"
STEPS, BATCH, LENGTH = 200, 8, 64


def curve(implementation, device):
    torch.manual_seed(0)
    data = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8).long().to(device)
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, vocab_size=256,
                                      max_position_embeddings=LENGTH)
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation=implementation)
    model.to(device, torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    draw = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(STEPS):
        starts = torch.randint(len(data) - LENGTH, (BATCH,), generator=draw).tolist()
        ids = torch.stack([data[s:s + LENGTH] for s in starts])
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


def test_causal_language_model(device):
    mine = curve("tilewise", device)
    theirs = curve("eager" if device == "cpu" else "sdpa", device)
    start, end = theirs[:10].mean(), theirs[-20:].mean()
    assert end < start - 2, "the model learns nothing, so that its curve says nothing"
    # Rounding grows from step to step; the learning doesn't care.
    tolerance = 1e-3 if device == "cpu" else 3e-2
    assert (mine[:20] - theirs[:20]).abs().max() <= tolerance
    assert (mine[-20:].mean() - end).abs() <= 0.02 * (start - end)
