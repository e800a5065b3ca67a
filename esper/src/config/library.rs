//! The `[seeds.library]` section: where the weights of new seeds come from.

use std::path::PathBuf;

use esper_weights::PrefetchConfig;
use kasmina::KasminaConfig;
use kasmina::manager::OnFailure;
use leyline::id::BlueprintId;
use serde::{Deserialize, Serialize};

use super::Issue;

/// A folder of weights, and how they reach the seeds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LibraryConfig {
    /// Folder with a manifest, as `esper seeds export` writes it; relative to where the command runs.
    pub path: PathBuf,
    /// Blueprints whose weights are fetched; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blueprints: Option<Vec<BlueprintId>>,
    /// What happens to a seed whose weights do not come: `remove`, or `fresh`, from the weights drawn for it.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Fetched weights kept on the device (count); 0 keeps none.
    #[serde(default = "default_device_capacity")]
    pub device_capacity: usize,
    /// How they are fetched and kept.
    #[serde(default)]
    pub prefetch: PrefetchConfig,
}

fn default_device_capacity() -> usize {
    kasmina::manager::LibraryConfig::default().device_capacity
}

impl LibraryConfig {
    /// The seed manager's part of it.
    #[must_use]
    pub fn for_seeds(&self) -> kasmina::manager::LibraryConfig {
        let Self { path: _, blueprints, on_failure, device_capacity, prefetch } = self.clone();
        kasmina::manager::LibraryConfig { blueprints, on_failure, device_capacity, prefetch }
    }

    /// What cannot work beside the rest of the seeds' configuration. The folder is not looked at.
    pub(super) fn issues(&self, seeds: &KasminaConfig) -> Vec<Issue> {
        let issues = self.for_seeds().validate_for(seeds);
        issues.into_iter().map(|issue| Issue::new(format!("seeds.library.{}", issue.key), issue.message)).collect()
    }
}

#[cfg(test)]
mod tests {
    use kasmina::attribution::AttributionScope;
    use kasmina::host::HostConfig;
    use kasmina::isolation::IsolationConfig;

    use super::*;
    use crate::config::{EsperConfig, Layer, SeedsConfig};

    fn load(file: &str) -> Result<EsperConfig, String> {
        let loaded =
            EsperConfig::from_layers(vec![Layer::text("run.toml", file)]).map_err(|error| error.to_string())?;
        let again = EsperConfig::from_layers(vec![Layer::text("again.toml", loaded.to_toml().unwrap())]).unwrap();
        assert_eq!(again.config, loaded.config, "what is written back says the same");
        Ok(loaded.config)
    }

    fn seeds(file: &str) -> SeedsConfig {
        load(file).unwrap().seeds
    }

    fn whole(file: &str) -> KasminaConfig {
        seeds(file).for_host(HostConfig::Mlp { inputs: 2, hidden: vec![3], classes: 2 }, 7)
    }

    #[test]
    fn a_path_alone_is_a_library_and_every_setting_reaches_the_seed_manager() {
        assert_eq!(seeds("").library, None);
        let library = seeds("[seeds.library]\npath = \"weights\"\n").library.unwrap();
        assert_eq!((library.path.as_path(), library.for_seeds()), ("weights".as_ref(), <_>::default()));
        let file = "[seeds.library]\npath = \"w\"\nblueprints = [\"mlp\", \"conv\"]\non_failure = \"fresh\"\n\
                    device_capacity = 3\n[seeds.library.prefetch]\ndeadline_ms = 250\nbreaker.failures = 9\n";
        let found = seeds(file).library.unwrap().for_seeds();
        let blueprints = ["mlp", "conv"].map(|name| BlueprintId::new(name).unwrap());
        assert_eq!(found.blueprints.as_deref(), Some(&blueprints[..]));
        assert_eq!((found.on_failure, found.device_capacity), (OnFailure::Fresh, 3));
        assert_eq!((found.prefetch.deadline_ms, found.prefetch.breaker.failures), (250, 9));
        assert_eq!(found.prefetch.queue, PrefetchConfig::default().queue, "what is not said is the default");
    }

