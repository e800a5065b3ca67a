//! Broken sources: sample i has the inputs (i, i + 1) and the target i.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use leyline::source::{Field, SampleSpec, SamplesMut, Source, SourceError};
use leyline_testkit::source::{self as rules, SourceHarness};

use crate::fails;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    CountsItsReads,
    LeavesZerosOut,
    DigestOfItsReads,
    WritesBeforeItChecks,
    TakesAnyLength,
    StandsIn,
    NamesNoPlace,
}

const LEN: usize = 6;

#[derive(Debug)]
struct Rows {
    fault: Fault,
    num_reads: AtomicU32,
    is_damaged: AtomicBool,
}

impl Rows {
    fn row(&self, sample: u32) -> Result<f32, SourceError> {
        let is_lost = self.is_damaged.load(Ordering::Relaxed) && sample > 2;
        match self.fault {
            Fault::CountsItsReads => Ok((sample + self.num_reads.load(Ordering::Relaxed)) as f32),
            Fault::StandsIn if is_lost => Ok(0.0),
            Fault::NamesNoPlace if is_lost => Err(SourceError::corrupt("", "it is shorter").of_sample(sample)),
            _ if is_lost => Err(SourceError::corrupt("rows.bin", "it is shorter").of_sample(sample)),
            _ => Ok(sample as f32),
        }
    }
}

impl Source for Rows {
    fn len(&self) -> usize {
        LEN
    }

    fn spec(&self) -> SampleSpec {
        SampleSpec { inputs: Field::f32([2]), targets: Field::u32([]) }
    }

    fn digest(&self) -> String {
        match self.fault {
            Fault::DigestOfItsReads => format!("rows {}", self.num_reads.load(Ordering::Relaxed)),
            _ => "rows".to_owned(),
        }
    }

    fn read(&self, samples: &[u32], into: &mut SamplesMut<'_>) -> Result<(), SourceError> {
        if self.fault != Fault::TakesAnyLength {
            into.check(&self.spec(), samples.len())?;
        }
        if self.fault != Fault::WritesBeforeItChecks {
            self.check(samples)?;
        }
        self.num_reads.fetch_add(1, Ordering::Relaxed);
        let (inputs, targets) = (into.inputs.as_f32()?, into.targets.as_u32()?);
        for ((row, target), sample) in inputs.chunks_exact_mut(2).zip(targets).zip(samples) {
            if self.fault != Fault::LeavesZerosOut || *sample > 0 {
                row[0] = self.row(*sample)?;
            }
            row[1] = self.row(*sample)? + 1.0;
            *target = *sample;
        }
        self.check(samples)
    }
}

fn rows(fault: Fault) -> impl Fn() -> SourceHarness<Rows> {
    move || SourceHarness {
        source: Rows { fault, num_reads: AtomicU32::new(0), is_damaged: AtomicBool::new(false) },
        damage: Some(Box::new(|rows: &Rows| rows.is_damaged.store(true, Ordering::Relaxed))),
    }
}

mod without_fault {
    use super::{Fault, rows};

    leyline_testkit::source_conformance!(|| rows(Fault::None)());
}

#[test]
fn a_sample_that_depends_on_earlier_reads_fails_so_1() {
    let make = rows(Fault::CountsItsReads);
    fails("SO-1", "are not those read one by one", || rules::so_1_a_sample_follows_from_its_index_alone(&make));
}

#[test]
fn an_element_that_is_not_written_fails_so_2() {
    let make = rows(Fault::LeavesZerosOut);
    fails("SO-2", "is still there", || rules::so_2_a_read_writes_every_element(&make));
}

#[test]
fn a_digest_that_moves_fails_so_3() {
    let make = rows(Fault::DigestOfItsReads);
    fails("SO-3", "a read changes", || rules::so_3_number_shape_and_digest_stay(&make));
}

#[test]
fn a_refused_read_that_wrote_fails_so_4() {
    let make = rows(Fault::WritesBeforeItChecks);
    fails("SO-4", "a refused read wrote", || {
        rules::so_4_what_makes_no_sense_is_refused_before_anything_is_written(&make);
    });
}

#[test]
fn buffers_that_do_not_fit_and_are_taken_fail_so_4() {
    let make = rows(Fault::TakesAnyLength);
    fails("SO-4", "buffers for another number of samples", || {
        rules::so_4_what_makes_no_sense_is_refused_before_anything_is_written(&make);
    });
}

#[test]
fn numbers_that_stand_in_for_lost_ones_fail_so_5() {
    let make = rows(Fault::StandsIn);
    fails("SO-5", "is another one since", || rules::so_5_what_cannot_be_read_is_an_error_with_its_place(&make));
}

#[test]
fn an_error_without_a_place_fails_so_5() {
    let make = rows(Fault::NamesNoPlace);
    fails("SO-5", "names no place", || rules::so_5_what_cannot_be_read_is_an_error_with_its_place(&make));
}
