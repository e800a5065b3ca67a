//! Language models: encoders, decoders, and those that are both.

use candle_core::{DType, Module, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models as m;
use serde_json::{Value, json};

use crate::{Built, Model, Weights, config, signal, tokens};

/// What configurations of decoders share; each takes what it knows.
fn decoder() -> Value {
    json!({
        "vocab_size": 24, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 4, "hidden_act": "silu", "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5, "norm_epsilon": 1e-5, "norm_eps": 1e-5,
        "layer_norm_epsilon": 1e-5, "rope_theta": 10000.0, "sliding_window": 16, "max_window_layers": 2,
        "tie_word_embeddings": false, "use_sliding_window": false, "attention_bias": true, "use_bias": true, "mlp_bias": false,
        "bos_token_id": 1, "eos_token_id": 2, "partial_rotary_factor": 0.5, "use_cache": false, "query_pre_attn_scalar": 4,
        "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0, "rope_local_base_freq": 10000.0,
        "sliding_window_pattern": 2, "decoder_sparse_step": 1, "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 12, "num_experts_per_tok": 2, "num_experts": 4, "num_local_experts": 4,
        "norm_topk_prob": true, "qk_layernorm": false, "initializer_range": 0.02, "use_flash_attn": false,
    })
}

/// What configurations of encoders share.
fn encoder() -> Value {
    json!({
        "vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 32,
        "type_vocab_size": 2, "initializer_range": 0.02, "layer_norm_eps": 1e-5, "pad_token_id": 0,
        "position_embedding_type": "absolute",
    })
}

/// A decoder that takes tokens and a position. What a call leaves in its caches goes with the clone that it is made of.
macro_rules! decoders {
    ($($run:ident: $module:path, $model:ident, $fields:tt;)*) => {
        $(fn $run(vb: Weights) -> Result<Built> {
            use $module as module;
            let config: module::Config = config(decoder(), json!($fields))?;
            let model = module::$model::new(&config, vb.clone())?;
            Built::new(tokens(&vb, 1, 6)?, move |ids| model.clone().forward(ids, 0))
        })*
    };
}

decoders! {
    mistral: m::mistral, Model, {};
    mixtral: m::mixtral, Model, {};
    qwen3: m::qwen3, ModelForCausalLM, {};
    qwen3_moe: m::qwen3_moe, ModelForCausalLM, {};
    qwen2_moe: m::qwen2_moe, Model, {};
    starcoder2: m::starcoder2, Model, {};
    olmo: m::olmo, Model, {};
    olmo2: m::olmo2, Model, {};
    helium: m::helium, Model, {"num_key_value_heads": 4};
    phi3: m::phi3, Model, {"partial_rotary_factor": null};
    glm4_new: m::glm4_new, ModelForCausalLM, {};
    smollm3: m::smol::smollm3, ModelForCausalLM, {};
    recurrent_gemma: m::recurrent_gemma, Model, {
        "lru_width": 16, "attention_window_size": 8, "conv1d_width": 4, "logits_soft_cap": 30.0,
        "block_types": ["recurrent", "attention"], "num_key_value_heads": 1,
    };
}

/// A decoder of Google's, which is told whether to use flash attention.
macro_rules! gemmas {
    ($($run:ident: $module:path;)*) => {
        $(fn $run(vb: Weights) -> Result<Built> {
            use $module as module;
            let config: module::Config = config(decoder(), json!({"attention_bias": false, "hidden_act": null, "num_key_value_heads": 1}))?;
            let model = module::Model::new(false, &config, vb.clone())?;
            Built::new(tokens(&vb, 1, 6)?, move |ids| model.clone().forward(ids, 0))
        })*
    };
}

gemmas! {
    gemma: m::gemma;
    gemma2: m::gemma2;
    gemma3: m::gemma3;
}

/// Keeps nothing from call to call, as it is told.
fn stable_lm(vb: Weights) -> Result<Built> {
    let config: m::stable_lm::Config = config(decoder(), json!({}))?;
    let mut model = m::stable_lm::Model::new(&config, vb.clone())?;
    Built::new(tokens(&vb, 1, 6)?, move |ids| model.forward(ids, 0))
}

fn qwen2(vb: Weights) -> Result<Built> {
    let config: m::qwen2::Config = config(decoder(), json!({}))?;
    let model = m::qwen2::ModelForCausalLM::new(&config, vb.clone())?;
    Built::new(tokens(&vb, 1, 6)?, move |ids| model.clone().forward(ids, 0))
}

fn phi(vb: Weights) -> Result<Built> {
    let config: m::phi::Config = config(decoder(), json!({"hidden_act": "gelu_new"}))?;
    let model = m::phi::Model::new(&config, vb.clone())?;
    Built::new(tokens(&vb, 1, 6)?, move |ids| model.clone().forward(ids))
}

fn llama(vb: Weights) -> Result<Built> {
    let config: m::llama::LlamaConfig = config(decoder(), json!({}))?;
    let config = config.into_config(false);
    let mut cache = m::llama::Cache::new(false, vb.dtype(), &config, vb.device())?;
    let model = m::llama::Llama::load(vb.clone(), &config)?;
    Built::new(tokens(&vb, 2, 6)?, move |ids| model.forward(ids, 0, &mut cache))
}

fn granite(vb: Weights) -> Result<Built> {
    let config: m::granite::GraniteConfig = config(decoder(), json!({}))?;
    let config = config.into_config(false);
    let mut cache = m::granite::Cache::new(false, vb.dtype(), &config, vb.device())?;
    let model = m::granite::Granite::load(vb.clone(), &config)?;
    Built::new(tokens(&vb, 2, 6)?, move |ids| model.forward(ids, 0, &mut cache))
}

fn granite_moe_hybrid(vb: Weights) -> Result<Built> {
    use m::granitemoehybrid as g;
    let config: g::GraniteMoeHybridConfig = config(decoder(), json!({}))?;
    let config = config.into_config(false);
    let mut cache = g::GraniteMoeHybridCache::new(false, vb.dtype(), &config, vb.device())?;
    let model = g::GraniteMoeHybrid::load(vb.clone(), &config)?;
    Built::new(tokens(&vb, 2, 6)?, move |ids| model.forward(ids, 0, &mut cache))
}

fn lfm2(vb: Weights) -> Result<Built> {
    let config: m::lfm2::Lfm2Config =
        config(decoder(), json!({"layer_types": ["conv", "full_attention"], "block_multiple_of": 8}))?;
    let config = config.into_config(false);
    let cache = m::lfm2::Cache::new(false, vb.dtype(), &config, vb.device())?;
    let model = m::lfm2::Model::new(&config, vb.clone())?;
    Built::new(tokens(&vb, 1, 6)?, move |ids| model.forward(ids, 0, &mut cache.clone()))
}

fn llama2_c(vb: Weights) -> Result<Built> {
    use m::llama2_c::{Cache, Config, Llama};
    let config = Config {
        dim: 16,
        hidden_dim: 24,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        vocab_size: 24,
        seq_len: 16,
        norm_eps: 1e-5,
    };
    // Tables of angles, which are no parameters.
    let zeros = VarBuilder::zeros(vb.dtype(), vb.device());
    let mut cache = Cache::new(false, &config, zeros)?;
    let model = Llama::load(vb.clone(), config)?;
    Built::new(tokens(&vb, 2, 6)?, move |ids| model.forward(ids, 0, &mut cache))
}

fn falcon(vb: Weights) -> Result<Built> {
    let fields = json!({
        "hidden_dropout": 0.0, "attention_dropout": 0.0, "n_head_kv": null, "alibi": false, "new_decoder_architecture": false,
        "multi_query": true, "parallel_attn": true, "bias": false,
    });
    let config: m::falcon::Config = config(decoder(), fields)?;
    // It keeps a table of angles, and nothing else, as it is told.
    let mut model = m::falcon::Falcon::load(vb.clone(), config)?;
    Built::new(tokens(&vb, 1, 6)?, move |ids| model.forward(ids))
}

fn bigcode(vb: Weights) -> Result<Built> {
    let config = m::bigcode::Config {
        vocab_size: 24,
        max_position_embeddings: 32,
        num_hidden_layers: 2,
        hidden_size: 16,
        layer_norm_epsilon: 1e-5,
        n_inner: Some(24),
        num_attention_heads: 4,
        multi_query: true,
        use_cache: false,
    };
    let mut model = m::bigcode::GPTBigCode::load(vb.clone(), config)?;
    Built::new(tokens(&vb, 1, 6)?, move |ids| model.forward(ids, 0))
}

fn chatglm(vb: Weights) -> Result<Built> {
    let config = m::chatglm::Config {
        num_layers: 2,
        padded_vocab_size: 24,
        hidden_size: 16,
        ffn_hidden_size: 24,
        kv_channels: 8,
        num_attention_heads: 2,
        seq_length: 16,
        multi_query_group_num: 1,
        ..m::chatglm::Config::glm3_6b()
    };
    let model = m::chatglm::Model::new(&config, vb.clone())?;
    Built::new(tokens(&vb, 1, 6)?, move |ids| model.clone().forward(ids))
}

fn mixformer(vb: Weights) -> Result<Built> {
    let fields = json!({
        "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_inner": 24, "n_head": 2, "rotary_dim": 4, "activation_function": "gelu",
        "pad_vocab_size_multiple": 8,
    });
    let config: m::mixformer::Config = config(decoder(), fields)?;
    let model = m::mixformer::MixFormerSequentialForCausalLM::new_v2(&config, vb.clone())?;
    Built::new(tokens(&vb, 1, 6)?, move |ids| model.clone().forward(ids))
}

fn deepseek2(vb: Weights) -> Result<Built> {
    let fields = json!({
        "n_shared_experts": 1, "n_routed_experts": 4, "q_lora_rank": 8, "qk_rope_head_dim": 4, "kv_lora_rank": 8, "v_head_dim": 4,
        "qk_nope_head_dim": 4, "n_group": 1, "topk_group": 1, "rope_scaling": null, "first_k_dense_replace": 1,
        "scoring_func": "softmax", "topk_method": "greedy", "moe_layer_freq": 1, "routed_scaling_factor": 1.0,
        "tie_word_embeddings": false, "norm_topk_prob": false,
    });
    let config: m::deepseek2::DeepSeekV2Config = config(decoder(), fields)?;
    let mut model = m::deepseek2::DeepSeekV2::new(&config, vb.clone())?;
    Built::new(tokens(&vb, 1, 6)?, move |ids| {
        let logits = model.forward(ids, 0);
        model.clear_kv_cache();
        logits
    })
}

fn based(vb: Weights) -> Result<Built> {
    let fields = json!({
        "n_embd": 16, "n_inner": 32, "n_layer": 2, "n_head": 2, "alt_mixer_layers": [0], "alt_mixer_2_layers": [1],
        "alt_mixer": {"num_heads": 2, "feature_dim": 4, "feature_map": {"input_dim": 4}},
        "alt_mixer_2": {"num_heads": 2, "window_size": 8},
    });
    let config: m::based::Config = config(decoder(), fields)?;
    let model = m::based::Model::new(&config, vb.clone())?;
    Built::new(tokens(&vb, 1, 6)?, move |ids| model.clone().forward(ids, 0))
}

fn mamba(vb: Weights) -> Result<Built> {
    use m::mamba::{Config, Model, State};
    let config = Config { d_model: 16, n_layer: 2, vocab_size: 24, pad_vocab_size_multiple: 8 };
    let model = Model::new(&config, vb.pp("backbone"))?;
    Built::new(tokens(&vb, 1, 3)?, move |ids| {
        let mut state = State::new(1, &config, vb.dtype(), vb.device())?;
        let mut step = |at| model.forward(&ids.narrow(1, at, 1)?.squeeze(1)?, &mut state);
        step(0)?;
        step(1)?;
        step(2)
    })
}

fn mamba2(vb: Weights) -> Result<Built> {
    use m::mamba2::{Config, Model, State};
    let fields = json!({"d_model": 16, "n_layer": 2, "d_state": 8, "expand": 2, "headdim": 8, "ngroups": 1, "pad_vocab_size_multiple": 8});
    let config: Config = config(json!({"vocab_size": 24}), fields)?;
    let model = Model::new(&config, vb.pp("backbone"))?;
    Built::new(tokens(&vb, 2, 4)?, move |ids| {
        let mut state = State::new(2, &config, vb.dtype(), vb.device())?;
        model.forward_prefill(ids, &mut state, 2)
    })
}

/// What the versions of RWKV share.
fn rwkv() -> Value {
    json!({
        "vocab_size": 24, "hidden_size": 64, "num_hidden_layers": 2, "attention_hidden_size": 64, "num_attention_heads": 32,
        "head_size": 32, "intermediate_size": 64, "layer_norm_epsilon": 1e-5, "rescale_every": 0, "version": "V7",
    })
}

fn rwkv_v5(vb: Weights) -> Result<Built> {
    let config: m::rwkv_v5::Config = config(rwkv(), json!({}))?;
    let model = m::rwkv_v5::Model::new(&config, vb.clone())?;
    Built::new(tokens(&vb, 1, 1)?, move |ids| {
        let mut state = m::rwkv_v5::State::new(1, &config, vb.device())?;
        let first = model.forward(ids, &mut state)?;
        first + model.forward(ids, &mut state)?
    })
}

fn rwkv_v6(vb: Weights) -> Result<Built> {
    let config: m::rwkv_v5::Config = config(rwkv(), json!({}))?;
    let model = m::rwkv_v6::Model::new(&config, vb.clone())?;
    Built::new(tokens(&vb, 1, 1)?, move |ids| {
        let mut state = m::rwkv_v5::State::new(1, &config, vb.device())?;
        let first = model.forward(ids, &mut state)?;
        first + model.forward(ids, &mut state)?
    })
}

/// `batch` sequences of `length` ones.
fn mask(vb: &VarBuilder, batch: usize, length: usize) -> Result<Tensor> {
    Tensor::ones((batch, length), DType::U32, vb.device())
}

fn bert(vb: Weights) -> Result<Built> {
    let config: m::bert::Config = config(encoder(), json!({}))?;
    let model = m::bert::BertModel::load(vb.clone(), &config)?;
    Built::new(tokens(&vb, 2, 6)?, move |ids| model.forward(ids, &ids.zeros_like()?, None))
}

fn distilbert(vb: Weights) -> Result<Built> {
    let fields = json!({"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "activation": "gelu"});
    let config: m::distilbert::Config = config(encoder(), fields)?;
    let model = m::distilbert::DistilBertModel::load(vb.clone(), &config)?;
    let mask = Tensor::zeros((6, 6), DType::U8, vb.device())?;
    Built::new(tokens(&vb, 2, 6)?, move |ids| model.forward(ids, &mask))
}

fn debertav2(vb: Weights) -> Result<Built> {
    let fields = json!({
        "relative_attention": true, "max_relative_positions": -1, "position_biased_input": false, "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 8, "share_att_key": true, "norm_rel_ebd": "layer_norm",
    });
    let config: m::debertav2::Config = config(encoder(), fields)?;
    let model = m::debertav2::DebertaV2Model::load(vb.clone(), &config)?;
    let mask = mask(&vb, 2, 6)?;
    Built::new(tokens(&vb, 2, 6)?, move |ids| model.forward(ids, Some(ids.zeros_like()?), Some(mask.clone())))
}

fn jina_bert(vb: Weights) -> Result<Built> {
    let config: m::jina_bert::Config = config(encoder(), json!({"position_embedding_type": "alibi"}))?;
    let model = m::jina_bert::BertModel::new(vb.clone(), &config)?;
    Built::new(tokens(&vb, 2, 6)?, move |ids| model.forward(ids))
}

fn nomic_bert(vb: Weights) -> Result<Built> {
    let fields = json!({
        "n_embd": 16, "n_head": 2, "n_layer": 2, "n_inner": 24, "n_positions": 32, "layer_norm_epsilon": 1e-5,
        "rotary_emb_fraction": 1.0, "rotary_emb_base": 1000.0, "rotary_emb_interleaved": false, "qkv_proj_bias": false,
        "mlp_fc1_bias": false, "mlp_fc2_bias": false, "activation_function": "swiglu", "prenorm": false,
    });
    let config: m::nomic_bert::Config = config(encoder(), fields)?;
    let model = m::nomic_bert::NomicBertModel::load(vb.clone(), &config)?;
    Built::new(tokens(&vb, 2, 6)?, move |ids| model.forward(ids, None, None))
}

fn modernbert(vb: Weights) -> Result<Built> {
    let fields = json!({
        "global_attn_every_n_layers": 2, "global_rope_theta": 10000.0, "local_attention": 4, "local_rope_theta": 10000.0,
    });
    let config: m::modernbert::Config = config(encoder(), fields)?;
    let model = m::modernbert::ModernBertForMaskedLM::load(vb.clone(), &config)?;
    let mask = mask(&vb, 2, 6)?;
    Built::new(tokens(&vb, 2, 6)?, move |ids| model.forward(ids, &mask))
}

fn xlm_roberta(vb: Weights) -> Result<Built> {
    let config: m::xlm_roberta::Config = config(encoder(), json!({}))?;
    let model = m::xlm_roberta::XLMRobertaForMaskedLM::new(&config, vb.clone())?;
    let mask = mask(&vb, 2, 6)?;
    Built::new(tokens(&vb, 2, 6)?, move |ids| model.forward(ids, &mask, &ids.zeros_like()?, None, None, None))
}

fn t5_config(fields: Value) -> Result<m::t5::Config> {
    let defaults = json!({
        "vocab_size": 24, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "relative_attention_num_buckets": 8,
        "dropout_rate": 0.0, "layer_norm_epsilon": 1e-6, "initializer_factor": 1.0, "feed_forward_proj": "gated-gelu",
        "is_encoder_decoder": true, "use_cache": false, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
    });
    config(defaults, fields)
}

fn t5_encoder(vb: Weights) -> Result<Built> {
    let model = m::t5::T5EncoderModel::load(vb.clone(), &t5_config(json!({}))?)?;
    Built::new(tokens(&vb, 2, 6)?, move |ids| model.clone().forward(ids))
}

fn t5(vb: Weights) -> Result<Built> {
    let model = m::t5::T5ForConditionalGeneration::load(vb.clone(), &t5_config(json!({}))?)?;
    let said = tokens(&vb, 1, 3)?;
    Built::new(tokens(&vb, 1, 6)?, move |ids| model.clone().forward(ids, &said))
}

fn marian(vb: Weights) -> Result<Built> {
    let config = m::marian::Config {
        vocab_size: 24,
        decoder_vocab_size: Some(24),
        max_position_embeddings: 32,
        encoder_layers: 2,
        encoder_ffn_dim: 24,
        encoder_attention_heads: 2,
        decoder_layers: 2,
        decoder_ffn_dim: 24,
        decoder_attention_heads: 2,
        d_model: 16,
        use_cache: false,
        ..m::marian::Config::opus_mt_tc_big_fr_en()
    };
    let model = m::marian::MTModel::new(&config, vb.clone())?;
    let said = tokens(&vb, 1, 3)?;
    Built::new(tokens(&vb, 1, 6)?, move |ids| {
        let mut model = model.clone();
        let encoded = model.encoder().forward(ids, 0)?;
        model.decode(&said, &encoded, 0)
    })
}

fn blip_text(vb: Weights) -> Result<Built> {
    let fields = json!({"encoder_hidden_size": 12, "projection_dim": 8, "is_decoder": true});
    let config: m::blip_text::Config = config(encoder(), fields)?;
    let seen = signal(&vb, &[1, 4, 12])?;
    let model = m::blip_text::TextLMHeadModel::new(&config, vb.clone())?;
    Built::new(tokens(&vb, 1, 5)?, move |ids| model.clone().forward(ids, &seen))
}

fn chinese_clip_text(vb: Weights) -> Result<Built> {
    use m::chinese_clip::text_model::{ChineseClipTextConfig, ChineseClipTextTransformer};
    let config = ChineseClipTextConfig {
        vocab_size: 24,
        hidden_size: 16,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        intermediate_size: 24,
        max_position_embeddings: 32,
        hidden_dropout_prob: 0.0,
        attention_probs_dropout_prob: 0.0,
        ..ChineseClipTextConfig::clip_vit_base_patch16()
    };
    let model = ChineseClipTextTransformer::new(vb.clone(), &config)?;
    Built::new(tokens(&vb, 2, 6)?, move |ids| model.forward(ids, None, None))
}

fn clip_text(vb: Weights) -> Result<Built> {
    use m::clip::text_model::{ClipTextConfig, ClipTextTransformer};
    let config = ClipTextConfig {
        vocab_size: 24,
        embed_dim: 16,
        intermediate_size: 24,
        max_position_embeddings: 8,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        projection_dim: 8,
        ..ClipTextConfig::vit_base_patch32()
    };
    let model = ClipTextTransformer::new(vb.clone(), &config)?;
    Built::new(tokens(&vb, 2, 6)?, move |ids| model.forward(ids))
}

fn openclip_text(vb: Weights) -> Result<Built> {
    use m::openclip::text_model::{Config, OpenClipTextTransformer};
    let config = Config {
        vocab_size: 24,
        embed_dim: 16,
        intermediate_size: 24,
        max_position_embeddings: 8,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        projection_dim: 8,
        ..Config::vit_base_patch32()
    };
    let model = OpenClipTextTransformer::new(vb.clone(), &config)?;
    Built::new(tokens(&vb, 2, 6)?, move |ids| model.forward(ids))
}

fn siglip_text(vb: Weights) -> Result<Built> {
    let config: m::siglip::TextConfig = config(encoder(), json!({}))?;
    let model = m::siglip::TextModel::new(&config, vb.clone())?;
    Built::new(tokens(&vb, 2, 6)?, move |ids| model.forward(ids))
}

const ROUTED: &str =
    "which experts, and with which weights, is decided on the host: the model reads them there (`to_vec2`)";

/// All of them.
pub const MODELS: &[Model] = &[
    Model::new("based", based),
    Model::new("bert", bert),
    Model::new("bigcode", bigcode),
    Model::new("blip_text", blip_text),
    Model::new("chatglm", chatglm),
    Model::new("chinese_clip text", chinese_clip_text),
    Model::new("clip text", clip_text),
    Model::new("debertav2", debertav2),
    Model::new("deepseek2", deepseek2),
    Model::new("distilbert", distilbert),
    Model::new("falcon", falcon),
    Model::new("gemma", gemma),
    Model::new("gemma2", gemma2),
    Model::new("gemma3", gemma3),
    Model::new("glm4_new", glm4_new),
    Model::new("granite", granite),
    Model::new("granitemoehybrid", granite_moe_hybrid),
    Model::new("helium", helium),
    Model::new("jina_bert", jina_bert),
    Model::new("lfm2", lfm2),
    Model::new("llama", llama),
    Model::new("llama2_c", llama2_c),
    Model::new("mamba", mamba),
    Model::new("mamba2", mamba2),
    Model::new("marian", marian),
    Model::new("mistral", mistral),
    Model::new("mixformer", mixformer),
    Model::new("mixtral", mixtral).without("block_sparse_moe.gate", ROUTED),
    Model::new("modernbert", modernbert),
    Model::new("nomic_bert", nomic_bert),
    Model::new("olmo", olmo),
    Model::new("olmo2", olmo2),
    Model::new("openclip text", openclip_text),
    Model::new("phi", phi),
    Model::new("phi3", phi3),
    Model::new("qwen2", qwen2),
    Model::new("qwen2_moe", qwen2_moe).without("mlp.gate.", ROUTED),
    Model::new("qwen3", qwen3),
    Model::new("qwen3_moe", qwen3_moe).without("mlp.gate.", ROUTED),
    Model::new("recurrent_gemma", recurrent_gemma),
    Model::new("rwkv_v5", rwkv_v5),
    Model::new("rwkv_v6", rwkv_v6),
    Model::new("siglip text", siglip_text),
    Model::new("smollm3", smollm3),
    Model::new("stable_lm", stable_lm),
    Model::new("starcoder2", starcoder2),
    Model::new("t5", t5),
    Model::new("t5 encoder", t5_encoder),
    Model::new("xlm_roberta", xlm_roberta),
];
