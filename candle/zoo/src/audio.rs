//! Models of sound.

use candle_core::{Module, Result, Tensor};
use candle_transformers::models as m;
use serde_json::json;

use crate::{Built, Model, Weights, config, signal, tokens};

fn whisper(vb: Weights) -> Result<Built> {
    let fields = json!({
        "num_mel_bins": 8, "max_source_positions": 16, "d_model": 16, "encoder_attention_heads": 2, "encoder_layers": 1,
        "vocab_size": 24, "max_target_positions": 16, "decoder_attention_heads": 2, "decoder_layers": 1,
    });
    let config: m::whisper::Config = config(fields, json!({}))?;
    let model = m::whisper::model::Whisper::load(&vb, config)?;
    let said = tokens(&vb, 1, 4)?;
    Built::new(signal(&vb, &[1, 8, 12])?, move |heard| {
        let mut model = model.clone();
        let heard = model.encoder.forward(heard, true)?;
        let hidden = model.decoder.forward(&said, &heard, true)?;
        model.decoder.final_linear(&hidden)
    })
}

fn encodec(vb: Weights) -> Result<Built> {
    let config = m::encodec::Config {
        target_bandwidths: vec![80.0],
        hidden_size: 8,
        num_filters: 4,
        upsampling_ratios: vec![3, 2],
        codebook_size: 24,
        ..m::encodec::Config::default()
    };
    let codes = tokens(&vb, 1, 8)?.reshape((1, 2, 4))?;
    Built::made(codes, move || {
        let model = m::encodec::Model::new(&config, vb.clone())?;
        Ok(move |codes: &Tensor| model.decode(codes))
    })
}

fn snac(vb: Weights) -> Result<Built> {
    let fields = json!({
        "sampling_rate": 24000, "encoder_dim": 4, "encoder_rates": [2, 2], "decoder_dim": 16, "decoder_rates": [2, 2],
        "attn_window_size": null, "codebook_size": 24, "codebook_dim": 4, "vq_strides": [2, 1], "noise": false, "depthwise": false,
    });
    let config: m::snac::Config = config(fields, json!({}))?;
    let fast = tokens(&vb, 1, 6)?;
    Built::made(tokens(&vb, 1, 3)?, move || {
        let (model, fast) = (m::snac::Model::new(&config, vb.clone())?, fast.clone());
        Ok(move |slow: &Tensor| model.decode(&[slow, &fast]))
    })
}

fn dac_decoder(vb: Weights) -> Result<Built> {
    let x = signal(&vb, &[1, 8, 6])?;
    Built::made(x, move || {
        let decoder = m::dac::Decoder::new(8, 16, &[2, 2], 1, vb.clone())?;
        Ok(move |x: &Tensor| decoder.forward(x))
    })
}

fn dac_encoder(vb: Weights) -> Result<Built> {
    let x = signal(&vb, &[1, 1, 64])?;
    Built::made(x, move || {
        let encoder = m::dac::Encoder::new(4, &[2, 2], 8, vb.clone())?;
        Ok(move |x: &Tensor| encoder.forward(x))
    })
}

/// All of them.
pub const MODELS: &[Model] = &[
    Model::new("dac decoder", dac_decoder),
    Model::new("dac encoder", dac_encoder),
    Model::new("encodec", encodec),
    Model::new("snac", snac),
    Model::new("whisper", whisper),
];
