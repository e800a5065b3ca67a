//! The works, which the build script finds in `works/`: a new file there is a new work, and nothing else is touched.
//!
//! Such a file has a constant `WORK`; `Work::new` says what it is made of.

use crate::work::Work;

include!(concat!(env!("OUT_DIR"), "/works.rs"));

/// The work of a name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Work> {
    ALL.iter().find(|work| work.name == name)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leyline::clock::SystemClock;

    use super::*;
    use crate::error::Error;
    use crate::work::{Needs, Setting};

    #[test]
    fn works_of_a_gpu_say_that_they_need_one() {
        let setting = Setting::alone(Arc::new(SystemClock::new()), None);
        for work in ALL.iter().filter(|work| work.needs != Needs::Nothing) {
            let error = work.run_as_it_is(&setting).unwrap_err();
            assert!(matches!(error, Error::NeedsGpu { .. }), "{}: {error}", work.name);
            assert!(error.to_string().starts_with("this work needs a GPU: "), "{error}");
        }
    }

    #[test]
    fn a_work_is_found_by_its_name_and_says_in_a_line_what_it_measures() {
        for work in ALL {
            assert_eq!(named(work.name).map(|found| found.about), Some(work.about));
            assert!(
                !work.about.is_empty() && !work.about.ends_with('.') && !work.about.contains('\n'),
                "{}",
                work.name
            );
        }
        assert!(ALL.is_sorted_by_key(|work| work.name), "files are named after their works");
        assert!(named("launch").is_none());
    }
}
