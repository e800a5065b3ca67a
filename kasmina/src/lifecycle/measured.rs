//! Evidence as it is written down: JSON has no NaN and no infinity, and a diverging seed has both.

use leyline::seed::{Counterfactual, GradientHealth};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A float that survives JSON whatever its value: a number when finite, else `nan`, `inf` or `-inf`.
pub(super) mod float {
    use serde::de::Error;

    use super::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(f64),
        Text(String),
    }

    pub(in super::super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        let written = match *value {
            finite if finite.is_finite() => Written::Number(finite),
            nan if nan.is_nan() => Written::Text("nan".into()),
            up if up > 0.0 => Written::Text("inf".into()),
            _ => Written::Text("-inf".into()),
        };
        written.serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Number(number) => Ok(number),
            Written::Text(text) => match text.as_str() {
                "nan" => Ok(f64::NAN),
                "inf" => Ok(f64::INFINITY),
                "-inf" => Ok(f64::NEG_INFINITY),
                other => Err(D::Error::custom(format!("`{other}` is no number: expected nan, inf or -inf"))),
            },
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Counterfactual", deny_unknown_fields)]
struct CounterfactualForm {
    #[serde(with = "float")]
    loss_gain: f64,
    #[serde(with = "float")]
    std_error: f64,
    #[serde(default, with = "ratio")]
    accuracy_gain_pp: Option<f64>,
    num_samples: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "GradientHealth", deny_unknown_fields)]
struct GradientForm {
    #[serde(with = "float")]
    norm: f64,
    #[serde(with = "ratio")]
    host_ratio: Option<f64>,
    #[serde(with = "float")]
    health: f64,
}

/// Makes a `with` module for an optional value out of one for the value.
macro_rules! optional {
    ($name:ident, $value:ty, $with:literal) => {
        pub(super) mod $name {
            use super::*;

            #[derive(Serialize, Deserialize)]
            struct Form(#[serde(with = $with)] $value);

            pub(in super::super) fn serialize<S: Serializer>(
                value: &Option<$value>,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                value.map(Form).serialize(serializer)
            }

            pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Option<$value>, D::Error> {
                Ok(Option::<Form>::deserialize(deserializer)?.map(|form| form.0))
            }
        }
    };
}

optional!(ratio, f64, "super::float");
optional!(counterfactual, Counterfactual, "super::CounterfactualForm");
optional!(gradient, GradientHealth, "super::GradientForm");

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Both {
        #[serde(with = "counterfactual")]
        counterfactual: Option<Counterfactual>,
        #[serde(with = "gradient")]
        gradient: Option<GradientHealth>,
    }

    #[test]
    fn evidence_that_is_not_finite_survives_json() {
        for (a, b, c) in [(0.1, f64::NAN, f64::INFINITY), (f64::NEG_INFINITY, 1.0 / 3.0, 0.0)] {
            let both = Both {
                counterfactual: Some(Counterfactual {
                    loss_gain: a,
                    std_error: b,
                    accuracy_gain_pp: Some(c),
                    num_samples: u64::MAX,
                }),
                gradient: Some(GradientHealth { norm: c, host_ratio: Some(a), health: b }),
            };
            let json = serde_json::to_string(&both).unwrap();
            let read: Both = serde_json::from_str(&json).unwrap();
            assert_eq!(format!("{read:?}"), format!("{both:?}"));
        }
        let absent = r#"{"counterfactual":null,"gradient":null}"#;
        assert_eq!(serde_json::to_string(&serde_json::from_str::<Both>(absent).unwrap()).unwrap(), absent);
    }
}
