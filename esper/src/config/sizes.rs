//! Sizes of a run on a file of one's own, which nobody has tried before, and on published sets: they follow from samples, features and outputs.
//!
//! They are defaults: a file or a flag overrules each, and what was taken is told with its reason.

use kasmina::{Kasmina, KasminaConfig};
use leyline::id::SlotId;
use leyline::seed::{BlueprintOffer, SlotState};

use super::{EsperConfig, Layer, Loaded, Place};
use crate::data::{Table, TargetKind};

/// Under which name they are defaults.
pub(super) const LAYER: &str = "the data";
/// Optimizer steps of a run, where that is neither too few epochs nor too many. One that has more than twice as many, because
/// there are so many samples, trains a wider network, and its learning rate falls: small files have their best network before
/// they could make use of either.
const STEPS: usize = 1500;
const RATIO: &str = "policy.heuristic.germination.max_parameter_ratio";

/// Settings that may follow from the data.
pub(crate) const KEYS: &[&str] = &[
    "train.batch.batch_size",
    "run.epochs",
    "host.mlp.hidden",
    "host.language_model.width",
    "host.language_model.heads",
    "host.language_model.layers",
    "seeds.seed_width",
    "policy.heuristic.training.max_epochs",
    "train.schedule.decay.kind",
    "train.schedule.warmup_steps",
    RATIO,
];

/// A setting with the reason for its value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sized {
    key: &'static str,
    value: String,
    why: String,
}

/// What follows from the training part.
pub(crate) fn of_data(train: &Table) -> Vec<Sized> {
    if train.targets().kind() == TargetKind::Tokens {
        return of_tokens(train.num_samples(), train.num_features());
    }
    let (samples, features, outputs) = (train.num_samples(), train.num_features(), train.num_outputs());
    let batch = power_of_two(samples as f64 / 16.0, 8, 128);
    let steps = samples.div_ceil(batch);
    let epochs = (STEPS / steps).clamp(20, 100);
    let is_long = steps * epochs > 2 * STEPS;
    let (times, widest) = if is_long { (4, 256) } else { (2, 64) };
    let width = power_of_two(times as f64 * ((features * outputs) as f64).sqrt(), 8, widest);
    let mut sizes = vec![
        sized(
            "train.batch.batch_size",
            batch.to_string(),
            format!("about a sixteenth of {samples} training samples, 8 to 128"),
        ),
        sized("run.epochs", epochs.to_string(), format!("about {STEPS} steps of {steps} per epoch, 20 to 100")),
        sized(
            "host.mlp.hidden",
            format!("[{width}]"),
            format!("about {times} times the root of {features} features × {outputs} outputs, 8 to {widest}"),
        ),
        sized("seeds.seed_width", (width / 2).to_string(), "half of the host's".to_owned()),
        sized(
            "policy.heuristic.training.max_epochs",
            (epochs / 4).clamp(8, 30).to_string(),
            "a quarter of the epochs, 8 to 30".to_owned(),
        ),
    ];
    if is_long {
        let why = format!("a run of {} steps is long enough to settle: the rate falls to 0", steps * epochs);
        sizes.push(sized("train.schedule.decay.kind", "\"cosine\"".to_owned(), why));
    }
    sizes
}

fn sized(key: &'static str, value: String, why: String) -> Sized {
    Sized { key, value, why }
}

/// Of windows of tokens, for a language model.
fn of_tokens(windows: usize, context: usize) -> Vec<Sized> {
    let tokens = windows * context;
    let batch = power_of_two(windows as f64 / 16.0, 4, 32);
    let steps = windows.div_ceil(batch);
    let epochs = (STEPS / steps).clamp(1, 100);
    let width = power_of_two((tokens as f64).sqrt() / 8.0, 32, 256);
    let layers = if width <= 64 { 2 } else { 4 };
    let warmup = (steps * epochs / 20).min(steps / 2).clamp(1, 200);
    vec![
        sized(
            "train.batch.batch_size",
            batch.to_string(),
            format!("about a sixteenth of {windows} training windows of {context} tokens (data.window), 4 to 32"),
        ),
        sized("run.epochs", epochs.to_string(), format!("about {STEPS} steps of {steps} per epoch, 1 to 100")),
        sized(
            "host.language_model.width",
            width.to_string(),
            format!("about an eighth of the root of {tokens} training tokens, 32 to 256"),
        ),
        sized("host.language_model.heads", (width / 32).to_string(), "32 features each".to_owned()),
        sized("host.language_model.layers", layers.to_string(), "2 up to a width of 64, then 4".to_owned()),
        sized("seeds.seed_width", (width / 2).to_string(), "half of the host's".to_owned()),
        sized(
            "policy.heuristic.training.max_epochs",
            (epochs / 4).clamp(8, 30).to_string(),
            "a quarter of the epochs, 8 to 30".to_owned(),
        ),
        sized(
            "train.schedule.warmup_steps",
            warmup.to_string(),
            "a twentieth of the steps, at most half an epoch, 1 to 200".to_owned(),
        ),
        sized("train.schedule.decay.kind", "\"cosine\"".to_owned(), "the rate falls to 0 at the end".to_owned()),
    ]
}

