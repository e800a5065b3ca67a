//! For each quantity: which direction is worse, and by how much it may become so.

use crate::pattern::matches;

/// The better direction of a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Less is better: times, bytes, errors.
    Lower,
    /// More is better: rates, promises that were kept.
    Higher,
    /// A property of the machine, of the peer or of the work, which is not judged.
    Neither,
}

/// How a quantity is judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// The better direction.
    pub better: Better,
    /// By this part of itself it may become worse.
    pub threshold: f64,
}

const DEFAULT: f64 = 0.05;
/// For what is measured once, or is mostly the driver's work.
const ROUGH: f64 = 0.3;

/// Names, units (`*` stands for any text), the better direction and the threshold; the first line that fits counts.
const RULES: &[(&str, &str, Better, f64)] = &[
    ("check.*", "*", Better::Higher, 0.0),
    ("torch.*", "*", Better::Neither, 0.0),
    ("fit.*", "*", Better::Neither, 0.0),
    ("bandwidth.*", "*", Better::Neither, 0.0),
    ("*.floor", "*", Better::Neither, 0.0),
    ("*.over_none", "*", Better::Neither, 0.0),
    ("*difference*", "*", Better::Neither, 0.0),
    ("*sequential*", "us", Better::Neither, 0.0),
    ("*candle*", "us", Better::Neither, 0.0),
    ("*candle*", "ms", Better::Neither, 0.0),
    // The first seconds of a process, captures and compiling: single times, and mostly the driver's.
    ("*cache_*", "bytes", Better::Neither, 0.0),
    ("sequential.*", "ms", Better::Lower, ROUGH),
    ("parallel.*", "ms", Better::Lower, ROUGH),
    ("demand.*", "ms", Better::Lower, ROUGH),
    ("warm.*", "ms", Better::Lower, ROUGH),
    ("processes.*", "ms", Better::Lower, ROUGH),
    ("*.compile.*", "*", Better::Lower, ROUGH),
    ("*.stall*", "*", Better::Lower, ROUGH),
    ("retest.*", "*", Better::Lower, ROUGH),
    ("graft.*", "ms", Better::Lower, ROUGH),
    ("*.capture", "ms", Better::Lower, ROUGH),
    ("*.instantiate", "ms", Better::Lower, ROUGH),
    ("*.fresh.*", "ms", Better::Lower, ROUGH),
    ("*.reused.*", "ms", Better::Lower, ROUGH),
    ("*slowest_over_median", "*", Better::Lower, ROUGH),
    ("*.longest", "*", Better::Lower, ROUGH),
    ("*speedup*", "ratio", Better::Higher, DEFAULT),
    ("*.over_engine", "ratio", Better::Higher, DEFAULT),
    ("*.over_graph.*", "ratio", Better::Higher, DEFAULT),
    ("*within_bar", "ratio", Better::Higher, DEFAULT),
    ("*", "ratio", Better::Lower, DEFAULT),
    ("*", "GB/s", Better::Higher, DEFAULT),
    ("*errors", "count", Better::Lower, 0.0),
    ("*.wrong", "count", Better::Lower, 0.0),
    ("*.hung", "count", Better::Lower, 0.0),
    ("*nodes*", "*", Better::Lower, DEFAULT),
    ("*kernels*", "count", Better::Lower, DEFAULT),
    ("*critical_path", "count", Better::Lower, DEFAULT),
    ("*", "us", Better::Lower, DEFAULT),
    ("*", "ms", Better::Lower, DEFAULT),
    ("*", "s", Better::Lower, DEFAULT),
    ("*", "bytes", Better::Lower, DEFAULT),
    ("*accuracy*", "%", Better::Higher, DEFAULT),
];

/// How the quantity `name` in `unit` is judged; one that no line of the table names is not.
#[must_use]
pub fn rule_of(name: &str, unit: &str) -> Rule {
    let found = RULES.iter().find(|(names, units, ..)| matches(names, name) && matches(units, unit));
    let (better, threshold) = found.map_or((Better::Neither, 0.0), |(_, _, better, threshold)| (*better, *threshold));
    Rule { better, threshold }
}
