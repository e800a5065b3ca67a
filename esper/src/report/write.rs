//! Puts the page into the run folder.

use std::path::{Path, PathBuf};

use esper_disk::{Fs, replace_file};

use super::{ReportError, Run, render_html};

/// The page.
pub const PAGE_FILE: &str = "report.html";

/// Reads a run folder and writes its page, whole or not at all. Gives the path of the page.
///
/// # Errors
/// As [`Run::read`] and [`render_html`]; [`ReportError::Write`], and then an earlier page is still there.
pub fn write(fs: &dyn Fs, run_dir: &Path) -> Result<PathBuf, ReportError> {
    let page = render_html(&Run::read(run_dir)?)?;
    let path = run_dir.join(PAGE_FILE);
    match replace_file(fs, &path, page.as_bytes()) {
        Ok(()) => Ok(path),
        Err(source) => Err(ReportError::Write { path, source }),
    }
}
