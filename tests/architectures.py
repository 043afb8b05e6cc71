"""Tiny random models of every causal-language-model family of transformers that can be made tiny: one line each."""

import dataclasses
from typing import NamedTuple

import torch
import transformers as tf
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from distill_core.heads import HeadOps

V = 61  # odd on purpose
MLA = {"num_key_value_heads": 4}  # multi-head latent attention: as many keys as queries
SPARSE_MLA = MLA | {"index_topk": 8, "index_head_dim": 16, "index_n_heads": 2}
TWO_LAYERS = ["linear_attention", "full_attention"]
ALTERNATING = ["sliding_attention", "full_attention"] * 2

SIZES = {
    "vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "sliding_window": 8, "attention_window_size": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    # the same under the names of other families
    "n_embd": 32, "n_layer": 2, "n_layers": 2, "n_head": 4, "n_heads": 4, "n_positions": 64, "n_inner": 48, "rotary_dim": 4, "dff": 48,
    "d_model": 32, "ffn_dim": 48, "word_embed_proj_dim": 32, "emb_dim": 32,
    "decoder_layers": 2, "decoder_ffn_dim": 48, "decoder_attention_heads": 4,
    "encoder_layers": 2, "encoder_ffn_dim": 48, "encoder_attention_heads": 4,
    # experts
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2, "moe_k": 2,
    "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    # latent attention
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    # recurrences
    "state_size": 4, "ssm_state_size": 4, "chunk_size": 8, "lru_width": 32, "n_groups": 1, "num_heads": 8,
    "mamba_d_state": 4, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64, "mamba_n_groups": 1,
    "mamba_num_heads": 8, "mamba_head_dim": 8,
    "linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    # Gemma 3n and 4
    "vocab_size_per_layer_input": V, "hidden_size_per_layer_input": 8, "altup_num_inputs": 2, "laurel_rank": 4,
}  # fmt: skip


PLAIN = HeadOps()


class Row(NamedTuple):
    """A family: what its config needs besides SIZES, what follows its head, and whether it keeps packed documents apart."""

    config: dict
    ops: HeadOps = PLAIN
    apart: bool = True


def row(*, ops: HeadOps = PLAIN, apart: bool = True, **config) -> Row:
    return Row(config, ops, apart)


def mixing(**config) -> Row:
    """A family that cannot tell packed documents apart: recurrences, and positions of its own counting."""
    return Row(config, apart=False)


def sizes_of(name: str) -> dict:
    """SIZES, as far as this family's config knows their names."""
    known = {field.name for field in dataclasses.fields(CONFIG_MAPPING[name])}
    return {key: value for key, value in SIZES.items() if key in known}


def seeing(text: str, vision: dict | None, *, apart: bool = True, **text_config) -> Row:
    """A model of text and pictures, read as text alone."""
    return Row({"text_config": sizes_of(text) | {"model_type": text} | text_config, "vision_config": vision}, apart=apart)


EYE = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "patch_size": 8}
QWEN_EYE = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32, "num_position_embeddings": 16,
    "patch_size": 8,
}  # fmt: skip

