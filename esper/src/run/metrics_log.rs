//! `metrics.jsonl`: one epoch, one line; a resumed run drops the lines after its checkpoint.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use esper_disk::{Fs, FsFile, Open, replace_file};
use esper_telemetry::set_aside;
use leyline::id::EpochIndex;
use tolaria::trainer::report::EpochReport;

/// Appends epochs to the file.
#[derive(Debug)]
pub(super) struct MetricsLog {
    fs: Arc<dyn Fs>,
    path: PathBuf,
    file: Box<dyn FsFile>,
    /// Where the lines that are durable end, bytes.
    end: u64,
    /// Epochs, and their lines, that could not be written yet.
    waiting: Vec<(u64, String)>,
    /// The run went back, and lines of later epochs than this one could not be removed yet.
    cut: Option<EpochIndex>,
    /// Epoch of the last line.
    last: u64,
}

impl MetricsLog {
    /// Opens the file for a run that has completed `epoch` epochs: whole lines of up to that epoch are kept, later ones
    /// and a torn last line go. A file with a line that is damaged is set aside first, with a warning.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub(super) fn open(fs: Arc<dyn Fs>, path: &Path, epoch: EpochIndex) -> anyhow::Result<Self> {
        let open = || {
            // Bytes, not text: a torn line may end inside a character.
            let bytes = match fs.read(path, u64::MAX) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
                Err(error) => return Err(error),
            };
            let Kept { lines, last, num_damaged } = Kept::of(&bytes, epoch);
            if num_damaged > 0 {
                let (path, aside) = (path.display(), set_aside(&*fs, path)?);
                let aside = aside.display();
                tracing::warn!(
                    "{path}: {num_damaged} lines are damaged; it is kept as {aside}, and the other lines stay"
                );
            }
            if last < epoch.0 {
                let path = path.display();
                tracing::warn!("{path}: nothing can be read of the epochs from {} to {epoch}", last + 1);
            }
            replace_file(&*fs, path, &lines)?;
            Ok((fs.open(path, Open::Existing)?, lines.len() as u64, last))
        };
        let (file, end, last) = open().with_context(|| format!("opening {}", path.display()))?;
        Ok(Self { fs, path: path.to_owned(), file, end, waiting: Vec::new(), cut: None, last })
    }

    /// The run went back to where so many epochs were completed: the lines of later ones go.
    ///
    /// # Errors
    /// When the file cannot be read or written now; the next call tries again.
    pub(super) fn go_back(&mut self, epoch: EpochIndex) -> anyhow::Result<()> {
        self.expect_cut(epoch);
        self.finish()
    }

    fn expect_cut(&mut self, epoch: EpochIndex) {
        if epoch.0 < self.last {
            self.waiting.retain(|(waiting, _)| *waiting <= epoch.0);
            self.cut = Some(self.cut.map_or(epoch, |cut| cut.min(epoch)));
            self.last = epoch.0;
        }
    }

    /// Appends one epoch in the place of it and later ones, durably: the checkpoint after it may not know more epochs than the
    /// file. What cannot be written is written with the next epoch, or by [`finish`](Self::finish).
    ///
    /// # Errors
    /// When it cannot be written now.
    pub(super) fn append(&mut self, report: &EpochReport) -> anyhow::Result<()> {
        let line = serde_json::to_string(report).context("writing an epoch as JSON")?;
        self.expect_cut(EpochIndex(report.epoch.0.saturating_sub(1)));
        self.last = report.epoch.0;
        self.waiting.push((report.epoch.0, line + "\n"));
        self.finish()
    }

    /// Writes the lines that wait.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(super) fn finish(&mut self) -> anyhow::Result<()> {
        if let Some(cut) = self.cut {
            let cut = Self::open(Arc::clone(&self.fs), &self.path, cut)?;
            (self.file, self.end, self.cut) = (cut.file, cut.end, None);
        }
        if self.waiting.is_empty() {
            return Ok(());
        }
        // Over what an earlier attempt left. One write, so that a crash tears at most the last line.
        let text: String = self.waiting.iter().map(|(_, line)| line.as_str()).collect();
        let write = || {
            self.file.set_len(self.end)?;
            self.file.write_at(self.end, text.as_bytes())?;
            self.file.sync()
        };
        write().with_context(|| format!("writing {}", self.path.display()))?;
        self.end += text.len() as u64;
        self.waiting.clear();
        Ok(())
    }
}

