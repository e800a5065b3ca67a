//! Canonical bytes of a command: one byte sequence per command, and one command per byte sequence.
//!
//! Layout, little-endian: domain `esper.command`, version `u8`, then the fields in the order of [`Command`]; texts are
//! a `u16` length and UTF-8; floats are IEEE-754 bits.

use crate::command::{
    AlphaCurve, AlphaRamp, Blend, BlendMode, ChannelWeights, Command, ConfidenceGate, Nonce, Operation,
};
use crate::id::{BlueprintId, ParseIdError, RunId, SeedId, SlotId};
use crate::unit::{Alpha, RangeError};

const DOMAIN: &[u8] = b"esper.command";
const VERSION: u8 = 2;
const MAX_REASON_BYTES: usize = 256;

/// Bytes that are no command.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WireError {
    /// The bytes end inside a field.
    #[error("the command ends inside `{field}`")]
    Truncated {
        /// The field.
        field: &'static str,
    },
    /// Bytes are left after the last field.
    #[error("{0} bytes follow the command")]
    Trailing(usize),
    /// The domain is another one.
    #[error("the bytes are not a command")]
    Domain,
    /// The version is another one.
    #[error("command version {found} is not supported: this build reads version {VERSION}")]
    Version {
        /// The version found.
        found: u8,
    },
    /// A number is no operation or curve.
    #[error("{number} is no {field}")]
    Number {
        /// The field.
        field: &'static str,
        /// What was found.
        number: u8,
    },
    /// An operation of the older system that has no meaning here.
    #[error("operation `{name}` [{number}] is not supported: see the operations of this version")]
    Retired {
        /// Its wire number.
        number: u8,
        /// Its name.
        name: &'static str,
    },
    /// A text is not UTF-8 or too long.
    #[error("`{field}` is not a text of the accepted length")]
    Text {
        /// The field.
        field: &'static str,
    },
    /// A text is not an id.
    #[error(transparent)]
    Id(#[from] ParseIdError),
    /// A number is out of range.
    #[error(transparent)]
    Range(#[from] RangeError),
}

impl Command {
    /// The canonical bytes. A reason longer than 256 bytes is cut at a character boundary.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(DOMAIN);
        out.push(VERSION);
        put_text(&mut out, self.run_id.as_str());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.nonce.0);
        out.extend_from_slice(&self.issued_at_unix_ms.to_le_bytes());
        out.extend_from_slice(&self.valid_for_ms.to_le_bytes());
        out.push(self.operation.wire());
        match &self.operation {
            Operation::Germinate { slot, blueprint, blend } => {
                put_text(&mut out, slot.as_str());
                put_text(&mut out, blueprint.as_str());
                put_blend(&mut out, blend);
            }
            Operation::StartBlending { seed, ramp } => {
                out.extend_from_slice(&seed.0.to_le_bytes());
                put_float(&mut out, ramp.target.get());
                out.extend_from_slice(&ramp.steps.to_le_bytes());
                out.push(curve_number(ramp.curve));
            }
            Operation::StartTraining { seed }
            | Operation::Hold { seed }
            | Operation::Fossilize { seed }
            | Operation::Cull { seed }
            | Operation::Pause { seed }
            | Operation::Resume { seed } => out.extend_from_slice(&seed.0.to_le_bytes()),
            Operation::CullGradually { seed, steps, curve } => {
                out.extend_from_slice(&seed.0.to_le_bytes());
                out.extend_from_slice(&steps.to_le_bytes());
                out.push(curve_number(*curve));
            }
        }
        out.push(u8::from(self.input_coverage.is_some()));
        if let Some(coverage) = self.input_coverage {
            put_float(&mut out, coverage);
        }
        put_text(&mut out, &self.reason[..self.reason.floor_char_boundary(MAX_REASON_BYTES)]);
        out
    }

    /// Reads canonical bytes. Verify their tag first.
    ///
    /// # Errors
    /// [`WireError`] naming the field; every byte must be used.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WireError> {
        let mut input = Reader { rest: bytes };
        if input.take(DOMAIN.len(), "domain")? != DOMAIN {
            return Err(WireError::Domain);
        }
        let version = input.byte("version")?;
        if version != VERSION {
            return Err(WireError::Version { found: version });
        }
        let run_id = RunId::new(input.text("run_id")?)?;
        let sequence = input.u64("sequence")?;
        let nonce = Nonce(input.array("nonce")?);
        let issued_at_unix_ms = input.u64("issued_at")?;
        let valid_for_ms = u32::from_le_bytes(input.array("valid_for")?);
        let operation = match input.byte("operation")? {
            1 => Operation::Germinate {
                slot: SlotId::new(input.text("slot")?)?,
                blueprint: BlueprintId::new(input.text("blueprint")?)?,
                blend: input.blend()?,
            },
            2 => Operation::StartTraining { seed: input.seed()? },
            3 => Operation::StartBlending {
                seed: input.seed()?,
                ramp: AlphaRamp {
                    target: Alpha::new(input.float("target")?)?,
                    steps: input.u64("steps")?,
                    curve: curve_from(input.byte("curve")?)?,
                },
            },
            4 => Operation::Hold { seed: input.seed()? },
            7 => Operation::Fossilize { seed: input.seed()? },
            5 => return Err(WireError::Retired { number: 5, name: "evaluate" }),
            6 => return Err(WireError::Retired { number: 6, name: "fine_tune" }),
            8 => Operation::Cull { seed: input.seed()? },
            9 => return Err(WireError::Retired { number: 9, name: "cancel" }),
            10 => Operation::CullGradually {
                seed: input.seed()?,
                steps: input.u64("steps")?,
                curve: curve_from(input.byte("curve")?)?,
            },
            11 => Operation::Pause { seed: input.seed()? },
            12 => Operation::Resume { seed: input.seed()? },
            number => return Err(WireError::Number { field: "operation", number }),
        };
        let input_coverage = match input.byte("input_coverage")? {
            0 => None,
            1 => Some(
                Alpha::new(input.float("input_coverage")?).map_err(|e| RangeError { quantity: "coverage", ..e })?.get(),
            ),
            number => return Err(WireError::Number { field: "input_coverage", number }),
        };
        let reason = input.text("reason")?;
        if reason.len() > MAX_REASON_BYTES {
            return Err(WireError::Text { field: "reason" });
        }
        if !input.rest.is_empty() {
            return Err(WireError::Trailing(input.rest.len()));
        }
        let reason = reason.to_owned();
        Ok(Self { run_id, sequence, nonce, issued_at_unix_ms, valid_for_ms, operation, input_coverage, reason })
    }
}

