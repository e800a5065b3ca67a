//! Rules SO-1 to SO-5 of [`leyline::source`] as functions, and the harness they run on.

use candle_core::DType;
use leyline::error::ErrorKind;
use leyline::source::{Field, SamplesMut, Source, SourceError, ValuesMut};

use crate::rule::{must, refuse, succeed};

/// Samples that are looked at one by one.
const MOST: usize = 64;
const NUM_THREADS: usize = 4;

/// Damages what the source reads from: shortens its file, removes it.
pub type Damage<S> = Box<dyn FnOnce(&S)>;

/// A source, opened anew by each call that makes a harness.
pub struct SourceHarness<S> {
    /// The source, with at least two samples that differ.
    pub source: S,
    /// What happens to its place while it is read; absent where nothing can happen, as to memory.
    pub damage: Option<Damage<S>>,
}

impl<S> SourceHarness<S> {
    /// A source to which nothing can happen.
    pub fn safe(source: S) -> Self {
        Self { source, damage: None }
    }
}

impl<S: Source> std::fmt::Debug for SourceHarness<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceHarness").field("source", &self.source).finish_non_exhaustive()
    }
}

/// One `#[test]` per rule SO-1 to SO-5. The argument is a function or closure without arguments that builds a fresh
/// [`SourceHarness`](crate::source::SourceHarness).
#[macro_export]
macro_rules! source_conformance {
    ($make:expr) => {
        $crate::__one_test_per_rule!(
            source,
            $make,
            so_1_a_sample_follows_from_its_index_alone,
            so_2_a_read_writes_every_element,
            so_3_number_shape_and_digest_stay,
            so_4_what_makes_no_sense_is_refused_before_anything_is_written,
            so_5_what_cannot_be_read_is_an_error_with_its_place,
        );
    };
}

/// Bits of the inputs and targets of some samples.
type Bits = (Vec<u32>, Vec<u32>);

/// SO-1: the same bits one by one, backwards, twice in one read, and from several threads at once.
pub fn so_1_a_sample_follows_from_its_index_alone<S: Source>(make: &impl Fn() -> SourceHarness<S>) {
    const RULE: &str = "SO-1";
    let source = make().source;
    let samples = first(&source);
    let alone: Vec<Bits> = samples.iter().map(|sample| ok(RULE, &source, &[*sample], 0)).collect();
    must!(RULE, alone.windows(2).any(|pair| pair[0] != pair[1]), "all samples of the harness are the same");
    let joined = |samples: &[u32]| {
        let pick = |of: fn(&Bits) -> &Vec<u32>| samples.iter().flat_map(|s| of(&alone[*s as usize]).clone()).collect();
        (pick(|bits| &bits.0), pick(|bits| &bits.1))
    };
    let backwards: Vec<u32> = samples.iter().rev().copied().collect();
    let again: Vec<u32> = samples.iter().flat_map(|sample| [*sample, samples[0]]).collect();
    for (what, order) in [("together", &samples), ("backwards", &backwards), ("among others", &again)] {
        must!(RULE, ok(RULE, &source, order, 0) == joined(order), "samples read {what} are not those read one by one");
    }
    let (source, backwards) = (&source, &backwards);
    let found: Vec<Bits> = std::thread::scope(|scope| {
        let read = |_| scope.spawn(move || (0..8).map(|_| ok(RULE, source, backwards, 0)).next_back());
        let threads: Vec<_> = (0..NUM_THREADS).map(read).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
    });
    must!(RULE, found.len() == NUM_THREADS, "a thread that reads beside others panics");
    must!(RULE, found.iter().all(|bits| *bits == joined(backwards)), "threads that read at once read other samples");
}

/// SO-2: what was in a buffer before makes no difference.
pub fn so_2_a_read_writes_every_element<S: Source>(make: &impl Fn() -> SourceHarness<S>) {
    const RULE: &str = "SO-2";
    let source = make().source;
    let samples = first(&source);
    let clean = ok(RULE, &source, &samples, 0);
    must!(RULE, ok(RULE, &source, &samples, 0x7FC0_1234) == clean, "what was in the buffers is still there");
    must!(RULE, ok(RULE, &source, &[], 0) == (Vec::new(), Vec::new()), "no samples are not read as none");
}

/// SO-3: reading changes neither number nor shape nor digest, and a source that is opened again has the same.
pub fn so_3_number_shape_and_digest_stay<S: Source>(make: &impl Fn() -> SourceHarness<S>) {
    const RULE: &str = "SO-3";
    let (source, again) = (make().source, make().source);
    let told = |source: &S| (source.len(), source.spec(), source.digest());
    let before = told(&source);
    must!(RULE, !before.2.is_empty(), "there is no digest");
    must!(RULE, source.is_empty() == (before.0 == 0), "`is_empty` contradicts `len`");
    ok(RULE, &source, &first(&source), 0);
    must!(RULE, told(&source) == before, "a read changes number, shape or digest");
    must!(RULE, told(&again) == before, "a source of the same samples tells another number, shape or digest");
    for (what, count) in
        [("lengths", source.lengths().map(<[u32]>::len)), ("weights", source.weights().map(<[f64]>::len))]
    {
        must!(RULE, count.is_none_or(|count| count == before.0), "there are {count:?} {what} of {} samples", before.0);
    }
}