/// What a resumed run keeps of its file.
struct Kept {
    lines: Vec<u8>,
    /// Epoch of the last of them.
    last: u64,
    num_damaged: usize,
}

impl Kept {
    fn of(bytes: &[u8], epoch: EpochIndex) -> Self {
        let mut kept = Self { lines: Vec::new(), last: 0, num_damaged: 0 };
        let mut readable = Vec::new();
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            match serde_json::from_slice::<EpochReport>(line) {
                Ok(report) => readable.push((report.epoch.0, line.trim_ascii_end())),
                // The writer was cut off.
                Err(error) if error.is_eof() && !line.ends_with(b"\n") => {}
                Err(_) => kept.num_damaged += 1,
            }
        }
        for (index, &(number, line)) in readable.iter().enumerate() {
            // Epochs ascend: a number that skips some and stands in the way of the next one is damaged.
            let is_in_the_way =
                |&(next, _): &(u64, _)| (kept.last + 1..=number).contains(&next) && number > kept.last + 1;
            if number <= kept.last || readable.get(index + 1).is_some_and(is_in_the_way) {
                kept.num_damaged += 1;
            } else if number <= epoch.0 {
                kept.lines.extend_from_slice(line);
                kept.lines.push(b'\n');
                kept.last = number;
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use esper_disk::StdFs;
    use esper_disk::testkit::{Failure, FaultFs};
    use leyline::id::SeedId;
    use leyline::seed::SeedStage;
    use tolaria::trainer::report::TransitionRecord;

    use super::*;
    use crate::report::testing::epoch as report;

    fn open(path: &Path, epoch: EpochIndex) -> anyhow::Result<MetricsLog> {
        MetricsLog::open(Arc::new(StdFs), path, epoch)
    }

    #[test]
    fn lines_that_cannot_be_written_are_written_with_the_next_ones() {
        let mut num_failed = 0;
        for failure in [Failure::Once, Failure::AfterTheEffect, Failure::DiskFull] {
            for n in 0..20 {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("metrics.jsonl");
                let faulty = FaultFs::failing(Arc::new(StdFs), failure, n);
                let Ok(mut log) = MetricsLog::open(Arc::new(faulty), &path, EpochIndex(0)) else { continue };
                let written = [1, 2, 3].map(|epoch| log.append(&report(epoch)).is_ok());
                let finished = log.finish().is_ok();
                drop(log);
                num_failed += u32::from(written.contains(&false));
                assert!(finished || failure == Failure::DiskFull, "{failure:?} of call {n}");
                let lines = Kept::of(&fs::read(&path).unwrap(), EpochIndex(9));
                let least = if finished { 3 } else { written.iter().filter(|written| **written).count() as u64 };
                // Of what a full disk took, too, whole lines may be there.
                assert!((least..=3).contains(&lines.last) && lines.num_damaged == 0, "{failure:?} of call {n}");
            }
        }
        assert!(num_failed > 15, "{num_failed}");
    }

    #[test]
    fn lines_after_the_checkpoint_and_a_torn_line_are_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut log = open(&path, EpochIndex(0)).unwrap();
        for epoch in 1..=3 {
            log.append(&report(epoch)).unwrap();
        }
        fs::write(&path, format!("{}{{\"epoch\":4,", fs::read_to_string(&path).unwrap())).unwrap();
        let mut log = open(&path, EpochIndex(2)).unwrap();
        // The run goes back to the end of epoch 1, and on.
        for (epoch, expected) in [(3, &[1, 2, 3][..]), (2, &[1, 2]), (3, &[1, 2, 3])] {
            log.append(&report(epoch)).unwrap();
            let text = fs::read_to_string(&path).unwrap();
            let epochs: Vec<u64> =
                text.lines().map(|line| serde_json::from_str::<EpochReport>(line).unwrap().epoch.0).collect();
            assert_eq!(epochs, expected);
        }
        // It may end before it has ended any epoch anew.
        for (epoch, lines) in [(4, 3), (1, 1), (1, 1), (0, 0)] {
            log.go_back(EpochIndex(epoch)).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), lines);
        }
        log.append(&report(1)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
    }

