//! Rewrites a recorded region in a thread of its own.
//!
//! ```text
//!   two drafts ─► read ─► lift ─► the same step? ─► passes ─► kernels ─► new graph ─► executable ─► poll, wait
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Duration;

use cudarc::driver::CudaFunction;
use leyline::clock::{Clock as _, SystemClock};

use super::background::{Background, Unwanted, join_abandoned, not_compiled};
use super::capture::text_of;
use super::compiled::CompiledGraph;
use super::draft::Draft;
use super::driver::{enter, refused};
use super::emit::{Emitted, Emitter};
use super::feed::FeedNode;
use super::generated::{Modules, prepare};
use super::lookup::DeviceMemory;
use super::raw::RawExec;
use super::read::Reading;
use super::session::Session;
use super::side::{Arena, SideStream};
use super::verify::copied_bytes;
use crate::compile::{
    CompileError, Compiled, Edges, Lifetime, Lifted, NodeKind, Pass, PassSet, Program, Recorded, compare_twins,
    compile, lift,
};
use crate::compile_report::{CompileOptions, CompileReport, CompileTimes};
use crate::kernel_cache::KernelCache;
use crate::kernels::copying_kernel;
use crate::launch::Span;
use crate::reason::{Refusal, Stage};
use crate::translate::{Places, written_spans};

/// A recorded region that is being rewritten in the background. Dropping it does not wait: the thread stops at the next
/// opportunity and lets go of what it has.
pub struct Compilation {
    work: Background<Rewritten>,
    session: Session,
    /// The thread that recorded.
    thread: ThreadId,
}

/// What the thread makes: everything but the thread that it is replayed on.
pub(super) struct Rewritten {
    pub(super) exec: RawExec,
    pub(super) feed: Option<FeedNode>,
    pub(super) once: Option<RawExec>,
    /// Freed after the graphs that use it: the order of fields is the order of drops.
    pub(super) arena: Arena,
    /// What of the arena nothing writes once and for all.
    pub(super) changing: Vec<Range<usize>>,
    /// For copies of `written`.
    pub(super) copies: Arena,
    pub(super) modules: Modules,
    /// Allocations of others that it points at, by address.
    pub(super) outside: Vec<(u64, usize)>,
    /// What both graphs must agree in.
    pub(super) written: Vec<Span>,
    /// Whether zeros may differ in their sign.
    pub(super) allows_signs: bool,
    pub(super) report: CompileReport,
    /// What it was made from.
    pub(super) source: Box<Source>,
}

/// What the thread is given.
struct Job {
    session: Session,
    drafts: [Draft; 2],
    side: Arc<SideStream>,
    /// Memory whose bytes mean nothing after a step.
    scratch: Range<u64>,
    options: CompileOptions,
    /// What a graph that is fed begins with.
    copying: Option<CudaFunction>,
}

/// What graphs of a region are made from, with any set of passes.
pub(super) struct Source {
    job: Job,
    reading: Reading,
    pub(super) lifted: Lifted,
    num_moved_addresses: usize,
}

// SAFETY: the handles of the reading are those of a draft that goes along, and a draft may be sent.
unsafe impl Send for Source {}

impl Compilation {
    /// Rewrites a region, of which there are two recordings, in a thread of its own. The session's stream must not be
    /// recording; afterwards it may.
    #[must_use]
    pub fn start(session: &Session, drafts: [Draft; 2], options: CompileOptions) -> Self {
        let thread = drafts[0].thread;
        let work = match job(session, drafts, options) {
            Err(refusal) => Background::refused(refusal),
            Ok(job) => Background::start(|unwanted| guarded(|| job.rewrite(unwanted))),
        };
        Self { work, session: session.clone(), thread }
    }

    /// Makes a graph of the same region with other passes.
    pub(super) fn again(source: Box<Source>, passes: PassSet) -> Self {
        let (session, thread) = (source.job.session.clone(), source.job.drafts[0].thread);
        let build = move |unwanted: &Unwanted| {
            let clock = SystemClock::new();
            enter(source.job.session.context()).map_err(refused("cuCtxSetCurrent", Stage::Compile))?;
            source.build(&passes, &clock, unwanted)
        };
        Self { work: Background::start(|unwanted| guarded(|| build(unwanted))), session, thread }
    }

    /// Waits for the threads of compilations that were dropped before they were over. A process should not end while one
    /// of them is inside the driver.
    ///
    /// # Sync
    /// waits for threads, which stop at the next opportunity
    pub fn join_abandoned() {
        join_abandoned();
    }

    /// The rewritten region, or why there is none, once it is there; afterwards nothing more.
    ///
    /// # Sync
    /// none
    pub fn poll(&mut self) -> Option<Result<CompiledGraph, Refusal>> {
        let result = self.work.poll()?;
        Some(result.map(|rewritten| CompiledGraph::new(rewritten, self.session.clone(), self.thread)))
    }