/// How far the network may grow: twice the largest seed.
pub(crate) fn of_network(room: &Room) -> Vec<Sized> {
    let needed = room.host as f64 + 2.0 * room.largest as f64;
    let ratio = (needed / room.host as f64).max(2.0).ceil().min(1e6);
    vec![Sized {
        key: RATIO,
        value: format!("{ratio:.1}"),
        why: format!("room for two seeds of up to {} parameters beside a host of {}", room.largest, room.host),
    }]
}

/// The layer of these settings.
pub(crate) fn layer(sizes: &[Sized]) -> Layer {
    let lines: String = sizes.iter().map(|size| format!("{} = {}\n", size.key, size.value)).collect();
    Layer::defaults(LAYER, &lines)
}

/// Those that were taken, one sentence each.
pub(crate) fn taken(sizes: &[Sized], loaded: &Loaded<EsperConfig>) -> Vec<String> {
    let is_taken =
        |size: &&Sized| matches!(&loaded.provenance.get(size.key), Some(Place::Default { layer }) if layer == LAYER);
    sizes.iter().filter(is_taken).map(|size| format!("{} = {}: {}", size.key, size.value, size.why)).collect()
}

/// Parameters of a host and of the seeds on offer for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Room {
    host: u64,
    largest: u64,
    smallest: u64,
    /// Blueprint and slot of the smallest.
    least: String,
}

impl Room {
    /// Of a network that is described; `None` where nothing is on offer.
    pub(crate) fn of(config: &KasminaConfig, slots: &[SlotState]) -> Option<Self> {
        let offers = || slots.iter().flat_map(|slot| slot.offers.iter().map(move |offer| (&slot.slot, offer)));
        let size = |(_, offer): &(&SlotId, &BlueprintOffer)| offer.num_parameters;
        let (slot, offer) = offers().min_by_key(size)?;
        let host = Kasmina::count_host_parameters(&config.host).ok()?;
        let least = format!("`{}` at `{slot}`", offer.blueprint);
        Some(Self { host, largest: offers().map(|offer| size(&offer)).max()?, smallest: offer.num_parameters, least })
    }

    /// What is wrong where no seed fits: the key, and what is accepted.
    pub(crate) fn too_small(&self, config: &EsperConfig) -> Option<(String, String)> {
        let ratio = config.policy.heuristic.germination.max_parameter_ratio;
        let needed = (self.host + self.smallest) as f64 / self.host as f64;
        (ratio < needed).then(|| {
            let problem = format!(
                "is {ratio}: a host of {} parameters may grow by {:.0}, but the smallest seed, {}, has {}, so nothing can grow; \
                 expected {:.1} or more, or `seeds.seed_width` below {}",
                self.host,
                (ratio - 1.0) * self.host as f64,
                self.least,
                self.smallest,
                (needed * 10.0).ceil() / 10.0,
                config.seeds.seed_width
            );
            (RATIO.to_owned(), problem)
        })
    }
}

/// The nearest power of two within bounds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within bounds that are small")]
fn power_of_two(wanted: f64, low: usize, high: usize) -> usize {
    let exponent = wanted.max(1.0).log2().round().min(20.0) as u32;
    (1_usize << exponent).clamp(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Targets;

    #[track_caller]
    fn check(samples: usize, features: usize, classes: usize, expected: &[&str]) {
        let labels =
            Targets::numbered((0..samples).map(|row| u32::try_from(row % classes).unwrap()).collect(), classes);
        let table = Table::new(vec![0.0; samples * features], vec![features], labels).unwrap();
        let sizes = of_data(&table);
        assert!(sizes.iter().all(|size| KEYS.contains(&size.key)), "{sizes:?}");
        let found: Vec<String> = sizes.into_iter().map(|size| size.value).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn sizes_of_a_language_model_follow_from_its_tokens() {
        let check = |windows: usize, expected: &[&str]| {
            let tokens = vec![0; 64 * windows];
            let targets = Targets::Tokens { tokens: tokens.clone(), window: 64, vocabulary: 256 };
            let table = Table::new(crate::data::Inputs::Tokens(tokens), vec![64], targets).unwrap();
            let sizes = of_data(&table);
            assert!(sizes.iter().all(|size| KEYS.contains(&size.key)), "{sizes:?}");
            let found: Vec<String> = sizes.into_iter().map(|size| size.value).collect();
            assert_eq!(found, expected);
        };
        //       batch, epochs, width, heads, layers, seeds, longest training, warmup
        check(10, &["4", "100", "32", "1", "2", "16", "25", "1", "\"cosine\""]);
        check(940, &["32", "50", "32", "1", "2", "16", "12", "15", "\"cosine\""]);
        check(10_000, &["32", "4", "128", "4", "4", "64", "8", "62", "\"cosine\""]);
        check(200_000, &["32", "1", "256", "8", "4", "128", "8", "200", "\"cosine\""]);
    }

    #[test]
    fn sizes_follow_from_samples_features_and_outputs_within_bounds() {
        //                       batch, epochs, hidden, seeds, longest training
        check(90, 4, 3, &["8", "100", "[8]", "4", "25"]);
        check(341, 30, 2, &["16", "68", "[16]", "8", "17"]);
        check(19_200, 784, 10, &["128", "20", "[64]", "32", "8"]);
        check(19_201, 784, 10, &["128", "20", "[256]", "128", "8", "\"cosine\""]);
        check(54_000, 784, 10, &["128", "20", "[256]", "128", "8", "\"cosine\""]);
        check(12, 1, 2, &["8", "100", "[8]", "4", "25"]);
    }
}
