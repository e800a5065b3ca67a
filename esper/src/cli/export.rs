//! `esper export`: the network of a run as two files, for use without this command.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use candle_core::Tensor;
use clap::Args;
use esper_export::{DOCUMENT_FILE, Error, IfPresent, ONNX_FILE, WEIGHTS_FILE};

use crate::exit::UsageError;
use crate::output;
use crate::signature::SignatureArgs;
use crate::trained::Trained;

/// Flags of `esper export`.
#[derive(Debug, Clone, Args)]
pub(super) struct ExportArgs {
    /// Folder that `esper train` wrote; the network that was tested is taken, without one that of the newest checkpoint.
    run_dir: PathBuf,
    /// Folder to write: new, empty, or with --force an earlier export.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Write `model.onnx` beside: the network for programs that run ONNX.
    #[arg(long)]
    onnx: bool,
    /// Replace an export that is there.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    signature: SignatureArgs,
}

/// Runs the sub-command.
///
/// # Errors
/// [`UsageError`] when the folder has no checkpoint, or there is something where the export is to be; when it cannot be
/// written.
pub(super) fn command(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let Trained { record, generation, epoch, export, .. } = Trained::open(&args.run_dir, args.signature.signing()?)?;
    let if_present = if args.force { IfPresent::Replace } else { IfPresent::Refuse };
    let written =
        if args.onnx { export.write_with_onnx(&args.to, if_present) } else { export.write(&args.to, if_present) };
    match written {
        Err(error @ Error::Occupied { .. }) => {
            let hint = if args.force { "" } else { ", or --force to replace an export" };
            Err(UsageError(format!("--to {error}{hint}")).into())
        }
        written => {
            let document = written.context("exporting the network")?;
            let num_parameters: usize = export.tensors.values().map(Tensor::elem_count).sum();
            output::print(&format!(
                "{} after epoch {epoch} (checkpoint {generation}): {} with {} seeds, {num_parameters} parameters, in {}/{DOCUMENT_FILE} and {WEIGHTS_FILE}{}\n",
                record.run_id,
                document.network.host.kind(),
                document.network.seeds.len(),
                args.to.display(),
                if args.onnx { format!(", {ONNX_FILE}") } else { String::new() },
            ))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
