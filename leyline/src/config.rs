//! What is wrong with a configuration, in the form that all parts use.

use std::fmt;

/// A value that cannot be used.
///
/// ```
/// use leyline::config::ConfigIssue;
/// let issue = ConfigIssue::new("gates.window", "is 0: expected at least 1");
/// assert_eq!(issue.to_string(), "`gates.window` is 0: expected at least 1");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigIssue {
    /// Which value: a dotted path below the section of the part that complains.
    pub key: String,
    /// What is wrong and what is accepted.
    pub message: String,
}

impl ConfigIssue {
    /// An issue of the value at `key`.
    #[must_use]
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), message: message.into() }
    }
}

impl fmt::Display for ConfigIssue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.key, self.message)
    }
}
