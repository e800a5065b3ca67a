//! What `esper train --serve` has around its run, for a run of somebody else: `esper bench telemetry-cost`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use esper_disk::StdFs;
use esper_telemetry::TelemetryRecorder;
use leyline::error::BoxError;
use leyline::id::{EpochIndex, RunId};
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, Observer, RunEvent, StepReport};

use crate::progress::{Progress, ProgressMode};
use crate::report::{CONFIG_FILE, DataRecord, RECORD_FILE, RunRecord, Versions};
use crate::run::Interrupt;
use crate::run::folder::RunFolder;
use crate::run::metrics_log::MetricsLog;
use crate::run::watch::Watch;
use crate::serve::{Address, Live, ServeArgs, Server};

/// A run folder, its metrics file, and the server over it, on any free port of this machine; until it is dropped.
#[derive(Debug)]
struct Surrounding {
    watch: Watch,
    _server: Server,
    _folder: RunFolder,
}

/// As [`baselines::work::Surround`] says.
pub(crate) fn surround(
    dir: &Path,
    recorder: &Arc<TelemetryRecorder>,
) -> Result<(SocketAddr, Box<dyn Observer>), String> {
    started(dir, recorder).map_err(|error| format!("{error:#}"))
}

fn started(dir: &Path, recorder: &Arc<TelemetryRecorder>) -> anyhow::Result<(SocketAddr, Box<dyn Observer>)> {
    let folder = RunFolder::create(Arc::new(StdFs), dir)?;
    let (name, command) = ("bench".to_owned(), String::new);
    let record = RunRecord {
        run_id: RunId::new("bench")?,
        versions: Versions::of_this_build(),
        data: DataRecord {
            digest: name.clone(),
            name: name.clone(),
            tokenizer: None,
            num_train: 0,
            num_validation: 0,
            num_test: 0,
        },
        device: name,
        seed: 0,
        started_unix_ms: 0,
        resumed: None,
        resume_command: command(),
        reproduce_command: command(),
    };
    folder.write(RECORD_FILE, &serde_json::to_string(&record)?)?;
    folder.write(CONFIG_FILE, "")?;
    let log = MetricsLog::open(Arc::clone(folder.fs()), &folder.metrics(), EpochIndex(0))?;
    let live = Arc::new(Live::default());
    let any_port = ServeArgs { serve: Some(Address((Ipv4Addr::LOCALHOST, 0).into())), serve_remote: false };
    let bound = any_port.bind()?.expect("an address was asked for");
    let address = bound.address();
    let _server = bound.start(folder.path().to_owned(), recorder, Arc::clone(&live))?;
    let progress = Progress::new(ProgressMode::Off, u64::MAX);
    let watch = Watch::new(log, &**recorder, progress, Interrupt::default(), live);
    Ok((address, Box::new(Surrounding { watch, _server, _folder: folder })))
}

impl Observer for Surrounding {
    fn step(&mut self, report: &StepReport<'_>) -> Flow {
        self.watch.step(report)
    }

    fn event(&mut self, event: &RunEvent<'_>) {
        self.watch.event(event);
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        self.watch.epoch_finished(report)
    }
}

#[cfg(test)]
mod tests {
    use baselines::hostile::ask;
    use leyline::id::StepIndex;

    use super::*;
    use crate::report::testing::epoch;
    use crate::serve::testing::recorder;

    #[test]
    fn a_run_that_goes_back_is_shown_without_the_epochs_that_are_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (address, mut observer) = surround(&dir.path().join("run"), &recorder()).unwrap();
        (1..=3).for_each(|number| observer.epoch_finished(&epoch(number)).unwrap());
        let (from, to) = (StepIndex(3), StepIndex(2));
        observer.event(&RunEvent::RolledBack { from, to, epoch: EpochIndex(2), culprit: "", rate_factor: 1.0 });
        let (status, page) = ask(address, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(status == 200 && page.contains("<main data-revision=\"4\">"), "{status}: {page}");
    }
}