    #[test]
    fn a_mistake_is_answered_with_its_place_and_what_is_accepted() {
        let file = |rest: &str| format!("[seeds.library]\npath = \"w\"\n{rest}");
        let offered = "attention, causal_attention, conv, mlp, norm_mlp";
        for (file, message) in [
            (
                "[seeds.library]\non_failure = \"fresh\"\n".to_owned(),
                "run.toml:1:1: `seeds.library.path` is missing".to_owned(),
            ),
            (
                file("on_failure = \"refresh\"\n"),
                "run.toml:3:14: `seeds.library.on_failure` is `refresh`; accepted: remove, fresh".to_owned(),
            ),
            (
                file("[seeds.library.prefetch]\nconcurrency = 0\n"),
                "run.toml:4:1: `seeds.library.prefetch.concurrency` is 0: expected 1 to 256".to_owned(),
            ),
            (
                file("blueprints = [\"mlp\", \"mpl\"]\n"),
                format!("run.toml:3:22: `seeds.library.blueprints[1]` is `mpl`: expected one of {offered}"),
            ),
            (
                file("blueprints = [\"noise\"]\n"),
                format!("run.toml:3:15: `seeds.library.blueprints[0]` is `noise`: expected one of {offered}"),
            ),
            (
                file("blueprints = []\n"),
                "run.toml:3:1: `seeds.library.blueprints` is empty: expected at least one name, or no such key for all"
                    .to_owned(),
            ),
        ] {
            assert_eq!(load(&file).unwrap_err(), message);
        }
        let error = load(&file("deadline_ms = 3\n")).unwrap_err();
        assert!(error.starts_with("run.toml:3:1: `seeds.library.deadline_ms` is not a setting"), "{error}");
        let error = load(&file("blueprints = [\"Mlp!\"]\n")).unwrap_err();
        assert!(error.contains("`Mlp!` is not a blueprint id"), "{error}");
        assert!(load(&format!("[seeds]\nnoise_blueprint = true\n{}", file("blueprints = [\"noise\"]\n"))).is_ok());
    }

    #[test]
    fn how_isolation_is_checked_reaches_the_seed_manager() {
        assert_eq!(whole("").isolation, IsolationConfig::default());
        let found = whole("[seeds.isolation]\ncheck_every_epochs = 3\nstrict = true\n").isolation;
        assert_eq!(found, IsolationConfig { check_every_epochs: 3, strict: true });
        let error = load("[seeds.isolation]\ncheck_every_epochs = 0\n").unwrap_err();
        let expected = "run.toml:2:1: `seeds.isolation.check_every_epochs` is 0, expected at least 1, or `policy.policy` to be `off`";
        assert!(error.starts_with(expected), "{error}");
        assert!(load("[seeds.isolation]\ncheck_every_epochs = 0\n[policy]\npolicy = \"off\"\n").is_ok());
        let error = load("[seeds.isolation]\ncheck_every = 3\n").unwrap_err();
        assert!(error.starts_with("run.toml:2:1: `seeds.isolation.check_every` is not a setting"), "{error}");
    }

    #[test]
    fn what_shares_are_measured_over_reaches_the_seed_manager() {
        assert_eq!(whole("").attribution_scope, AttributionScope::Batch);
        assert_eq!(whole("[seeds]\nattribution_scope = \"sample\"\n").attribution_scope, AttributionScope::Sample);
        let error = load("[seeds]\nattribution_scope = \"epoch\"\n").unwrap_err();
        assert!(error.contains("`seeds.attribution_scope` is `epoch`; accepted: batch, sample"), "{error}");
    }

    #[test]
    fn the_number_of_nonces_of_earlier_versions_is_accepted_and_changes_nothing() {
        assert_eq!(whole("[seeds]\nnonce_capacity = 77\n"), whole(""));
    }
}