    /// Waits for it.
    ///
    /// # Errors
    /// [`Refusal::NotCompiled`] and [`Refusal::Driver`]: the region goes on as it was recorded. The same when the result
    /// was taken before.
    /// # Sync
    /// waits for the thread, not for the device
    pub fn wait(self) -> Result<CompiledGraph, Refusal> {
        let Self { work, session, thread } = self;
        work.wait().map(|rewritten| CompiledGraph::new(rewritten, session, thread))
    }
}

impl fmt::Debug for Compilation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compilation").finish_non_exhaustive()
    }
}

/// The last step of a thread: a panic is a refusal. What the work holds is let go of in here.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| Err(not_compiled("panicked", text_of(&*payload))))
}

/// An error with everything that caused it.
pub(super) fn text_of_error(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

fn job(session: &Session, drafts: [Draft; 2], options: CompileOptions) -> Result<Job, Refusal> {
    if drafts[0].thread != drafts[1].thread {
        return Err(Refusal::OtherThread);
    }
    if drafts.iter().any(|draft| !Arc::ptr_eq(draft.session.context(), session.context())) {
        return Err(not_compiled("other_device", "the drafts are those of another device"));
    }
    // Constants that the regions read may still be on their way to the device.
    let side = SideStream::after(session)?;
    // Loaded here: an error that is parked in the context is for the thread that trains.
    let copying = options.is_fed.then(|| copying_kernel(session.device())).transpose();
    let copying = copying.map_err(|error| not_compiled("no_copying", error.to_string()))?;
    let (session, scratch) = (session.clone(), session.workspace());
    Ok(Job { session, drafts, side, scratch, options, copying })
}

impl Job {
    fn rewrite(mut self, unwanted: &Unwanted) -> Result<Rewritten, Refusal> {
        enter(self.session.context()).map_err(refused("cuCtxSetCurrent", Stage::Compile))?;
        let clock = SystemClock::new();
        let cache = self.options.kernel_cache.as_ref().map(KernelCache::new);
        if cache.as_ref().is_none_or(KernelCache::is_empty) {
            // There will be something to compile: the compiler gets ready while the program is made.
            prepare(self.session.context());
        }
        let (reading, lifted, num_moved_addresses) = self.lift(unwanted)?;
        let passes = self.options.passes.clone();
        Box::new(Source { job: self, reading, lifted, num_moved_addresses }).build(&passes, &clock, unwanted)
    }

    /// Reads both recordings and confirms that they are the same step. Each has a thread.
    fn lift(&mut self, unwanted: &Unwanted) -> Result<(Reading, Lifted, usize), Refusal> {
        let [first, second] = &mut self.drafts;
        let context = self.session.context();
        // Of the second recording the program is enough: what is emitted takes its kernels from the first.
        let (mut first, mut second) = both(
            || Reading::of(&first.graph, &first.declared),
            // The draft is lent as a whole: a graph is read by one thread at a time.
            move || {
                enter(context).map_err(refused("cuCtxSetCurrent", Stage::Compile))?;
                let second = &*second;
                Reading::of(&second.graph, &second.declared).map(|reading| reading.recorded)
            },
        )?;
        if let Some(fault) = self.options.fault {
            fault
                .plant_in_recordings([&mut first.recorded, &mut second])
                .map_err(|message| not_compiled("fault", message))?;
        }
        unwanted.check()?;
        let side = &self.side;
        let lift = |recorded: &Recorded| {
            let mut memory = DeviceMemory::new(side);
            lift(recorded, &mut memory).map_err(|error| not_compiled("not_lifted", text_of_error(&error)))
        };
        let recorded = &first.recorded;
        let (lifted, twin) = both(
            || lift(recorded),
            || {
                enter(context).map_err(refused("cuCtxSetCurrent", Stage::Compile))?;
                lift(&second)
            },
        )?;
        let num_moved = compare_twins((&first.recorded, &lifted), (&second, &twin))
            .map_err(|error| not_compiled("not_twins", text_of_error(&error)))?;
        // Where nothing moved, the comparison says nothing about numbers that look like addresses.
        if num_moved == 0 && lifted.program.blocks.iter().any(|block| block.lifetime == Lifetime::Graph) {
            return Err(not_compiled("not_moved", "both recordings have their memory at the same addresses"));
        }
        Ok((first, lifted, num_moved))
    }

    /// Confirms that there is memory for the new graph, with as much again left for eager work beside it.
    fn check_room(&self, bytes: usize) -> Result<(), Refusal> {
        let available = self.session.available()?;
        let needed = 2 * bytes as u64;
        if needed <= available {
            return Ok(());
        }
        let message = format!("the new graph and its verification take {bytes} bytes, and {available} are available");
        Err(not_compiled("no_memory", message))
    }
}

impl Source {
    /// The set of passes that was asked for, and the folder for generated kernels.
    pub(super) fn options(&self) -> &CompileOptions {
        &self.job.options
    }

    /// Makes a graph. What was done before is the lift, by the clock.
    fn build(
        self: Box<Self>,
        passes: &PassSet,
        clock: &SystemClock,
        unwanted: &Unwanted,
    ) -> Result<Rewritten, Refusal> {
        let Self { job: Job { session, side, scratch, options, copying, .. }, reading, lifted, .. } = &*self;
        let mut times = CompileTimes { lift: clock.now(), ..CompileTimes::default() };
        unwanted.check()?;

        let mark = clock.now();
        let compiled = compile(&lifted.program, passes);
        let compiled = compiled.map_err(|error| {
            let why = if matches!(error, CompileError::TooLong { .. }) { "too_long" } else { "not_valid" };
            not_compiled(why, text_of_error(&error))
        })?;
        let Compiled { program, once, .. } = &compiled;
        times.passes = clock.now() - mark;
        unwanted.check()?;

        let mark = clock.now();
        let context = session.context();
        let cache = options.kernel_cache.as_ref().map(KernelCache::new);
        let modules = Modules::of([program, once], context, cache.as_ref())?;
        times.kernels = clock.now() - mark;
        unwanted.check()?;

        let mark = clock.now();
        let places = Places::new(&program.blocks, &lifted.addresses, [program, once])
            .map_err(|block| not_compiled("contradiction", format!("{block} has no address")))?;
        let written = written_spans(&[&lifted.program, program, once], &lifted.addresses, scratch);
        self.job.check_room(places.arena_bytes() + copied_bytes(&written))?;
        let arena = Arena::new(side, places.arena_bytes())?;
        let emitter = Emitter { reading, places: &places, arena: arena.base(), modules: &modules, context };
        let executable = |program: &Program, copying: Option<&CudaFunction>| {
            let overlapping = |overlaps| {
                let emitted = emitter.emit(program, overlaps, copying)?;
                RawExec::instantiate(&emitted.graph, context).map(|exec| (exec, emitted))
            };
            match overlapping(options.overlap) {
                Err(refusal) if options.overlap => {
                    tracing::debug!(%refusal, "built again, and no kernel starts early");
                    overlapping(false)
                }
                built => built,
            }
        };
        let (exec, Emitted { graph, edges, feed }) = executable(program, copying.as_ref())?;
        let feed = feed.zip(copying.clone()).map(|(node, copying)| FeedNode::new(graph, node, copying));
        let once_exec = (!once.nodes.is_empty()).then(|| executable(once, None)).transpose()?.map(|(exec, _)| exec);
        times.instantiate = clock.now() - mark;

        tracing::debug!(%program, "compiled");
        let copies = Arena::new(side, copied_bytes(&written))?;
        let report = CompileReport {
            passes: compiled.reports.clone(),
            nodes_before: reading.recorded.nodes.len(),
            nodes_after: program.nodes.len(),
            critical_path: program.critical_path(),
            num_dependencies: edges.iter().map(|Edges { full, early }| full.len() + early.len()).sum(),
            num_early: edges.iter().map(|edges| edges.early.len()).sum(),
            kernels: launches(program),
            unknown_kernels: lifted.unknown_kernels.clone(),
            num_moved_addresses: self.num_moved_addresses,
            num_generated: modules.len(),
            num_cached: modules.num_cached(),
            arena_bytes: arena.bytes(),
            times: CompileTimes { verify: Duration::ZERO, ..times },
        };
        let changing = places.gaps(once);
        let blocks = lifted.program.blocks.iter().zip(&lifted.addresses);
        let mut outside: Vec<(u64, usize)> =
            blocks.filter_map(|(block, address)| Some(((*address)?, block.size_bytes))).collect();
        outside.sort_unstable();
        let allows_signs = passes.iter().any(|pass| pass == Pass::ZeroSums);
        Ok(Rewritten {
            exec,
            feed,
            once: once_exec,
            arena,
            changing,
            copies,
            modules,
            outside,
            written,
            allows_signs,
            report,
            source: self,
        })
    }
}

/// Does two things at once, the second in a thread of its own. Of two failures the first counts.
fn both<A, B: Send>(
    first: impl FnOnce() -> Result<A, Refusal>,
    second: impl FnOnce() -> Result<B, Refusal> + Send,
) -> Result<(A, B), Refusal> {
    thread::scope(|scope| {
        let second = thread::Builder::new()
            .spawn_scoped(scope, second)
            .map_err(|error| Refusal::NotCompiled { why: "no_thread", message: error.to_string() })?;
        let first = first();
        let second = second.join().unwrap_or_else(|payload| resume_unwind(payload));
        Ok((first?, second?))
    })
}

/// Launches by kernel.
fn launches(program: &Program) -> BTreeMap<String, usize> {
    let mut launches = BTreeMap::new();
    for node in &program.nodes {
        if let NodeKind::Kernel(kernel) = &node.kind {
            *launches.entry(kernel.name.clone()).or_default() += 1;
        }
    }
    launches
}
