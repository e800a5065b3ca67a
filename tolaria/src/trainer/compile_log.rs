//! What became of compiled steps: telemetry, the last report, the last refusal.

use std::sync::Arc;

use leyline::telemetry::Recorder;

use crate::telemetry as desc;
use crate::trainer::compile::{EpochTally, Notice, Taken};
use crate::trainer::instruments::CompileInstruments;
use esper_graph::{CompileReport, Refusal};

#[derive(Debug)]
pub(super) struct CompileLog {
    instruments: CompileInstruments,
    report: Option<CompileReport>,
    refusal: Option<Refusal>,
    tally: EpochTally,
    num_replays: u64,
}

impl CompileLog {
    pub(super) fn new(recorder: &Arc<dyn Recorder>) -> Self {
        Self {
            instruments: CompileInstruments::new(recorder),
            report: None,
            refusal: None,
            tally: EpochTally::default(),
            num_replays: 0,
        }
    }

    /// Notes a step; `None` ran eagerly. `warmup_remaining`: absent where steps are not compiled.
    pub(super) fn step(&mut self, taken: Option<Taken>, warmup_remaining: Option<u32>) {
        self.tally.note(taken);
        let is_compiled = taken == Some(Taken::Compiled);
        self.instruments.enabled.set(f64::from(u8::from(is_compiled)));
        self.instruments.warmup_remaining.set_or_clear(warmup_remaining.map(f64::from));
        if is_compiled {
            self.num_replays += 1;
            self.instruments.replays_total.add(1);
        }
    }

    /// Tells about a shape of step; `report` is that of its compiled graph, when it has one.
    pub(super) fn notice(&mut self, notice: Notice, report: Option<CompileReport>) {
        match notice {
            Notice::Enabled => {
                if let Some(report) = &report {
                    self.instruments.compiled(report);
                }
                self.report = report;
            }
            Notice::FellBack(refusal) => {
                self.instruments.fell_back(&desc::COMPILE_FALLBACK, &refusal);
                self.refusal = Some(refusal);
            }
            Notice::FellBackAtReplay(refusal) => {
                self.instruments.fell_back(&desc::COMPILE_RUNTIME_FALLBACK, &refusal);
                self.refusal = Some(refusal);
            }
            Notice::Searched(refusal) => {
                self.instruments.searched(&refusal);
                self.refusal = Some(refusal);
            }
        }
    }

    /// Ends the epoch.
    pub(super) fn finish_epoch(&mut self, replay_ms: Option<f64>) {
        self.instruments.replay_ms.set_or_clear(replay_ms);
        if self.tally.finish() {
            self.instruments.compiled_epochs.add(1);
        }
    }

    pub(super) fn report(&self) -> Option<&CompileReport> {
        self.report.as_ref()
    }

    pub(super) fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_ref()
    }

    pub(super) fn num_replays(&self) -> u64 {
        self.num_replays
    }
}
