//! What is answered to which path. Nothing here depends on who asks, and what is dear is made anew only now and then.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use esper_telemetry::TelemetryRecorder;
use esper_telemetry::exposition::{CONTENT_TYPE, Exposition};
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::http::uri::Authority;
use leyline::telemetry::HealthStatus;
use tokio::time::Instant;

use super::live::{Live, Now, State};
use crate::report::{self, Versions};

const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// For so long a scrape is answered with what the last one was.
const SCRAPE_EVERY: Duration = Duration::from_millis(250);

/// The page is laid out at most so often, and takes at most one part in [`PAGE_SHARE`] of a processor.
const PAGE_EVERY: Duration = Duration::from_secs(1);
const PAGE_SHARE: u32 = 20;

/// Everything that can be answered about a run.
#[derive(Debug)]
pub(super) struct Answers {
    folder: PathBuf,
    recorder: Arc<TelemetryRecorder>,
    exposition: Exposition,
    pub(super) live: Arc<Live>,
    /// Whether only this machine is to be answered.
    is_local: bool,
    metrics: Option<(Instant, Bytes)>,
    page: Option<Page>,
}

#[derive(Debug)]
struct Page {
    of: Now,
    made: Instant,
    took: Duration,
    answer: Answer,
}

/// Status, media type and content.
pub(super) type Answer = (StatusCode, &'static str, Bytes);

impl Answers {
    pub(super) fn new(folder: PathBuf, recorder: Arc<TelemetryRecorder>, live: Arc<Live>, is_local: bool) -> Self {
        let Versions { esper, target, git_commit, .. } = Versions::of_this_build();
        let build = vec![("version", esper), ("target", target), ("git_commit", git_commit.unwrap_or_default())];
        let exposition = Exposition::new(&recorder, build);
        Self { folder, recorder, exposition, live, is_local, metrics: None, page: None }
    }

    /// Whether a request that names `host` is meant for here. A page of a stranger may have its own name point to this
    /// machine, and so have a browser ask; it cannot have it say another name.
    pub(super) fn is_meant(&self, host: Option<&str>) -> bool {
        let is_local = |authority: Authority| {
            let name = authority.host().trim_matches(['[', ']']);
            name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        };
        !self.is_local || host.is_none_or(|host| host.parse().is_ok_and(is_local))
    }

    /// The answer to a path, but for [`super::events::PATH`].
    pub(super) fn of(&mut self, path: &str) -> Answer {
        match path {
            "/" => self.page(),
            "/live.js" => (StatusCode::OK, "text/javascript; charset=utf-8", Bytes::from_static(SCRIPT.as_bytes())),
            "/metrics" => (StatusCode::OK, CONTENT_TYPE, self.metrics()),
            "/healthz" => {
                told(!matches!(self.recorder.health(), Some(HealthStatus::Unhealthy | HealthStatus::Critical)))
            }
            "/readyz" => told(self.live.now().state == State::Training),
            _ => {
                (StatusCode::NOT_FOUND, TEXT, Bytes::from_static(b"not found; there are / /metrics /healthz /readyz\n"))
            }
        }
    }

    fn metrics(&mut self) -> Bytes {
        if let Some((made, text)) = &self.metrics
            && made.elapsed() < SCRAPE_EVERY
        {
            return text.clone();
        }
        let text = Bytes::from(self.exposition.text());
        self.metrics = Some((Instant::now(), text.clone()));
        text
    }

    fn page(&mut self) -> Answer {
        let of = self.live.now();
        if let Some(page) = &self.page {
            let is_current = of.revision == page.of.revision && page.answer.0 == StatusCode::OK;
            let is_too_soon = page.made.elapsed() < PAGE_EVERY.max(page.took * PAGE_SHARE);
            // The end is shown at once: there is no later.
            if of.state == page.of.state && (is_current || is_too_soon) {
                return page.answer.clone();
            }
        }
        let began = Instant::now();
        let page = report::Run::read_going(&self.folder).and_then(|run| report::render_live(&run, of.revision));
        let answer = match page {
            Ok(page) => (StatusCode::OK, HTML, Bytes::from(page)),
            Err(error) => {
                tracing::debug!("the live page: {error}");
                (StatusCode::SERVICE_UNAVAILABLE, TEXT, Bytes::from_static(b"the run folder cannot be read now\n"))
            }
        };
        self.page = Some(Page { of, made: Instant::now(), took: began.elapsed(), answer: answer.clone() });
        answer
    }
}

const SCRIPT: &str = include_str!("../../templates/report/live.js");

fn told(is_so: bool) -> Answer {
    match is_so {
        true => (StatusCode::OK, TEXT, Bytes::from_static(b"ok\n")),
        false => (StatusCode::SERVICE_UNAVAILABLE, TEXT, Bytes::from_static(b"no\n")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use tempfile::TempDir;

    use super::super::testing::recorder;
    use super::*;

    fn answers(dir: &TempDir) -> Answers {
        Answers::new(dir.path().to_owned(), recorder(), Arc::default(), true)
    }

    fn fill(dir: &TempDir) {
        let of = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/completed");
        for entry in fs::read_dir(of).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
        }
    }

    /// The page, when one may be laid out again.
    fn page(answers: &mut Answers) -> (StatusCode, String) {
        answers.page.iter_mut().for_each(|page| page.made -= 2 * PAGE_EVERY.max(page.took * PAGE_SHARE));
        let (status, _, text) = answers.page();
        (status, String::from_utf8(text.to_vec()).unwrap())
    }

    #[test]
    fn a_page_that_could_not_be_read_is_read_again_though_no_epoch_has_ended_but_not_too_soon() {
        let dir = tempfile::tempdir().unwrap();
        let mut answers = answers(&dir);
        assert_eq!(page(&mut answers).0, StatusCode::SERVICE_UNAVAILABLE);
        fill(&dir);
        assert_eq!(answers.page().0, StatusCode::SERVICE_UNAVAILABLE, "too soon");
        assert_eq!(page(&mut answers).0, StatusCode::OK);
    }

    #[test]
    fn a_page_is_made_anew_where_an_epoch_has_ended_or_the_run_went_back_and_only_there() {
        let dir = tempfile::tempdir().unwrap();
        fill(&dir);
        let mut answers = answers(&dir);
        answers.live.epochs(2);
        assert!(page(&mut answers).1.contains("<main data-revision=\"1\">"));
        fs::remove_file(dir.path().join("metrics.jsonl")).unwrap();
        assert!(page(&mut answers).1.contains("<main data-revision=\"1\">"));
        // The run goes back, and the epoch ends anew.
        [1, 2].iter().for_each(|&epochs| answers.live.epochs(epochs));
        assert!(page(&mut answers).1.contains("<main data-revision=\"3\">"));
    }
}