/// SO-4: an index outside and buffers that do not fit are refused, and the buffers are as they were.
pub fn so_4_what_makes_no_sense_is_refused_before_anything_is_written<S: Source>(make: &impl Fn() -> SourceHarness<S>) {
    const RULE: &str = "SO-4";
    const MARK: u32 = 0x7FC0_4321;
    let source = make().source;
    let outside = u32::try_from(source.len()).unwrap_or(u32::MAX);
    let mut buffers = Buffers::new(&source, 2, MARK);
    let outcome = source.read(&[0, outside], &mut buffers.samples());
    let text = outcome.as_ref().err().map(ToString::to_string).unwrap_or_default();
    refuse(RULE, &format!("sample {outside} of {}", source.len()), outcome, ErrorKind::Rejected);
    must!(RULE, text.contains(&outside.to_string()), "the refusal does not name the index {outside}: {text}");
    let (inputs, targets) = buffers.bits();
    must!(RULE, inputs.iter().chain(&targets).all(|bits| *bits == MARK), "a refused read wrote into the buffers");
    for count in [1, 3] {
        let mut buffers = Buffers::new(&source, count, MARK);
        refuse(
            RULE,
            "buffers for another number of samples",
            source.read(&[0, 1], &mut buffers.samples()),
            ErrorKind::Rejected,
        );
    }
    let mut turned = Buffers::new(&source, 1, MARK);
    turned.turn();
    refuse(RULE, "buffers of another type", source.read(&[0], &mut turned.samples()), ErrorKind::Rejected);
}

/// SO-5: after the damage a sample is what it was, or an error that names the place and the sample; at least one is.
pub fn so_5_what_cannot_be_read_is_an_error_with_its_place<S: Source>(make: &impl Fn() -> SourceHarness<S>) {
    const RULE: &str = "SO-5";
    let SourceHarness { source, damage } = make();
    let Some(damage) = damage else { return };
    let all: Vec<u32> = (0..u32::try_from(source.len()).unwrap_or(u32::MAX)).collect();
    let before: Vec<Bits> = all.iter().map(|sample| ok(RULE, &source, &[*sample], 0)).collect();
    damage(&source);
    let mut num_lost = 0;
    for (sample, before) in all.iter().zip(&before) {
        match read(&source, &[*sample], 0) {
            Ok(bits) => {
                must!(RULE, bits == *before, "sample {sample} is another one since its place was damaged");
            }
            Err(error) => {
                num_lost += 1;
                let kind = error.kind;
                must!(
                    RULE,
                    matches!(kind, ErrorKind::Io | ErrorKind::Corrupt),
                    "the kind of the error is {kind:?}: {error}"
                );
                must!(RULE, !error.place.is_empty(), "the error names no place: {error}");
                must!(RULE, error.sample == Some(*sample), "the error does not name sample {sample}: {error}");
            }
        }
    }
    must!(RULE, num_lost > 0, "no sample of a damaged place is refused");
}

/// At most [`MOST`] samples, the first ones.
fn first(source: &impl Source) -> Vec<u32> {
    (0..).take(source.len().min(MOST)).collect()
}

fn ok(rule: &str, source: &impl Source, samples: &[u32], fill: u32) -> Bits {
    succeed(rule, "reading", read(source, samples, fill))
}

fn read(source: &impl Source, samples: &[u32], fill: u32) -> Result<Bits, SourceError> {
    let mut buffers = Buffers::new(source, samples.len(), fill);
    source.read(samples, &mut buffers.samples())?;
    Ok(buffers.bits())
}

enum Values {
    F32(Vec<f32>),
    U32(Vec<u32>),
}

impl Values {
    fn new(is_f32: bool, count: usize, fill: u32) -> Self {
        if is_f32 { Self::F32(vec![f32::from_bits(fill); count]) } else { Self::U32(vec![fill; count]) }
    }

    fn of(field: &Field, count: usize, fill: u32) -> Self {
        Self::new(field.dtype() == DType::F32, field.num_elements() * count, fill)
    }

    fn view(&mut self) -> ValuesMut<'_> {
        match self {
            Self::F32(values) => ValuesMut::F32(values),
            Self::U32(values) => ValuesMut::U32(values),
        }
    }

    fn bits(&self) -> Vec<u32> {
        match self {
            Self::F32(values) => values.iter().map(|value| value.to_bits()).collect(),
            Self::U32(values) => values.clone(),
        }
    }

    fn turned(&self) -> Self {
        match self {
            Self::F32(values) => Self::new(false, values.len(), 0),
            Self::U32(values) => Self::new(true, values.len(), 0),
        }
    }
}

struct Buffers {
    inputs: Values,
    targets: Values,
}

impl Buffers {
    fn new(source: &impl Source, count: usize, fill: u32) -> Self {
        let spec = source.spec();
        Self { inputs: Values::of(&spec.inputs, count, fill), targets: Values::of(&spec.targets, count, fill) }
    }

    fn samples(&mut self) -> SamplesMut<'_> {
        SamplesMut { inputs: self.inputs.view(), targets: self.targets.view() }
    }

    fn bits(&self) -> Bits {
        (self.inputs.bits(), self.targets.bits())
    }

    fn turn(&mut self) {
        (self.inputs, self.targets) = (self.inputs.turned(), self.targets.turned());
    }
}
