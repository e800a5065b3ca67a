//! `esper completions`: what a shell needs to complete the command, generated from its definition.

use std::process::ExitCode;

use clap::{Args, CommandFactory as _};
use clap_complete::{Shell, generate};

use super::Cli;
use crate::output;

/// Flags of `esper completions`.
#[derive(Debug, Clone, Args)]
pub(super) struct CompletionsArgs {
    /// The shell; its manual says where the text belongs, for bash `~/.local/share/bash-completion/completions/esper`.
    shell: Shell,
}

/// Runs the sub-command.
///
/// # Errors
/// When standard output cannot be written.
pub(super) fn command(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    output::print(&String::from_utf8(script(args.shell))?)?;
    Ok(ExitCode::SUCCESS)
}

fn script(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    generate(shell, &mut Cli::command(), "esper", &mut text);
    text
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_shell_completes_every_sub_command_and_every_work() {
        for shell in Shell::value_variants() {
            let text = String::from_utf8(script(*shell)).unwrap();
            let commands = Cli::command();
            let works = commands.find_subcommand("bench").unwrap().get_subcommands();
            for command in commands.get_subcommands().chain(works) {
                assert!(text.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
            assert!(text.contains("peer-modes"), "{shell}: a flag of a work");
        }
    }
}