SERVED = {
    # attention, dense
    "llama": row(),
    "llama tied": row(tie_word_embeddings=True),
    "apertus": row(),
    "apertus1p5_text": row(),
    "arcee": row(),
    "bitnet": row(),
    "codegen": row(),
    "cohere": row(logit_scale=0.0625, ops=HeadOps(0.0625)),
    "cohere2": row(logit_scale=0.25, ops=HeadOps(0.25)),
    "ctrl": row(),
    "cwm": row(),
    "diffllama": row(),
    "doge": row(),
    "ernie4_5": row(),
    "exaone": row(),
    "exaone4": row(),
    "falcon": row(),
    "falcon tied": row(tie_word_embeddings=True, alibi=False),
    "gemma": row(),
    "gemma2": row(final_logit_softcapping=30.0, ops=HeadOps(logit_softcap=30.0)),
    "gemma3_text": row(),
    "gemma3_text capped": row(final_logit_softcapping=20.0, ops=HeadOps(logit_softcap=20.0)),
    "gemma3n_text": row(
        num_hidden_layers=4, num_kv_shared_layers=2, intermediate_size=[48] * 4, layer_types=ALTERNATING, ops=HeadOps(logit_softcap=30.0)
    ),
    "gemma4_text": row(),
    "gemma4_unified_text": row(),
    "glm": row(),
    "glm4": row(),
    "gpt-sw3": row(),
    "gpt2": row(),
    "gpt_bigcode": row(),
    "gpt_neo": row(num_layers=2, attention_types=[[["global", "local"], 1]], window_size=8),
    "gpt_neox": row(),
    "gpt_neox_japanese": row(),
    "gptj": row(),
    "granite": row(logits_scaling=8.0, ops=HeadOps(0.125)),
    "granite_swa": row(logits_scaling=4.0, ops=HeadOps(0.25)),
    "helium": row(),
    "hrm_text": row(),
    "hunyuan_v1_dense": row(),
    "hyperclovax": row(),
    "internlm3": row(),
    "iquestcoder": row(),
    "jais2": row(),
    "lfm3": mixing(),
    "ministral": row(),
    "ministral3": row(),
    "minicpm3": row(**MLA),
    "mistral": row(),
    "modernbert-decoder": row(),
    "mpt": mixing(),
    "nanochat": row(ops=HeadOps(logit_softcap=15.0)),
    "nemotron": row(),
    "olmo": row(),
    "olmo2": row(),
    "olmo3": row(),
    "openai-gpt": mixing(),
    "opt": mixing(),
    "opt of another width": mixing(word_embed_proj_dim=16),
    "persimmon": row(),
    "phi": row(),
    "phi3": row(),
    "qwen2": row(),
    "qwen3": row(),
    "qwen3 tied": row(tie_word_embeddings=True),
    "seed_oss": row(),
    "smollm3": row(),
    "stablelm": row(),
    "starcoder2": row(),
    "vaultgemma": row(ops=HeadOps(logit_softcap=30.0)),
    "xglm": mixing(attention_heads=4, num_layers=2),
    "youtu": row(**MLA),
    "bloom": mixing(),
    "biogpt": mixing(),
    # mixtures of experts
    "afmoe": mixing(),
    "aria_text": row(moe_num_shared_experts=1),
    "axk1": row(**MLA),
    "axk2": row(**MLA),
    "beam": row(ops=HeadOps(logit_softcap=30.0)),
    "cohere2_moe": row(logit_scale=0.0625, ops=HeadOps(0.0625)),
    "deepseek_v2": row(**MLA),
    "deepseek_v3": row(first_k_dense_replace=1, **MLA),
    "deepseek_v32": row(**SPARSE_MLA),
    "deepseek_v4": row(mlp_layer_types=["hash_moe", "moe"]),
    "dots1": row(),
    "dots3_note_text": mixing(**SPARSE_MLA),
    "ernie4_5_moe": row(),
    "exaone_moe": row(),
    "flex_olmo": row(),
    "flint": row(mlp_only_layers=[0]),
    "glm4_moe": row(),
    "glm4_moe_lite": row(**MLA),
    "glm_moe_dsa": row(**SPARSE_MLA),
    "gpt_oss": mixing(),
    "granitemoe": row(logits_scaling=8.0, ops=HeadOps(0.125)),
    "granitemoe_swa": row(),
    "granitemoeshared": row(),
    "hunyuan_v1_moe": row(),
    "hy_v3": row(),
    "hy_v4": row(index_topk=8, index_head_dim=16, index_n_heads=2),
    "jetmoe": row(),
    "kolibri1": row(),
    "laguna": row(),
    "llama4_text": row(),
    "longcat_flash": row(num_layers=1, ffn_hidden_size=48, expert_ffn_hidden_size=24, zero_expert_num=2, moe_topk=2, **MLA),
    "mellum": row(),
    "mimo_v2_flash": row(),
    "minimax_m2": row(),
    "minimax_m3_vl_text": row(),
    "mixtral": row(),
    "olmoe": row(),
    "phimoe": row(),
    "qwen2_moe": row(),
    "qwen3_moe": row(),
    "sarvam_mla": row(**MLA),
    "sarvam_moe": row(),
    "solar_open": row(),
    # recurrences and convolutions, most beside attention
    "bailing_hybrid": mixing(),
    "bamba": mixing(attn_layer_indices=[1]),
    "falcon_h1": mixing(lm_head_multiplier=0.5)._replace(ops=HeadOps(0.5)),
    "falcon_mamba": mixing(),
    "granitemoehybrid": mixing(layer_types=["mamba", "attention"]),
    "inkling_text": mixing(unpadded_vocab_size=V),
    "inkling2_text": mixing(
        sliding_window_size=8,
        rel_extent=16,
        d_rel=4,
        swa_num_attention_heads=4,
        swa_num_key_value_heads=2,
        swa_head_dim=8,
        unpadded_vocab_size=V,
    )._replace(ops=HeadOps(logit_softcap=30.0)),
    "jamba": mixing(num_hidden_layers=3, attn_layer_period=3, attn_layer_offset=1),
    "kimi_linear": mixing(linear_head_dim=8, linear_num_heads=4, **MLA),
    "lara_mini": mixing(),
    "lfm2": mixing(layer_types=["conv", "full_attention"], block_multiple_of=16),
    "lfm2_moe": mixing(layer_types=["conv", "full_attention"], num_dense_layers=1),
    "mamba": mixing(),
    "mamba2": mixing(),
    "minimax": mixing(),
    "nemotron_h": mixing(),
    "olmo_hybrid": mixing(layer_types=TWO_LAYERS),
    "qwen3_5_moe_text": mixing(layer_types=TWO_LAYERS),
    "qwen3_5_text": mixing(layer_types=TWO_LAYERS),
    "qwen3_next": mixing(layer_types=TWO_LAYERS),
    "qwen4_exp_text": mixing(),
    "recurrent_gemma": mixing()._replace(ops=HeadOps(logit_softcap=30.0)),
    "rwkv": mixing(),
    "xlstm": mixing()._replace(ops=HeadOps(logit_softcap=30.0)),
    "zamba2": mixing(num_hidden_layers=3, layers_block_type=["mamba", "hybrid", "mamba"], adapter_rank=4, n_mamba_heads=4, **MLA),
    "zaya": mixing(num_experts_per_tok=1, router_hidden_size=16),
    # text and pictures
    "gemma3": seeing("gemma3_text", EYE),
    "gemma4": seeing("gemma4_text", None),
    "gemma4_unified": seeing("gemma4_unified_text", None),
    "llama4": seeing("llama4_text", EYE | {"vision_output_dim": 32, "projector_input_dim": 16, "projector_output_dim": 32}),
    "qwen3_5": seeing("qwen3_5_text", QWEN_EYE, apart=False, layer_types=TWO_LAYERS),
    "qwen3_5_moe": seeing("qwen3_5_moe_text", QWEN_EYE, apart=False, layer_types=TWO_LAYERS),
    # encoders as decoders, and the decoders of translators and listeners
    "bart": mixing(),
    "bert": mixing(is_decoder=True),
    "big_bird": mixing(is_decoder=True, attention_type="original_full"),
    "bigbird_pegasus": mixing(),
    "blenderbot": mixing(),
    "blenderbot-small": mixing(),
    "camembert": mixing(is_decoder=True),
    "electra": mixing(is_decoder=True),
    "ernie": mixing(is_decoder=True),
    "marian": mixing(),
    "mbart": mixing(),
    "megatron-bert": mixing(is_decoder=True),
    "moshi": row(),
    "mvp": mixing(),
    "pegasus": mixing(),
    "plbart": mixing(),
    "rembert": mixing(is_decoder=True, input_embedding_size=16, output_embedding_size=24),
    "roberta": mixing(is_decoder=True),
    "roc_bert": mixing(is_decoder=True, pronunciation_embed_dim=8, pronunciation_vocab_size=7, shape_embed_dim=8, shape_vocab_size=7),
    "roformer": mixing(is_decoder=True),
    "trocr": mixing(),
    "whisper": row(),
    "xlm-roberta": mixing(is_decoder=True),
}

