//! Loads an exported network and runs it: `cargo run -p esper-export --example use_network -- DIR`, or without DIR a small one
//! that it makes first.
#![expect(clippy::print_stdout, reason = "an example shows what it computes")]

use std::error::Error;

use candle_core::{DType, Device, Tensor};
use esper_export::{Export, IfPresent, Network, Prediction};
use kasmina::graft::NetworkSpec;
use kasmina::host::HostConfig;
use kasmina::weight::ElementType;

fn main() -> Result<(), Box<dyn Error>> {
    let made = tempfile::tempdir()?;
    let dir = match std::env::args_os().nth(1) {
        Some(dir) => dir.into(),
        None => made.path().join("sum"),
    };
    if dir.starts_with(made.path()) {
        // Two logits of one linear layer: the sum of the inputs, and its negative.
        let host = HostConfig::Mlp { inputs: 3, hidden: vec![], classes: 2 };
        let weight = Tensor::new(&[[1_f32, -1.0], [1.0, -1.0], [1.0, -1.0]], &Device::Cpu)?;
        let bias = Tensor::zeros(2, DType::F32, &Device::Cpu)?;
        Export {
            network: NetworkSpec { host, dtype: ElementType::F32, seeds: vec![] },
            tensors: [("host.head.weight".to_owned(), weight), ("host.head.bias".to_owned(), bias)].into(),
            preparation: serde_json::from_str(
                r#"{"version": 1, "source": "numbers", "sample_shape": [3], "scaling": {"means": [], "scales": []},
                    "target": {"kind": "classes", "names": ["positive", "negative"]}}"#,
            )?,
            task: None,
        }
        .write(&dir, IfPresent::Refuse)?;
        let predictions = Network::load(&dir)?.predict(&Tensor::new(&[[1_f32, 2.0, -2.5]], &Device::Cpu)?)?;
        let Prediction::Class { class, probabilities } = &predictions[0] else { unreachable!("they are classes") };
        // softmax(0.5, −0.5)
        assert!(*class == 0 && (probabilities[0] - 0.731_058_6).abs() < 1e-6);
    }
    let network = Network::load(&dir)?;
    let preparation = network.preparation();
    let inputs = Tensor::ones((1, preparation.num_features()), DType::F32, &Device::Cpu)?;
    match &network.predict(&inputs)?[0] {
        Prediction::Class { class, probabilities } => {
            println!("{} with {:.3}", preparation.target.names[*class], probabilities[*class]);
        }
        other => println!("{other:?}"),
    }
    Ok(())
}
