//! Names the number of threads, unless the user did.
//!
//! The tensor library reads `RAYON_NUM_THREADS` at every product and, where it is not set, counts the machine's cores
//! anew each time: a step of a small network takes ten times longer. See
//! `docs/decisions/0003-name-the-number-of-threads.md`.

use std::env;

/// The variable that the tensor library reads.
pub const VARIABLE: &str = "RAYON_NUM_THREADS";

/// Makes the process run with [`VARIABLE`] set. When it is not, the process replaces itself by the same command with
/// the variable set to 1; the process id, the terminal and the signals stay. Where that fails, the process goes on as it
/// is: slower, not wrong.
pub fn settle() {
    if env::var_os(VARIABLE).is_some() {
        return;
    }
    #[cfg(unix)]
    if let Ok(program) = env::current_exe() {
        use std::os::unix::process::CommandExt as _;
        let mut args = env::args_os();
        let name = args.next().unwrap_or_else(|| program.clone().into_os_string());
        let error = std::process::Command::new(&program).arg0(name).args(args).env(VARIABLE, "1").exec();
        tracing::warn!(%error, "{VARIABLE} is not set and {} could not be started again", program.display());
    }
}
