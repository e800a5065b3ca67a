//! Models of sound.

use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models as m;
use serde_json::json;

use crate::{Model, config, signal, tokens};

fn whisper(vb: VarBuilder) -> Result<Tensor> {
    let fields = json!({
        "num_mel_bins": 8, "max_source_positions": 16, "d_model": 16, "encoder_attention_heads": 2, "encoder_layers": 1,
        "vocab_size": 24, "max_target_positions": 16, "decoder_attention_heads": 2, "decoder_layers": 1,
    });
    let heard = signal(&[1, 8, 12], vb.dtype())?;
    let config: m::whisper::Config = config(fields, json!({}))?;
    let mut model = m::whisper::model::Whisper::load(&vb, config)?;
    let heard = model.encoder.forward(&heard, true)?;
    let hidden = model.decoder.forward(&tokens(1, 4)?, &heard, true)?;
    model.decoder.final_linear(&hidden)
}

fn encodec(vb: VarBuilder) -> Result<Tensor> {
    let config = m::encodec::Config {
        target_bandwidths: vec![80.0],
        hidden_size: 8,
        num_filters: 4,
        upsampling_ratios: vec![3, 2],
        codebook_size: 24,
        ..m::encodec::Config::default()
    };
    let codes = tokens(1, 8)?.reshape((1, 2, 4))?;
    m::encodec::Model::new(&config, vb)?.decode(&codes)
}

fn snac(vb: VarBuilder) -> Result<Tensor> {
    let fields = json!({
        "sampling_rate": 24000, "encoder_dim": 4, "encoder_rates": [2, 2], "decoder_dim": 16, "decoder_rates": [2, 2],
        "attn_window_size": null, "codebook_size": 24, "codebook_dim": 4, "vq_strides": [2, 1], "noise": false, "depthwise": false,
    });
    let config: m::snac::Config = config(fields, json!({}))?;
    let (slow, fast) = (tokens(1, 3)?, tokens(1, 6)?);
    m::snac::Model::new(&config, vb)?.decode(&[&slow, &fast])
}

fn dac_decoder(vb: VarBuilder) -> Result<Tensor> {
    let x = signal(&[1, 8, 6], vb.dtype())?;
    m::dac::Decoder::new(8, 16, &[2, 2], 1, vb)?.forward(&x)
}

fn dac_encoder(vb: VarBuilder) -> Result<Tensor> {
    let x = signal(&[1, 1, 64], vb.dtype())?;
    m::dac::Encoder::new(4, &[2, 2], 8, vb)?.forward(&x)
}

/// All of them.
pub const MODELS: &[Model] = &[
    Model::new("dac decoder", dac_decoder),
    Model::new("dac encoder", dac_encoder),
    Model::new("encodec", encodec),
    Model::new("snac", snac),
    Model::new("whisper", whisper),
];
