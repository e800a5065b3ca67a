//! `esper man`: manual pages, generated from the definition of the command.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};
use clap_mangen::{Man, generate_to};

use super::Cli;
use crate::output;

/// Flags of `esper man`.
#[derive(Debug, Clone, Args)]
pub(super) struct ManArgs {
    /// Folder for the pages of the command and all its sub-commands, `esper.1`, `esper-train.1` and so on; made when absent.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Runs the sub-command.
///
/// # Errors
/// When standard output or the folder cannot be written.
pub(super) fn command(args: &ManArgs) -> anyhow::Result<ExitCode> {
    match &args.out {
        Some(folder) => std::fs::create_dir_all(folder)
            .and_then(|()| generate_to(Cli::command(), folder))
            .with_context(|| format!("writing into {}", folder.display()))?,
        None => {
            let mut page = Vec::new();
            Man::new(Cli::command()).render(&mut page)?;
            output::print(&String::from_utf8(page)?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sub_command_has_a_page_with_its_flags() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("new");
        command(&ManArgs { out: Some(out.clone()) }).unwrap();
        let page = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
        for command in Cli::command().get_subcommands() {
            assert!(page("esper.1").contains(&command.get_name().replace('-', "\\-")), "{}", command.get_name());
            assert!(page(&format!("esper-{}.1", command.get_name())).contains(".SH NAME"), "{}", command.get_name());
        }
        assert!(page("esper-train.1").contains("\\-\\-resume"));
        assert!(page("esper-bench-compile-bench.1").contains("\\-\\-peer\\-modes"));
    }
}
