//! `esper seeds export`: the weights of a seed, from the newest checkpoint of a run into a library.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use esper_weights::{Artifact, IfPublished, PublishError, publish};
use leyline::id::{BlueprintId, SeedId};
use tolaria::checkpoint::Loaded;

use super::saved;
use crate::exit::UsageError;
use crate::output;
use crate::signature::SignatureArgs;
use crate::trained::{SEEDS, newest_checkpoint};

/// Flags of `esper seeds export`.
#[derive(Debug, Clone, Args)]
pub struct SeedsExportArgs {
    /// Folder that `esper train` wrote; the newest checkpoint in it that verifies is read.
    pub run_dir: PathBuf,
    /// Number of the seed.
    #[arg(long, value_name = "N")]
    pub seed: u32,
    /// Folder of the library; made when absent.
    #[arg(long, value_name = "DIR")]
    pub library: PathBuf,
    /// Name under which the weights are published. Default: the seed's blueprint.
    #[arg(long = "as", value_name = "BLUEPRINT")]
    pub blueprint: Option<String>,
    /// Replace weights of that name.
    #[arg(long)]
    pub replace: bool,
    /// With which key checkpoints are signed and read.
    #[command(flatten)]
    pub signature: SignatureArgs,
}

/// Runs the sub-command.
///
/// # Errors
/// [`UsageError`] when the folder has no checkpoint, the checkpoint no such seed, or the library has weights of that name
/// and `--replace` is not given; otherwise what cannot be read or written.
pub fn export(args: &SeedsExportArgs) -> anyhow::Result<ExitCode> {
    let asked = args.blueprint.as_deref().map(BlueprintId::new).transpose();
    let asked = asked.map_err(|error| UsageError(format!("--as: {error}")))?;
    let Loaded { snapshot, generation, .. } = newest_checkpoint(&args.run_dir, args.signature.signing()?)?;
    let state = snapshot.components.get(SEEDS).context("the checkpoint has no seed manager in it")?;
    let (seed, tensors) = saved::weights(state, SeedId(args.seed))?;
    let blueprint = asked.unwrap_or_else(|| seed.blueprint.clone());
    let artifact = Artifact::from_tensors(blueprint.clone(), &tensors).context("writing the weights as safetensors")?;
    let if_published = if args.replace { IfPublished::Replace } else { IfPublished::Refuse };
    let library = args.library.display();
    match publish(&args.library, &blueprint, artifact.bytes(), if_published) {
        Err(PublishError::Published { .. }) => Err(UsageError(format!(
            "--library {library}: `{blueprint}` is published already; expected --replace, or --as with another name"
        ))
        .into()),
        published => {
            published.with_context(|| format!("publishing in {library}"))?;
            let (id, epoch) = (seed.id, snapshot.meta.epoch);
            output::print(&format!(
                "{id} ({}, {}) of checkpoint {generation}, epoch {epoch}: published as `{blueprint}` in {library}\n",
                seed.blueprint, seed.stage
            ))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
