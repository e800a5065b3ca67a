//! The programs of Prometheus.

use std::path::PathBuf;

use super::programs::on_path;

/// A program of Prometheus, if it is there.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let found = on_path(std::env::var_os("ESPER_PROMETHEUS").map(PathBuf::from), name);
    if found.is_none() {
        assert!(std::env::var_os("ESPER_REQUIRE_PROMETHEUS").is_none(), "{name} is required and is not installed");
        println!(
            "{name} is not installed: nothing was tested (apt-get install prometheus, or ESPER_PROMETHEUS=FOLDER)"
        );
    }
    found
}
