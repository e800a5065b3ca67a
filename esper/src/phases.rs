//! Where the time goes: the phases of [`tolaria::trainer::phase`] as a table and as a Chrome trace, and as ranges in NVIDIA's profilers.
//!
//! Recorded where `esper profile` asks for it, ranges where `ESPER_NVTX` does; otherwise nobody subscribes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use esper_graph::Nvtx;
use leyline::clock::{Clock, SystemClock};
use serde_json::json;
use tracing::span::Id;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// Most spans of the trace; later ones are in the table only.
const MAX_SPANS: usize = 500_000;

/// The span that all others of its thread are in.
const WHOLE: &str = "epoch";

static RECORDED: Mutex<Phases> = Mutex::new(Phases { totals: BTreeMap::new(), spans: Vec::new() });

/// What was recorded.
#[derive(Debug, Clone, Default)]
pub(crate) struct Phases {
    totals: BTreeMap<&'static str, Total>,
    spans: Vec<Span>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Total {
    count: u64,
    time: Duration,
    /// Without the phases inside.
    own: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Span {
    name: &'static str,
    thread: u64,
    began: Duration,
    took: Duration,
}

/// A span that is open, and the time that those inside took.
struct Open {
    name: &'static str,
    began: Duration,
    inside: Duration,
}

thread_local! {
    static OPEN: RefCell<Vec<Open>> = const { RefCell::new(Vec::new()) };
    static THREAD: u64 = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

/// What was recorded so far.
pub(crate) fn recorded() -> Phases {
    lock().clone()
}

fn lock() -> MutexGuard<'static, Phases> {
    RECORDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records phases while it is part of the subscriber.
#[derive(Debug)]
pub(crate) struct PhaseLayer {
    clock: SystemClock,
}

impl PhaseLayer {
    pub(crate) fn new() -> Self {
        Self { clock: SystemClock::new() }
    }

    /// Whether a span is recorded.
    pub(crate) fn wants(metadata: &Metadata<'_>) -> bool {
        metadata.target() == tolaria::trainer::phase::TARGET
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for PhaseLayer {
    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        let Some(metadata) = context.metadata(id) else { return };
        let open = Open { name: metadata.name(), began: self.clock.now(), inside: Duration::ZERO };
        OPEN.with_borrow_mut(|all| all.push(open));
    }

    fn on_exit(&self, _id: &Id, _context: Context<'_, S>) {
        let now = self.clock.now();
        let closed = OPEN.with_borrow_mut(|all| {
            let closed = all.pop()?;
            if let Some(around) = all.last_mut() {
                around.inside += now.saturating_sub(closed.began);
            }
            Some(closed)
        });
        if let Some(closed) = closed {
            lock().add(&closed, now, THREAD.with(|thread| *thread));
        }
    }
}

/// Makes a range of each phase, for who shows ranges.
#[derive(Debug)]
pub(crate) struct RangeLayer<R>(pub(crate) R);

/// Who shows ranges of a thread that are inside each other.
pub(crate) trait Ranges {
    /// Begins one.
    fn push(&self, name: &CStr);
    /// Ends the one that began last.
    fn pop(&self);
}

impl Ranges for Nvtx {
    fn push(&self, name: &CStr) {
        Nvtx::push(self, name);
    }

    fn pop(&self) {
        Nvtx::pop(self);
    }
}

impl<R: Ranges + 'static, S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for RangeLayer<R> {
    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        let name = context.metadata(id).map_or("", Metadata::name);
        // One that has no name still has an end.
        self.0.push(&CString::new(name).unwrap_or_default());
    }

    fn on_exit(&self, _id: &Id, _context: Context<'_, S>) {
        self.0.pop();
    }
}

impl Phases {
    fn add(&mut self, Open { name, began, inside }: &Open, now: Duration, thread: u64) {
        let took = now.saturating_sub(*began);
        let total = self.totals.entry(name).or_default();
        total.count += 1;
        total.time += took;
        total.own += took.saturating_sub(*inside);
        if self.spans.len() < MAX_SPANS {
            self.spans.push(Span { name, thread, began: *began, took });
        }
    }

    /// Each phase: how often, how long in all and at a time, and which part of the epochs. What is left of them stands as
    /// `other`; a phase that runs beside them has no part of them.
    pub(crate) fn table(&self) -> String {
        let epochs = self.totals.get(WHOLE).copied().unwrap_or_default();
        let mut rows: Vec<(&str, Total)> = self.totals.iter().map(|(name, total)| (*name, *total)).collect();
        rows.sort_by_key(|(_, total)| std::cmp::Reverse(total.own));
        let mut out = format!("{:<12}{:>9}{:>12}{:>12}{:>9}\n", "phase", "times", "total s", "mean ms", "share");
        for (name, total) in rows {
            let name = if name == WHOLE { "other" } else { name };
            let share = match name {
                "write" => "beside".to_owned(),
                _ => format!(
                    "{:.1}%",
                    100.0 * total.own.as_secs_f64() / epochs.time.as_secs_f64().max(f64::MIN_POSITIVE)
                ),
            };
            let (seconds, times) = (total.own.as_secs_f64(), total.count);
            let mean_ms = seconds * 1e3 / times as f64;
            writeln!(out, "{name:<12}{times:>9}{seconds:>12.3}{mean_ms:>12.3}{share:>9}").expect("a string takes it");
        }
        out
    }

    /// The spans in the format of Chrome's traces, in microseconds.
    pub(crate) fn chrome_trace(&self) -> String {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let event = |span: &Span| {
            let (began, took) = (micros(span.began), micros(span.took));
            json!({"name": span.name, "ph": "X", "ts": began, "dur": took, "pid": 1, "tid": span.thread})
        };
        json!({"displayTimeUnit": "ms", "traceEvents": self.spans.iter().map(event).collect::<Vec<_>>()}).to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tracing_subscriber::filter::filter_fn;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn shares_are_of_the_epochs_and_what_no_phase_took_is_other() {
        let mut phases = Phases::default();
        phases.add(&Open { name: "load", began: ms(0), inside: ms(0) }, ms(10), 1);
        phases.add(&Open { name: "load", began: ms(50), inside: ms(0) }, ms(60), 1);
        phases.add(&Open { name: "decide", began: ms(60), inside: ms(25) }, ms(90), 1);
        phases.add(&Open { name: "write", began: ms(60), inside: ms(0) }, ms(160), 2);
        phases.add(&Open { name: WHOLE, began: ms(0), inside: ms(75) }, ms(100), 1);
        let rows: Vec<Vec<String>> =
            phases.table().lines().skip(1).map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
        assert_eq!(
            rows,
            [
                ["write", "1", "0.100", "100.000", "beside"],
                ["other", "1", "0.025", "25.000", "25.0%"],
                ["load", "2", "0.020", "10.000", "20.0%"],
                ["decide", "1", "0.005", "5.000", "5.0%"],
            ]
        );
        let trace: serde_json::Value = serde_json::from_str(&phases.chrome_trace()).unwrap();
        let event = &trace["traceEvents"][1];
        assert_eq!((&event["name"], &event["ts"], &event["dur"]), (&"load".into(), &50e3.into(), &10e3.into()));
    }

    #[test]
    fn ranges_are_those_of_the_phases_inside_each_other_and_of_nothing_else() {
        #[derive(Debug, Clone, Default)]
        struct Shown(Arc<Mutex<Vec<String>>>);
        impl Ranges for Shown {
            fn push(&self, name: &CStr) {
                self.0.lock().unwrap().push(name.to_str().unwrap().to_owned());
            }

            fn pop(&self) {
                self.0.lock().unwrap().push("end".to_owned());
            }
        }
        let shown = Shown::default();
        let layer = RangeLayer(shown.clone()).with_filter(filter_fn(PhaseLayer::wants));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let _epoch = tracing::trace_span!(target: tolaria::trainer::phase::TARGET, "epoch").entered();
            tracing::error_span!("of somebody else").in_scope(|| ());
            tracing::trace_span!(target: tolaria::trainer::phase::TARGET, "load").in_scope(|| ());
        });
        assert_eq!(*shown.0.lock().unwrap(), ["epoch", "load", "end", "end"]);
    }

    #[test]
    fn without_epochs_there_is_a_table_without_rows() {
        assert_eq!(Phases::default().table().lines().count(), 1);
    }
}
