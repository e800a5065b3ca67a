//! `esper train --serve`: what a run is like while it trains, over HTTP, to be read only.
//!
//! ```text
//!   thread that trains ── step, epoch (atomics) ──► Live ─────┐
//!   recorder           ── series (atomics) ───────► Exposition ├─► thread "esper-serve" ─► /metrics /healthz /readyz
//!   run folder         ── metrics.jsonl ──────────► report ────┘                           / /live.js /events
//! ```
//!
//! *Invariants*: the thread that trains never waits for this one, nor does anything else of the run; nothing is written;
//! memory and processor time are bounded whatever is asked (`http.rs`); every answer is about this run alone.
//!
//! *Not here*: the charts ([`crate::report`]), names and units ([`esper_telemetry`]), any way to change a run.

mod address;
mod live;
mod answers;
mod events;
mod http;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::Context as _;
use clap::Args;
use esper_telemetry::TelemetryRecorder;

pub use self::address::Address;
use self::answers::Answers;
pub(crate) use self::live::Live;
use self::live::State;
use crate::exit::UsageError;

/// Flags about serving.
#[derive(Debug, Clone, Default, Args)]
pub struct ServeArgs {
    /// Serve a live page, and metrics for Prometheus, while the run lasts: `http://ADDR/` and `http://ADDR/metrics`.
    /// ADDR is `IP:PORT`, or a port of this machine alone.
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "127.0.0.1:9464")]
    pub serve: Option<Address>,
    /// Let `--serve` listen on an address that other machines reach. Whoever reaches it reads, without being asked who they are.
    #[arg(long, requires = "serve")]
    pub serve_remote: bool,
}

/// An address that is taken, with nobody who answers yet.
#[derive(Debug)]
pub(crate) struct Bound {
    listener: TcpListener,
    address: SocketAddr,
}

/// Answers until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    live: Arc<Live>,
    thread: Option<JoinHandle<()>>,
}

impl ServeArgs {
    /// Takes the address, if one was asked for. Nothing of the run is there yet.
    ///
    /// # Errors
    /// [`UsageError`] for an address that others reach without `--serve-remote`, and for one that cannot be had.
    pub(crate) fn bind(&self) -> Result<Option<Bound>, UsageError> {
        let Some(Address(asked)) = self.serve else { return Ok(None) };
        if !asked.ip().is_loopback() && !self.serve_remote {
            return Err(UsageError(format!(
                "--serve {asked}: other machines reach this address, and whoever reaches it reads; \
                 expected --serve-remote beside it, or an address like 127.0.0.1:{}",
                asked.port()
            )));
        }
        let bind = || {
            let listener = TcpListener::bind(asked)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            io::Result::Ok(Bound { listener, address })
        };
        bind()
            .map(Some)
            .map_err(|error| UsageError(format!("--serve {asked}: {error}; expected an address that is free")))
    }
}

impl Bound {
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where a browser finds the page.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Answers from now on, on a thread of its own.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub(crate) fn start(
        self,
        folder: PathBuf,
        recorder: &Arc<TelemetryRecorder>,
        live: Arc<Live>,
    ) -> anyhow::Result<Server> {
        let is_local = self.address.ip().is_loopback();
        if !is_local {
            tracing::warn!("whoever reaches {} reads the state of this run", self.address);
        }
        let answers = Answers::new(folder, Arc::clone(recorder), Arc::clone(&live), is_local);
        let serve = move || {
            if let Err(error) = http::serve(self.listener, answers) {
                tracing::error!("nothing is served any more: {error}; the run goes on");
            }
        };
        let thread = thread::Builder::new().name("esper-serve".to_owned()).spawn(serve).context("serving")?;
        Ok(Server { live, thread: Some(thread) })
    }
}

impl Drop for Server {
    /// Who watches gets the end to see, for two seconds at most.
    fn drop(&mut self) {
        self.live.set_state(State::Ended);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that serves panicked");
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use esper_telemetry::{Catalogue, QueueConfig};
    use leyline::clock::SystemClock;
    use leyline::id::RunId;

    use super::*;

    /// One that takes nothing.
    pub(crate) fn recorder() -> Arc<TelemetryRecorder> {
        let (run, catalogue) = (RunId::new("run-1").unwrap(), Catalogue::new(&[]).unwrap());
        let clock = Arc::new(SystemClock::new());
        TelemetryRecorder::start(run, catalogue, Vec::new(), QueueConfig::default(), clock).unwrap().0
    }
}