    #[test]
    fn a_file_that_is_cut_anywhere_can_be_opened_and_keeps_its_whole_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut log = open(&path, EpochIndex(0)).unwrap();
        for epoch in 1..=2 {
            let reason = "gain 0,5 ± 0,1 – größer als 0 🌱".to_owned();
            let seed = SeedId(1);
            let (from, to) = (SeedStage::Training, SeedStage::Blending);
            let report =
                EpochReport { transitions: vec![TransitionRecord { seed, from, to, reason }], ..report(epoch) };
            log.append(&report).unwrap();
        }
        let whole = fs::read(&path).unwrap();
        assert!(whole.iter().any(|byte| !byte.is_ascii()), "no character takes several bytes");
        for len in 0..=whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            open(&path, EpochIndex(2)).unwrap();
            // The last byte of a line is its line break, without which it is whole too.
            let mut ends = (0..whole.len()).filter(|&at| whole[at] == b'\n' && at <= len);
            let expected = ends.next_back().map_or(&[][..], |end| &whole[..=end]);
            assert_eq!(fs::read(&path).unwrap(), expected, "cut after {len} bytes");
        }
    }
    #[test]
    fn damage_anywhere_is_found_and_costs_the_damaged_lines_only() {
        let lines = [1, 2, 3].map(|epoch| serde_json::to_string(&report(epoch)).unwrap() + "\n");
        let whole = lines.concat().into_bytes();
        let mut num_found = 0;
        // One bit makes a digit another digit, the other makes it none.
        for (at, bit) in (0..whole.len()).flat_map(|at| [(at, 0x01), (at, 0x80)]) {
            let mut bytes = whole.clone();
            bytes[at] ^= bit;
            let kept = Kept::of(&bytes, EpochIndex(3));
            if kept.num_damaged == 0 {
                // Another number: nothing tells it from what was written.
                assert!(kept.lines == bytes && bit == 0x01 && whole[at].is_ascii_digit(), "byte {at}");
                continue;
            }
            num_found += 1;
            let (text, hit) = (String::from_utf8(kept.lines).unwrap(), at / lines[0].len());
            for (index, line) in lines.iter().enumerate() {
                // A line break that is damaged takes the next line with it.
                let is_hit = index == hit || index == hit + 1 && whole[at] == b'\n';
                assert!(is_hit || text.contains(line.as_str()), "byte {at}, bit {bit:#x}: line {index} is lost");
            }
        }
        assert!(num_found > whole.len(), "{num_found} of {}", 2 * whole.len());
    }

    #[test]
    fn a_damaged_file_is_set_aside_whenever_it_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let line = |epoch| serde_json::to_string(&report(epoch)).unwrap() + "\n";
        for number in 1..=3 {
            let damaged = format!("{}\u{7f}{}{}", line(1), line(2), line(3));
            fs::write(&path, &damaged).unwrap();
            open(&path, EpochIndex(3)).unwrap().append(&report(4)).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), [line(1), line(3), line(4)].concat());
            let aside = dir.path().join(format!("metrics.damaged-{number}.jsonl"));
            assert_eq!(fs::read_to_string(aside).unwrap(), damaged);
        }
        // What was set aside once is no damage any more.
        drop(open(&path, EpochIndex(4)).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4);
    }

    #[track_caller]
    fn check_epochs(found: &[u64], completed: u64, kept: &[u64], num_damaged: usize) {
        let lines: String = found.iter().map(|&epoch| serde_json::to_string(&report(epoch)).unwrap() + "\n").collect();
        let found = Kept::of(lines.as_bytes(), EpochIndex(completed));
        let text = String::from_utf8(found.lines).unwrap();
        let epochs: Vec<u64> =
            text.lines().map(|line| serde_json::from_str::<EpochReport>(line).unwrap().epoch.0).collect();
        assert_eq!((epochs.as_slice(), found.num_damaged), (kept, num_damaged));
    }

    #[test]
    fn a_damaged_number_of_an_epoch_costs_its_own_line() {
        check_epochs(&[1, 2, 3], 3, &[1, 2, 3], 0);
        check_epochs(&[1, 2, 3], 1, &[1], 0);
        // Damaged before: the gap is no new damage.
        check_epochs(&[1, 2, 4, 5], 5, &[1, 2, 4, 5], 0);
        check_epochs(&[1, 2, 9, 4], 4, &[1, 2, 4], 1);
        check_epochs(&[1, 2, 9, 4], 3, &[1, 2], 1);
        check_epochs(&[1, 3, 3, 4], 4, &[1, 3, 4], 1);
        check_epochs(&[1, 2, 2], 3, &[1, 2], 1);
        check_epochs(&[1, 2, 2, 4], 4, &[1, 2, 4], 1);
        check_epochs(&[1, 2, 0, 4], 4, &[1, 2, 4], 1);
        check_epochs(&[9, 2, 3, 4], 4, &[2, 3, 4], 1);
    }
}
