//! Canonical bytes of a command: one byte sequence per command, and one command per byte sequence.
//!
//! Layout, little-endian: domain `esper.command`, version `u8`, then the fields in the order of [`Command`]; texts are
//! a `u16` length and UTF-8; floats are IEEE-754 bits.

use crate::command::{AlphaCurve, AlphaRamp, Command, Operation};
use crate::id::{BlueprintId, ParseIdError, RunId, SeedId, SlotId};
use crate::unit::{Alpha, RangeError};

const DOMAIN: &[u8] = b"esper.command";
const VERSION: u8 = 1;
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
        out.extend_from_slice(&self.issued_at_unix_ms.to_le_bytes());
        out.push(self.operation.wire());
        match &self.operation {
            Operation::Germinate { slot, blueprint } => {
                put_text(&mut out, slot.as_str());
                put_text(&mut out, blueprint.as_str());
            }
            Operation::StartBlending { seed, ramp } => {
                out.extend_from_slice(&seed.0.to_le_bytes());
                out.extend_from_slice(&ramp.target.get().to_bits().to_le_bytes());
                out.extend_from_slice(&ramp.steps.to_le_bytes());
                out.push(curve_number(ramp.curve));
            }
            Operation::StartTraining { seed }
            | Operation::Hold { seed }
            | Operation::Fossilize { seed }
            | Operation::Cull { seed } => out.extend_from_slice(&seed.0.to_le_bytes()),
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
        let issued_at_unix_ms = input.u64("issued_at")?;
        let operation = match input.byte("operation")? {
            1 => Operation::Germinate {
                slot: SlotId::new(input.text("slot")?)?,
                blueprint: BlueprintId::new(input.text("blueprint")?)?,
            },
            2 => Operation::StartTraining { seed: input.seed()? },
            3 => Operation::StartBlending {
                seed: input.seed()?,
                ramp: AlphaRamp {
                    target: Alpha::new(f64::from_bits(input.u64("target")?))?,
                    steps: input.u64("steps")?,
                    curve: curve_from(input.byte("curve")?)?,
                },
            },
            4 => Operation::Hold { seed: input.seed()? },
            7 => Operation::Fossilize { seed: input.seed()? },
            8 => Operation::Cull { seed: input.seed()? },
            number => return Err(WireError::Number { field: "operation", number }),
        };
        let reason = input.text("reason")?;
        if reason.len() > MAX_REASON_BYTES {
            return Err(WireError::Text { field: "reason" });
        }
        if !input.rest.is_empty() {
            return Err(WireError::Trailing(input.rest.len()));
        }
        Ok(Self { run_id, sequence, issued_at_unix_ms, operation, reason: reason.to_owned() })
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
        [
            Operation::Germinate { slot: SlotId::new("r0c1").unwrap(), blueprint: BlueprintId::new("mlp").unwrap() },
            Operation::StartTraining { seed },
            Operation::StartBlending { seed, ramp },
            Operation::Hold { seed },
            Operation::Fossilize { seed },
            Operation::Cull { seed },
        ]
        .into_iter()
        .enumerate()
        .map(|(index, operation)| Command {
            run_id: RunId::new("run-1").unwrap(),
            sequence: index as u64,
            issued_at_unix_ms: 1_700_000_000_000,
            operation,
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
    fn a_long_reason_is_cut_between_characters() {
        let mut command = commands().remove(1);
        command.reason = "é".repeat(200);
        let read = Command::from_bytes(&command.to_bytes()).unwrap();
        assert_eq!(read.reason, "é".repeat(128));
    }
}