fn curve_number(curve: AlphaCurve) -> u8 {
    match curve {
        AlphaCurve::Linear => 1,
        AlphaCurve::Cosine => 2,
        AlphaCurve::Sigmoid => 3,
    }
}

fn curve_from(number: u8) -> Result<AlphaCurve, WireError> {
    match number {
        1 => Ok(AlphaCurve::Linear),
        2 => Ok(AlphaCurve::Cosine),
        3 => Ok(AlphaCurve::Sigmoid),
        number => Err(WireError::Number { field: "curve", number }),
    }
}

fn put_float(out: &mut Vec<u8>, value: f64) {
    out.extend_from_slice(&value.to_bits().to_le_bytes());
}

fn put_blend(out: &mut Vec<u8>, blend: &Blend) {
    out.push(blend.mode().wire());
    match blend {
        Blend::Convex | Blend::Residual | Blend::Multiply | Blend::Gate => {}
        Blend::Channel(weights) => {
            let len = u16::try_from(weights.get().len()).expect("at most 4096 weights");
            out.extend_from_slice(&len.to_le_bytes());
            weights.get().iter().for_each(|&weight| put_float(out, weight));
        }
        Blend::Confidence(gate) => {
            for value in [gate.steepness(), gate.threshold(), gate.low(), gate.high()] {
                put_float(out, value);
            }
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    let len = u16::try_from(text.len()).expect("ids have at most 64 bytes and reasons at most 256");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize, field: &'static str) -> Result<&'a [u8], WireError> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(WireError::Truncated { field })?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], WireError> {
        self.take(N, field)?.try_into().map_err(|_| WireError::Truncated { field })
    }

    fn byte(&mut self, field: &'static str) -> Result<u8, WireError> {
        Ok(self.array::<1>(field)?[0])
    }

    fn u64(&mut self, field: &'static str) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    fn float(&mut self, field: &'static str) -> Result<f64, WireError> {
        Ok(f64::from_bits(self.u64(field)?))
    }

    fn blend(&mut self) -> Result<Blend, WireError> {
        let number = self.byte("blend")?;
        let mode = BlendMode::from_wire(number).ok_or(WireError::Number { field: "blend", number })?;
        Ok(match mode {
            BlendMode::Convex => Blend::Convex,
            BlendMode::Residual => Blend::Residual,
            BlendMode::Multiply => Blend::Multiply,
            BlendMode::Gate => Blend::Gate,
            BlendMode::Channel => {
                let len = u16::from_le_bytes(self.array("channel weights")?);
                let weights = (0..len).map(|_| self.float("channel weights")).collect::<Result<_, _>>()?;
                Blend::Channel(ChannelWeights::new(weights)?)
            }
            BlendMode::Confidence => {
                let mut next = || self.float("confidence");
                Blend::Confidence(ConfidenceGate::new(next()?, next()?, next()?, next()?)?)
            }
        })
    }

    fn seed(&mut self) -> Result<SeedId, WireError> {
        Ok(SeedId(u32::from_le_bytes(self.array("seed")?)))
    }

    fn text(&mut self, field: &'static str) -> Result<&'a str, WireError> {
        let len = u16::from_le_bytes(self.array(field)?);
        std::str::from_utf8(self.take(len.into(), field)?).map_err(|_| WireError::Text { field })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands() -> Vec<Command> {
        let seed = SeedId(3);
        let ramp = AlphaRamp { target: Alpha::new(0.7).unwrap(), steps: 90, curve: AlphaCurve::Cosine };
        let germinate = |blend| Operation::Germinate {
            slot: SlotId::new("r0c1").unwrap(),
            blueprint: BlueprintId::new("mlp").unwrap(),
            blend,
        };
        [
            germinate(Blend::Convex),
            germinate(Blend::Residual),
            germinate(Blend::Channel(ChannelWeights::new(vec![0.0, 0.5, 1.0]).unwrap())),
            germinate(Blend::Confidence(ConfidenceGate::default())),
            germinate(Blend::Multiply),
            germinate(Blend::Gate),
            Operation::StartTraining { seed },
            Operation::StartBlending { seed, ramp },
            Operation::Hold { seed },
            Operation::Fossilize { seed },
            Operation::Cull { seed },
            Operation::CullGradually { seed, steps: 30, curve: AlphaCurve::Sigmoid },
            Operation::Pause { seed },
            Operation::Resume { seed },
        ]
        .into_iter()
        .enumerate()
        .map(|(index, operation)| Command {
            run_id: RunId::new("run-1").unwrap(),
            sequence: index as u64,
            nonce: Nonce([u8::try_from(index).unwrap(); 16]),
            issued_at_unix_ms: 1_700_000_000_000,
            valid_for_ms: 5_000,
            operation,
            input_coverage: (index % 2 == 0).then_some(0.75),
            reason: "größer".into(),
        })
        .collect()
    }

    #[test]
    fn every_operation_survives_its_bytes() {
        for command in commands() {
            assert_eq!(Command::from_bytes(&command.to_bytes()), Ok(command));
        }
    }

    #[test]
    fn every_proper_prefix_and_every_extension_is_refused() {
        for command in commands() {
            let mut bytes = command.to_bytes();
            for len in 0..bytes.len() {
                assert!(Command::from_bytes(&bytes[..len]).is_err(), "{} bytes of {command:?}", len);
            }
            bytes.push(0);
            assert_eq!(Command::from_bytes(&bytes), Err(WireError::Trailing(1)));
        }
    }

    #[test]
    fn whatever_can_be_read_is_written_back_the_same() {
        for command in commands() {
            let bytes = command.to_bytes();
            for position in 0..bytes.len() {
                for value in 0..=255 {
                    let mut altered = bytes.clone();
                    altered[position] = value;
                    if let Ok(read) = Command::from_bytes(&altered) {
                        assert_eq!(read.to_bytes(), altered, "byte {position} = {value}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_operation_of_the_older_system_is_refused_by_its_name() {
        let mut bytes = commands().pop().unwrap().to_bytes();
        let at = bytes.iter().rposition(|&byte| byte == 12).unwrap();
        for (number, name) in [(5, "evaluate"), (6, "fine_tune"), (9, "cancel")] {
            bytes[at] = number;
            assert_eq!(Command::from_bytes(&bytes), Err(WireError::Retired { number, name }));
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let mut command = commands().remove(1);
        command.reason = "é".repeat(200);
        let read = Command::from_bytes(&command.to_bytes()).unwrap();
        assert_eq!(read.reason, "é".repeat(128));
    }
}
