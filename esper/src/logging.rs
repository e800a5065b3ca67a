//! Diagnostic lines on standard error; `RUST_LOG` chooses which, warnings when it is not set.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Installs the subscriber. A second call changes nothing.
pub fn init() {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into()).from_env_lossy();
    // It fails only when a subscriber is installed already, and then that one stays.
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().try_init().ok();
}
