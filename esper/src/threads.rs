//! One thread per matrix product, unless the user says otherwise.
//!
//! The tensor library asks `RAYON_NUM_THREADS` at every product and hands even a 4×16×4 one to a pool when it may use
//! more than one thread: 20.6 µs instead of 0.55 µs. See `docs/decisions/0003-one-thread-for-tiny-products.md`.

use std::env;

use anyhow::Context as _;

/// The variable that the tensor library reads.
pub const VARIABLE: &str = "RAYON_NUM_THREADS";

/// Makes the process run with [`VARIABLE`] set. When it is not, the process replaces itself by the same command with
/// the variable set to 1; the process id, the terminal and the signals stay.
///
/// # Errors
/// When the program cannot be started again.
pub fn settle() -> anyhow::Result<()> {
    if env::var_os(VARIABLE).is_some() {
        return Ok(());
    }
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt as _;
        let program = env::current_exe().context("finding the program's own path")?;
        let mut args = env::args_os();
        let name = args.next().unwrap_or_else(|| program.clone().into_os_string());
        let failed = std::process::Command::new(&program).arg0(name).args(args).env(VARIABLE, "1").exec();
        Err(failed).with_context(|| format!("starting {} with {VARIABLE}=1", program.display()))
    }
    #[cfg(not(unix))]
    {
        Ok(())
    }
}
