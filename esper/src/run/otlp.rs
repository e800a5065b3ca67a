//! `esper train --otlp`: telemetry to an OpenTelemetry collector, in a build with the feature `otlp`.

use std::sync::Arc;

use clap::Args;
use esper_telemetry::sink::Sink;
use leyline::clock::Clock;
use leyline::id::RunId;

use crate::exit::UsageError;

/// Flags about a collector.
#[derive(Debug, Clone, Default, Args)]
pub struct OtlpArgs {
    /// Send metrics and events to an OpenTelemetry collector, `http://HOST:PORT` like `http://127.0.0.1:4318`, in a build with `--features otlp`.
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,
    /// Let `--otlp` name another machine. What is sent there can be read and changed on the way.
    #[arg(long, requires = "otlp")]
    pub otlp_remote: bool,
}

/// A collector that was asked for.
#[derive(Debug)]
pub(crate) struct Collector {
    #[cfg(feature = "otlp")]
    endpoint: esper_telemetry::sink::Endpoint,
    #[cfg(not(feature = "otlp"))]
    never: std::convert::Infallible,
}

impl OtlpArgs {
    /// Looks at what was asked for. Nothing is sent.
    ///
    /// # Errors
    /// [`UsageError`] for what is no address, for another machine without `--otlp-remote`, and in a build that sends nothing.
    #[cfg(feature = "otlp")]
    pub(crate) fn collector(&self) -> Result<Option<Collector>, UsageError> {
        let Some(url) = &self.otlp else { return Ok(None) };
        let refused = |problem: &str| UsageError(format!("--otlp {url}: {problem}"));
        let endpoint: esper_telemetry::sink::Endpoint = url.parse().map_err(refused)?;
        if !endpoint.is_local() && !self.otlp_remote {
            return Err(refused(
                "another machine, and what is sent there is not encrypted; expected --otlp-remote beside it, or a collector on this machine like \
                 http://127.0.0.1:4318",
            ));
        }
        Ok(Some(Collector { endpoint }))
    }

    /// As with the feature.
    #[cfg(not(feature = "otlp"))]
    pub(crate) fn collector(&self) -> Result<Option<Collector>, UsageError> {
        match &self.otlp {
            None => Ok(None),
            Some(url) => Err(UsageError(format!(
                "--otlp {url}: this build sends nothing to collectors; expected one with `--features otlp`"
            ))),
        }
    }
}

impl Collector {
    /// The sink of a run that begins now.
    #[cfg(feature = "otlp")]
    pub(crate) fn sink(self, run: &RunId, clock: &Arc<dyn Clock>) -> Box<dyn Sink> {
        Box::new(esper_telemetry::sink::OtlpSink::new(self.endpoint, run, Arc::clone(clock)))
    }

    #[cfg(not(feature = "otlp"))]
    pub(crate) fn sink(self, _run: &RunId, _clock: &Arc<dyn Clock>) -> Box<dyn Sink> {
        match self.never {}
    }
}
