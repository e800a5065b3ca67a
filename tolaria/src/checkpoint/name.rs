//! Names that may stand in a checkpoint; checked when it is written and again when it is read.

/// A name that a checkpoint cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {name:?} is not allowed: expected {accepted}")]
pub struct NameError {
    /// What it names.
    pub what: &'static str,
    /// The name, shortened to 64 characters.
    pub name: String,
    /// The accepted form.
    pub accepted: &'static str,
}

/// A name that could be a file's: it cannot leave its directory on any system.
pub(super) fn check_portable(what: &'static str, name: &str) -> Result<(), NameError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let sound = (1..=64).contains(&name.len()) && name.chars().all(allowed) && name != "." && name != "..";
    verdict(sound, what, name, "1 to 64 characters of A-Z, a-z, 0-9, ., _ and -, not . or ..")
}

/// A tensor's name within its component; it never becomes a path.
pub(super) fn check_tensor(name: &str) -> Result<(), NameError> {
    let sound = (1..=256).contains(&name.len()) && !name.chars().any(char::is_control);
    verdict(sound, "tensor name", name, "1 to 256 bytes without control characters")
}

/// The digest of a configuration; any text of one line.
pub(super) fn check_config_digest(digest: &str) -> Result<(), NameError> {
    let sound = digest.len() <= 256 && !digest.chars().any(char::is_control);
    verdict(sound, "configuration digest", digest, "at most 256 bytes without control characters")
}

fn verdict(sound: bool, what: &'static str, name: &str, accepted: &'static str) -> Result<(), NameError> {
    if sound { Ok(()) } else { Err(NameError { what, name: name.chars().take(64).collect(), accepted }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_portable_name_cannot_leave_its_directory() {
        for good in ["state.json", "a", "A-b_c.9", "...", &"x".repeat(64)] {
            assert_eq!(check_portable("file name", good), Ok(()));
        }
        for bad in ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\\b", "C:x", "é", "a b", "a\0", &"x".repeat(65)] {
            let error = check_portable("file name", bad).unwrap_err();
            assert_eq!(error.what, "file name");
            assert!(bad.starts_with(&error.name), "{error}");
        }
    }

    #[test]
    fn a_tensor_name_is_any_short_printable_text() {
        for good in ["weight", "seed-3/mlp.0/weight", "π", &"x".repeat(256)] {
            assert_eq!(check_tensor(good), Ok(()));
        }
        for bad in ["", "a\nb", "\u{7f}", "\0", &"x".repeat(257)] {
            assert!(check_tensor(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn a_configuration_digest_is_one_short_line() {
        for good in ["", "blake3:00ff", &"x".repeat(256)] {
            assert_eq!(check_config_digest(good), Ok(()));
        }
        for bad in ["a\nb", &"x".repeat(257)] {
            assert!(check_config_digest(bad).is_err(), "{bad:?} was accepted");
        }
    }
}
