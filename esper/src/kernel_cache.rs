//! Where kernels that were generated for compiled steps are kept from run to run.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use tolaria::trainer::ExecutionConfig;

/// Names the folder where the configuration names none: `esper/kernels` in the user's cache folder, which is
/// `$XDG_CACHE_HOME` or else `$HOME/.cache`. Without either of them kernels are not kept.
///
/// It belongs to the machine and not to the run: nothing of it is written to the run folder.
#[must_use]
pub fn settle(config: ExecutionConfig) -> ExecutionConfig {
    let compile_cache = config.compile_cache.or_else(|| folder(env::var_os("XDG_CACHE_HOME"), env::var_os("HOME")));
    ExecutionConfig { compile_cache, ..config }
}

/// Paths that are not absolute mean nothing, as the XDG base directory specification has it.
fn folder(xdg_cache_home: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: Option<OsString>| path.map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute(xdg_cache_home).or_else(|| absolute(home).map(|home| home.join(".cache")))?;
    Some(cache.join("esper").join("kernels"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_folder_of_the_user_is_found_as_other_programs_find_it() {
        for (xdg_cache_home, home, expected) in [
            (Some("/tmp/cache"), Some("/home/a"), Some("/tmp/cache/esper/kernels")),
            (None, Some("/home/a"), Some("/home/a/.cache/esper/kernels")),
            (Some(""), Some("/home/a"), Some("/home/a/.cache/esper/kernels")),
            (Some("relative"), Some("/home/a"), Some("/home/a/.cache/esper/kernels")),
            (Some("/tmp/cache"), None, Some("/tmp/cache/esper/kernels")),
            (Some("relative"), Some("relative"), None),
            (None, Some(""), None),
            (None, None, None),
        ] {
            let found = folder(xdg_cache_home.map(Into::into), home.map(Into::into));
            assert_eq!(found, expected.map(PathBuf::from), "{xdg_cache_home:?}, {home:?}");
        }
    }

    #[test]
    fn a_folder_of_the_configuration_is_kept() {
        let given = ExecutionConfig { compile_cache: Some("here".into()), ..ExecutionConfig::default() };
        assert_eq!(settle(given.clone()), given);
    }
}
