//! Diagnostic lines on standard error; `RUST_LOG` chooses which, warnings when it is not set.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Installs the subscriber. A second call changes nothing.
pub fn init() {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into()).from_env_lossy();
    // A line that nobody reads is no reason to panic, which the subscriber's own report of it would.
    let lines = tracing_subscriber::fmt().log_internal_errors(false).with_writer(std::io::stderr).without_time();
    // It fails only when a subscriber is installed already, and then that one stays.
    lines.with_env_filter(filter).try_init().ok();
}
