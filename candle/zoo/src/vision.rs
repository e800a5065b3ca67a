//! Models of images.

use candle_core::{Module, ModuleT, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models as m;
use serde_json::json;

use crate::{Built, Model, Weights, config, signal};

/// Two images of this size with three channels.
fn images(size: usize, vb: &VarBuilder) -> Result<Tensor> {
    signal(vb, &[2, 3, size, size])
}

/// A network of candle-transformers as a function with one input; `made`: it computes with its weights as it is made.
macro_rules! networks {
    ($($run:ident, $size:literal: |$vb:ident| $network:expr;)*) => {
        $(fn $run($vb: Weights) -> Result<Built> {
            let x = images($size, &$vb)?;
            let network = $network?;
            Built::new(x, move |x| network.forward_t(x, false))
        })*
    };
    (made $($run:ident, $size:literal: |$vb:ident| $network:expr;)*) => {
        $(fn $run(vb: Weights) -> Result<Built> {
            Built::made(images($size, &vb)?, move || {
                let $vb = vb.clone();
                let network = $network?;
                Ok(move |x: &Tensor| network.forward_t(x, false))
            })
        })*
    };
}

networks! {
    efficientvit, 224: |vb| m::efficientvit::efficientvit(&m::efficientvit::Config::m0(), 5, vb);
    mobilenetv4, 32: |vb| m::mobilenetv4::mobilenetv4(&m::mobilenetv4::Config::small(), 5, vb);
    convnext, 32: |vb| m::convnext::convnext(&m::convnext::Config::atto(), 5, vb);
    resnet18, 32: |vb| m::resnet::resnet18(5, vb);
    resnet50, 32: |vb| m::resnet::resnet50(5, vb);
    efficientnet_b0, 32: |vb| m::efficientnet::EfficientNet::new(vb, m::efficientnet::MBConvConfig::b0(), 5);
}

networks! {made
    mobileone, 32: |vb| m::mobileone::mobileone(&m::mobileone::Config::s0(), 5, vb);
    repvgg, 32: |vb| m::repvgg::repvgg(&m::repvgg::Config::a0(), 5, vb);
}

/// The first blocks of B0.
fn efficientnet(vb: Weights) -> Result<Built> {
    let x = images(32, &vb)?;
    let blocks = m::efficientnet::MBConvConfig::b0().into_iter().take(3).collect();
    let network = m::efficientnet::EfficientNet::new(vb, blocks, 5)?;
    Built::new(x, move |x| network.forward(x))
}

fn vit(vb: Weights) -> Result<Built> {
    let fields = json!({
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "hidden_act": "gelu",
        "layer_norm_eps": 1e-6, "image_size": 16, "patch_size": 8, "num_channels": 3, "qkv_bias": true,
    });
    let x = images(16, &vb)?;
    let config: m::vit::Config = config(fields, json!({}))?;
    let network = m::vit::Model::new(&config, 5, vb)?;
    Built::new(x, move |x| network.forward(x))
}

fn beit(vb: Weights) -> Result<Built> {
    let x = signal(&vb, &[1, 3, 384, 384])?;
    let network = m::beit::BeitVisionTransformer::new(vb, 1, 8, 2)?;
    Built::new(x, move |x| network.forward(x))
}

fn dinov2_tiny(vb: Weights) -> Result<Built> {
    let x = signal(&vb, &[1, 3, 518, 518])?;
    let network = m::dinov2::DinoVisionTransformer::new(vb, 1, 8, 2)?;
    Built::new(x, move |x| network.forward(x))
}

fn dinov2reg4(vb: Weights) -> Result<Built> {
    let x = signal(&vb, &[1, 3, 518, 518])?;
    let network = m::dinov2reg4::DinoVisionTransformer::new(vb, 1, 8, 2)?;
    Built::new(x, move |x| network.forward(x))
}

/// A small Segformer, whose decoder is this wide.
fn segformer_config(width: usize) -> Result<m::segformer::Config> {
    let fields = json!({
        "num_channels": 3, "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16],
        "patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "hidden_act": "gelu",
        "layer_norm_eps": 1e-6, "decoder_hidden_size": width,
    });
    config(fields, json!({}))
}

/// One image: with more, products of permuted batches with one matrix for all are wrong in candle 0.11.1 on the CPU.
fn segformer(vb: Weights) -> Result<Built> {
    let x = signal(&vb, &[1, 3, 32, 32])?;
    let network = m::segformer::SemanticSegmentationModel::new(&segformer_config(8)?, 3, vb)?;
    Built::new(x, move |x| network.forward(x))
}

fn segformer_classes(vb: Weights) -> Result<Built> {
    let x = signal(&vb, &[1, 3, 32, 32])?;
    let network = m::segformer::ImageClassificationModel::new(&segformer_config(16)?, 3, vb)?;
    Built::new(x, move |x| network.forward(x))
}

fn siglip(vb: Weights) -> Result<Built> {
    let fields = json!({
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_channels": 3,
        "image_size": 16, "patch_size": 8,
    });
    let x = images(16, &vb)?;
    let config: m::siglip::VisionConfig = config(fields, json!({}))?;
    let network = m::siglip::VisionModel::new(&config, true, vb)?;
    Built::new(x, move |x| network.forward(x))
}

fn clip(vb: Weights) -> Result<Built> {
    use m::clip::vision_model::{ClipVisionConfig, ClipVisionTransformer};
    let config = ClipVisionConfig {
        embed_dim: 16,
        intermediate_size: 24,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        projection_dim: 8,
        image_size: 16,
        patch_size: 8,
        ..ClipVisionConfig::vit_base_patch32()
    };
    let x = images(16, &vb)?;
    // Drawn anew for each model where there is none.
    vb.pp("embeddings").get(16, "class_embedding")?;
    let network = ClipVisionTransformer::new(vb, &config)?;
    Built::new(x, move |x| network.forward(x))
}

fn blip(vb: Weights) -> Result<Built> {
    let fields = json!({
        "hidden_size": 16, "intermediate_size": 24, "projection_dim": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": 16, "patch_size": 8, "hidden_act": "gelu", "layer_norm_eps": 1e-5,
    });
    let x = images(16, &vb)?;
    let config: m::blip::VisionConfig = config(fields.clone(), json!({}))?;
    let text = json!({
        "vocab_size": 24, "hidden_size": 16, "encoder_hidden_size": 16, "intermediate_size": 24, "projection_dim": 8,
        "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32, "hidden_act": "gelu",
        "layer_norm_eps": 1e-5, "is_decoder": true,
    });
    let text_config: m::blip_text::Config = crate::config(text, json!({}))?;
    let config = m::blip::Config { text_config, vision_config: config, projection_dim: 8, image_text_hidden_size: 8 };
    let model = m::blip::BlipForConditionalGeneration::new(&config, vb)?;
    Built::new(x, move |x| model.vision_model().forward(x))
}

/// The image encoder of Segment Anything.
fn segment_anything(vb: Weights) -> Result<Built> {
    let x = signal(&vb, &[1, 3, 32, 32])?;
    let encoder = m::segment_anything::image_encoder::ImageEncoderViT::new;
    let network = encoder(32, 8, 3, 16, 2, 2, 8, true, true, true, 2, &[1], vb)?;
    Built::new(x, move |x| network.forward(x))
}

fn stable_diffusion_vae(vb: Weights) -> Result<Built> {
    use m::stable_diffusion::vae::{AutoEncoderKL, AutoEncoderKLConfig};
    let config = AutoEncoderKLConfig {
        block_out_channels: vec![8, 16],
        layers_per_block: 1,
        latent_channels: 2,
        norm_num_groups: 4,
        use_quant_conv: true,
        use_post_quant_conv: true,
    };
    let x = signal(&vb, &[1, 2, 4, 4])?;
    let model = AutoEncoderKL::new(vb, 3, 3, config)?;
    Built::new(x, move |x| model.decode(x))
}

/// Those that take seconds.
pub const MODELS: &[Model] = &[
    Model::new("blip", blip),
    Model::new("clip vision", clip),
    Model::new("convnext", convnext),
    Model::new("efficientnet", efficientnet),
    Model::new("resnet18", resnet18),
    Model::new("segformer", segformer),
    Model::new("segformer classes", segformer_classes),
    Model::new("segment_anything", segment_anything),
    Model::new("siglip vision", siglip),
    Model::new("stable_diffusion vae", stable_diffusion_vae),
    Model::new("vit", vit),
];

/// Those whose sizes are given, and take a minute each: the command looks at them, tests do not.
pub const SLOW: &[Model] = &[
    Model::new("efficientnet_b0", efficientnet_b0),
    Model::new("efficientvit", efficientvit),
    Model::new("mobilenetv4", mobilenetv4),
    Model::new("mobileone", mobileone),
    Model::new("repvgg", repvgg),
    Model::new("resnet50", resnet50),
    Model::new("beit", beit),
    Model::new("dinov2", dinov2_tiny),
    Model::new("dinov2reg4", dinov2reg4),
];
