//! The list of policies, and the section of the configuration that follows from it: which policy decides, and one nested section
//! for each.

/// One line per policy: its name in the code, its name in configurations and saved states, its settings, and attributes of its section.
/// The first one is the default.
macro_rules! policies {
    ($($(#[doc = $doc:literal])+ $kind:ident $name:ident: $settings:ty $(, #[$section:meta])*;)+) => {
        /// Which policy decides. All but the first are controls for experiments.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum PolicyKind {
            $($(#[doc = $doc])+ $kind,)+
        }

        impl PolicyKind {
            const ALL: &[Self] = &[$(Self::$kind),+];

            /// The name as in configuration.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($name),)+
                }
            }
        }

        impl Default for PolicyKind {
            fn default() -> Self {
                Self::ALL[0]
            }
        }

        /// The section of the policy.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct TamiyoConfig {
            /// Which policy decides.
            pub policy: PolicyKind,
            /// How new seeds are mixed with the host, whatever policy asks for them: `residual` (default), `convex`,
            /// `multiply`, `gate`, `{ channel = [..] }` with a weight for each channel of the slot, or
            /// `{ confidence = { steepness, threshold, low, high } }`.
            pub blend: Blend,
            /// What speaks against growing, whatever policy asks for it.
            #[serde(skip_serializing_if = "RiskConfig::is_usual")]
            pub risk: RiskConfig,
            $(
                #[doc = concat!("Settings of `", stringify!($name), "`.")]
                $(#[$section])*
                pub $name: $settings,
            )+
        }

        impl TamiyoConfig {
            /// Checks every section, also those of the policies that do not decide.
            ///
            /// # Errors
            /// Every value that cannot be used, with its key and what is accepted.
            pub fn validate(&self) -> Result<(), Vec<ConfigIssue>> {
                let mut issues = Issues::default();
                self.risk.check(issues.of("risk"));
                $(self.$name.check(issues.of(stringify!($name)));)+
                issues.finish()
            }

            /// Checks the slots and blueprints that the settings name against those of a network: a policy would wait for
            /// others for ever.
            ///
            /// # Errors
            /// As [`Self::validate`].
            pub fn validate_for(&self, slots: &[SlotState]) -> Result<(), Vec<ConfigIssue>> {
                let mut issues = Issues::default();
                $(self.$name.check_names(slots, issues.of(stringify!($name)));)+
                issues.finish()
            }

            /// The configured policy, with nothing remembered.
            pub(crate) fn begin(self) -> Box<dyn Proposer> {
                match self.policy {
                    $(PolicyKind::$kind => Box::new(Begun::new(self.$name)),)+
                }
            }
        }
    };
}
pub(super) use policies;

#[cfg(test)]
mod tests {
    use leyline::seed::{BlueprintOffer, SlotState};

    use crate::policy::TamiyoConfig;

    #[track_caller]
    fn check(json: &str, parts_of_error: &[&str]) {
        let found = match serde_json::from_str::<TamiyoConfig>(json) {
            Err(error) => vec![error.to_string()],
            Ok(config) => match config.validate() {
                Ok(()) => Vec::new(),
                Err(issues) => issues.iter().map(ToString::to_string).collect(),
            },
        };
        assert_eq!(found.len(), parts_of_error.len(), "{found:?}");
        for (message, part) in found.iter().zip(parts_of_error) {
            assert!(message.contains(part), "`{message}` does not say `{part}`");
        }
    }

    #[test]
    fn nothing_said_is_the_default_and_valid() {
        assert_eq!(serde_json::from_str::<TamiyoConfig>("{}").unwrap(), TamiyoConfig::default());
        check("{}", &[]);
        check(r#"{"policy":"off"}"#, &[]);
        check(r#"{"policy":"fixed","fixed":{"germinations":[{"epoch":1},{"epoch":4,"blueprint":"mlp"}]}}"#, &[]);
    }

    #[test]
    fn the_written_form_reads_back_the_same() {
        let config = TamiyoConfig::default();
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<TamiyoConfig>(&json).unwrap(), config);
    }

    #[test]
    fn unknown_keys_and_names_are_refused_with_the_accepted_ones() {
        check(r#"{"policy":"greedy"}"#, &["expected one of `heuristic`, `off`, `fixed`, `random`, `learned`"]);
        check(r#"{"heuristics":{}}"#, &["unknown field `heuristics`"]);
        check(r#"{"heuristic":{"training":{"min_epoch":3}}}"#, &["expected one of `min_epochs`, `max_epochs`"]);
        check(r#"{"fixed":{"curve":"square"}}"#, &["expected one of `linear`, `cosine`, `sigmoid`"]);
        check(r#"{"fixed":{"germinations":[{"epoch":1,"blueprint":"A B"}]}}"#, &["`A B` is not a blueprint id"]);
    }

    #[test]
    fn names_that_the_network_does_not_have_are_reported_with_those_it_has() {
        let slot = |name: &str, blueprints: &[&str]| SlotState {
            slot: name.parse().unwrap(),
            occupant: None,
            num_fossilized: 0,
            offers: blueprints
                .iter()
                .map(|blueprint| BlueprintOffer { blueprint: blueprint.parse().unwrap(), num_parameters: 1 })
                .collect(),
        };
        let slots = [slot("input", &["mlp", "norm_mlp"]), slot("block0", &["conv", "mlp"])];
        let found = |json: &str| -> Vec<String> {
            let config: TamiyoConfig = serde_json::from_str(json).unwrap();
            let issues = config.validate_for(&slots).err().unwrap_or_default();
            issues.iter().map(ToString::to_string).collect()
        };
        assert_eq!(found("{}"), [""; 0]);
        let good = r#"{"epoch":1},{"epoch":2,"slot":"input"},{"epoch":3,"blueprint":"conv"},{"epoch":4,"slot":"block0","blueprint":"conv"}"#;
        assert_eq!(found(&format!(r#"{{"fixed":{{"germinations":[{good}]}}}}"#)), [""; 0]);
        assert_eq!(
            found(
                r#"{"heuristic":{"germination":{"blueprints":["mlp","nosuch"]}},"fixed":{"germinations":[
                    {"epoch":1,"slot":"hidden0"},
                    {"epoch":2,"slot":"hidden0","blueprint":"nosuch"},
                    {"epoch":3,"blueprint":"nosuch"},
                    {"epoch":4,"slot":"input","blueprint":"conv"}
                ]}}"#
            ),
            [
                "`heuristic.germination.blueprints[1]` is `nosuch`: expected one of conv, mlp, norm_mlp",
                "`fixed.germinations[0].slot` is `hidden0`: expected one of input, block0",
                "`fixed.germinations[1].slot` is `hidden0`: expected one of input, block0",
                "`fixed.germinations[1].blueprint` is `nosuch`: expected one of conv, mlp, norm_mlp",
                "`fixed.germinations[2].blueprint` is `nosuch`: expected one of conv, mlp, norm_mlp",
                "`fixed.germinations[3].blueprint` is `conv`: expected one of mlp, norm_mlp, on offer in `input`",
            ]
        );
    }

    #[test]
    fn every_bad_value_is_reported_with_its_key_and_the_accepted_range() {
        check(
            r#"{"heuristic":{
                "closing_epochs":0,
                "plateau":{"patience_epochs":0,"min_relative_gain":-0.1},
                "stability":{"max_relative_rise":-1.0,"max_relative_fall":2.0},
                "evidence":{"window":0,"confidence_z":-1.0},
                "germination":{"min_share":1.5,"max_live_seeds":0,"max_parameter_ratio":0.5},
                "training":{"min_epochs":8,"max_epochs":7,"min_gradient_health":1.5},
                "blending":{"ramp_epochs":0,"harmful_measurements":0},
                "holding":{"min_epochs":0,"max_epochs":0,"min_gain":-1.0}}}"#,
            &[
                "`heuristic.plateau.patience_epochs` is 0: expected at least 1",
                "`heuristic.plateau.min_relative_gain` is -0.1: expected 0 to 1",
                "`heuristic.stability.max_relative_rise` is -1: expected 0 to 1",
                "`heuristic.stability.max_relative_fall` is 2: expected 0 to 1",
                "`heuristic.evidence.window` is 0: expected 1 to 1000",
                "`heuristic.evidence.confidence_z` is -1: expected 0 to 10",
                "`heuristic.germination.min_share` is 1.5: expected 0 to 1",
                "`heuristic.germination.max_live_seeds` is 0: expected at least 1",
                "`heuristic.germination.max_parameter_ratio` is 0.5: expected 1 to 1000000",
                "`heuristic.training.max_epochs` is 7: expected at least 8",
                "`heuristic.training.min_gradient_health` is 1.5: expected 0 to 1",
                "`heuristic.blending.ramp_epochs` is 0: expected at least 1",
                "`heuristic.blending.harmful_measurements` is 0: expected 1 to 1000",
                "`heuristic.holding.min_epochs` is 0: expected at least 1",
                "`heuristic.holding.min_gain` is -1: expected 0 to 1000000",
                "`heuristic.closing_epochs` is 0: expected at least 1",
            ],
        );
        check(
            r#"{"fixed":{"germinations":[{"epoch":3},{"epoch":2}],"training_epochs":0,"ramp_epochs":0,
                "holding_epochs":0},"random":{"rate":1.5,"ramp_epochs":0,"max_live_seeds":0}}"#,
            &[
                "`fixed.germinations[1].epoch` is 2: expected at least 3",
                "`fixed.training_epochs` is 0: expected at least 1",
                "`fixed.ramp_epochs` is 0: expected at least 1",
                "`fixed.holding_epochs` is 0: expected at least 1",
                "`random.rate` is 1.5: expected 0 to 1",
                "`random.max_live_seeds` is 0: expected at least 1",
                "`random.ramp_epochs` is 0: expected at least 1",
            ],
        );
    }

    #[test]
    fn a_nan_is_in_no_range() {
        let mut config = TamiyoConfig::default();
        config.heuristic.evidence.confidence_z = f64::NAN;
        config.random.rate = f64::NAN;
        let keys: Vec<String> = config.validate().unwrap_err().into_iter().map(|issue| issue.key).collect();
        assert_eq!(keys, ["heuristic.evidence.confidence_z", "random.rate"]);
    }
}