READS_AHEAD, HEAD = "reads what comes after", "more than one product|more parameters|head gives"
REFUSED = {
    "bert": (row(), READS_AHEAD),
    "big_bird": (row(attention_type="original_full"), READS_AHEAD),
    "camembert": (row(), READS_AHEAD),
    "cpmant": (row(dim_head=8, dim_ff=48), READS_AHEAD),
    "data2vec-text": (row(), READS_AHEAD),
    "doge of experts": (row(is_moe=True), READS_AHEAD),  # its routing splits tokens, not features
    "dory": (row(), HEAD),
    "electra": (row(), READS_AHEAD),
    "ernie": (row(), READS_AHEAD),
    "inkling_text padded": (row(unpadded_vocab_size=V - 3), HEAD),
    "megatron-bert": (row(), READS_AHEAD),
    "prophetnet": (row(), HEAD),
    "reformer": (
        row(
            is_decoder=True,
            axial_pos_embds=False,
            attn_layers=["local", "lsh"],
            local_attn_chunk_length=4,
            lsh_attn_chunk_length=4,
            num_buckets=2,
            attention_head_size=8,
            feed_forward_size=48,
        ),
        READS_AHEAD,
    ),
    "roberta": (row(), READS_AHEAD),
    "roformer": (row(), READS_AHEAD),
    "xlm": (row(), READS_AHEAD),
    "xlm-roberta-xl": (row(), READS_AHEAD),
    "xlnet": (row(d_inner=48), READS_AHEAD),
}


def tiny(name: str, family: Row) -> torch.nn.Module:
    """A random model in eval mode, float32, whose head, bias included, is large enough that a softcap bends its logits."""
    kind = name.split(" ")[0]
    config = CONFIG_MAPPING[kind](**sizes_of(kind) | family.config)
    torch.manual_seed(3)
    model = tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.config.use_cache = model.config.get_text_config().use_cache = False  # some recurrences cannot train with one
    head = model.get_output_embeddings()
    with torch.no_grad():
        head.weight.mul_(20)
        if getattr(head, "bias", None) is not None:
            head.bias.normal_()
    return model
