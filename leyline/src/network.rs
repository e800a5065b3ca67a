//! A network with the thread that it belongs to, saved and restored as a whole: what implementers of a seed manager would all
//! write alike.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use candle_core::{Tensor, Var};

use crate::command::{Order, Unverified};
use crate::durable::{Durable, SavedState};
use crate::error::{Error, ErrorKind, ErrorType};
use crate::id::SeedId;
use crate::model::TrainableModel;
use crate::region::{Eager, RegionError, ThreadBinding};
use crate::seed::Evidence;

/// Everything but the tensors: a network that does not grow has nothing else.
const DOCUMENT: &str = r#"{"format":1}"#;

/// Why a network was not saved or restored, or an order of a network that does not grow refused.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// A region rule was broken.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// Two variables have one name.
    #[error("buffers: expected names of their own, found `{name}` twice")]
    Twice {
        /// The name.
        name: String,
    },
    /// The saved document is not that of a network.
    #[error("expected {DOCUMENT}, found {found}")]
    Document {
        /// What was found.
        found: String,
    },
    /// A saved tensor has the name of no variable.
    #[error("no parameter or buffer is named `{name}`")]
    Stranger {
        /// The name.
        name: String,
    },
    /// A variable has no saved tensor, or one that is not like it.
    #[error("no tensor of the right shape and dtype for `{name}`")]
    Missing {
        /// The name.
        name: String,
    },
    /// No seed has this id.
    #[error("{seed} is unknown")]
    UnknownSeed {
        /// The id.
        seed: SeedId,
    },
    /// An order is signed.
    #[error(transparent)]
    Unverified(#[from] Unverified),
    /// The network has no place for a seed.
    #[error("this network has no slots")]
    NoSlots,
    /// The tensor library or the device failed.
    #[error("a tensor operation failed")]
    Tensor(#[from] candle_core::Error),
}

impl Error for NetworkError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Region(error) => error.kind(),
            Self::Twice { .. } => ErrorKind::LayoutMismatch,
            Self::Document { .. } | Self::Stranger { .. } | Self::Missing { .. } => ErrorKind::Corrupt,
            Self::UnknownSeed { .. } => ErrorKind::UnknownSeed,
            Self::Unverified(error) => error.kind(),
            Self::NoSlots => ErrorKind::Unsupported,
            Self::Tensor(_) => ErrorKind::Device,
        }
    }
}

/// Copies of variables, by name.
///
/// # Errors
/// When one cannot be copied.
/// # Sync
/// none
pub fn copies<N: Into<String>, V: Borrow<Var>>(
    variables: impl IntoIterator<Item = (N, V)>,
) -> Result<BTreeMap<String, Tensor>, NetworkError> {
    variables.into_iter().map(|(name, var)| Ok((name.into(), var.borrow().as_tensor().copy()?))).collect()
}

/// Writes copies back in place: all of them, or none.
///
/// # Errors
/// [`NetworkError::Stranger`], [`NetworkError::Missing`], and when the device fails.
/// # Sync
/// none, where the copies are on the device of the variables
pub fn write_back<N: Into<String>, V: Borrow<Var>>(
    variables: impl IntoIterator<Item = (N, V)>,
    saved: &BTreeMap<String, Tensor>,
) -> Result<(), NetworkError> {
    let mut saved = saved.clone();
    let mut updates = Vec::with_capacity(saved.len());
    for (name, variable) in variables {
        let (name, var) = (name.into(), variable.borrow());
        let fits = |tensor: &Tensor| tensor.dims() == var.dims() && tensor.dtype() == var.dtype();
        let tensor = saved.remove(&name).filter(fits).ok_or(NetworkError::Missing { name })?;
        let tensor = tensor.to_device(var.device())?;
        updates.push((variable, tensor));
    }
    if let Some(name) = saved.into_keys().next() {
        return Err(NetworkError::Stranger { name });
    }
    Ok(updates.into_iter().try_for_each(|(variable, tensor)| variable.borrow().set(&tensor))?)
}

/// A tensor that training changes beside the parameters, with its name.
pub type Buffer = (String, Var);

/// A network that does not grow, with the tensors that training changes beside its parameters.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use leyline::network::{copies, write_back};
///
/// let weight = Var::new(&[1.0_f32, 2.0], &Device::Cpu)?;
/// let kept = copies([("weight", &weight)])?;
/// weight.set(&Tensor::new(&[0.0_f32, 0.0], &Device::Cpu)?)?;
/// write_back([("weight", &weight)], &kept)?;
/// assert_eq!(weight.to_vec1::<f32>()?, [1.0, 2.0]);
/// let error = write_back([("bias", &weight)], &kept).unwrap_err();
/// assert_eq!(error.to_string(), "no tensor of the right shape and dtype for `bias`");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Network<M> {
    model: M,
    /// What training changes beside the parameters, statistics first.
    buffers: Vec<Buffer>,
    thread: ThreadBinding,
}

impl<M: TrainableModel> Network<M> {
    /// `model`, which changes nothing but its parameters; of this thread.
    pub fn new(model: M) -> Self {
        Self { model, buffers: Vec::new(), thread: ThreadBinding::new() }
    }

    /// `model`, which in training changes `buffers` beside its parameters: counters of random draws, running statistics.
    /// They are saved, and restored in place, so that a run that is taken up goes on as if it had not stopped. Those of a float
    /// type are [`statistics`](Self::statistics).
    ///
    /// # Errors
    /// [`NetworkError::Twice`] when two of them, or one and a parameter, have one name.
    pub fn with_buffers(model: M, mut buffers: Vec<Buffer>) -> Result<Self, NetworkError> {
        let mut names: BTreeSet<&str> = model.parameters().iter().map(|parameter| parameter.name.as_str()).collect();
        match buffers.iter().find(|(name, _)| !names.insert(name)) {
            Some((name, _)) => Err(NetworkError::Twice { name: name.clone() }),
            None => {
                buffers.sort_by_key(|(_, buffer)| !buffer.dtype().is_float());
                Ok(Self { buffers, ..Self::new(model) })
            }
        }
    }

    /// The network.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The buffers of a float type: what a step that is left out must not change, see
    /// [`SeedManager::statistics`](crate::seed::SeedManager::statistics).
    pub fn statistics(&self) -> &[Buffer] {
        &self.buffers[..self.buffers.partition_point(|(_, buffer)| buffer.dtype().is_float())]
    }

    /// As [`ThreadBinding::check`].
    ///
    /// # Errors
    /// As there.
    pub fn check(&self, eager: &Eager) -> Result<(), RegionError> {
        self.thread.check(eager)
    }

    /// Why a network that does not grow refuses an order.
    pub fn refusal(&self, eager: &Eager, order: &Order) -> NetworkError {
        let refused = order.operation.seed().map_or(NetworkError::NoSlots, |seed| NetworkError::UnknownSeed { seed });
        let checked = self.check(eager).map_err(NetworkError::Region);
        checked.and_then(|()| Ok(order.check_verified()?)).err().unwrap_or(refused)
    }

    /// Of a network that does not grow, no seed is known that evidence could be of (SM-9).
    ///
    /// # Errors
    /// As [`Self::check`], and [`NetworkError::UnknownSeed`] of the first seed that is named.
    pub fn refuse_evidence(&self, eager: &Eager, evidence: &[Evidence]) -> Result<(), NetworkError> {
        self.check(eager)?;
        evidence.first().map_or(Ok(()), |item| Err(NetworkError::UnknownSeed { seed: item.seed }))
    }

    /// Parameters and buffers.
    fn variables(&self) -> impl Iterator<Item = (&str, &Var)> {
        let parameters = self.model.parameters().iter().map(|parameter| (parameter.name.as_str(), &parameter.var));
        parameters.chain(self.buffers.iter().map(|(name, var)| (name.as_str(), var)))
    }
}

impl<M: TrainableModel> ErrorType for Network<M> {
    type Error = NetworkError;
}

impl<M: TrainableModel> Durable for Network<M> {
    fn save(&self, eager: &Eager) -> Result<SavedState, NetworkError> {
        self.check(eager)?;
        Ok(SavedState { json: DOCUMENT.to_owned(), tensors: copies(self.variables())? })
    }

    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), NetworkError> {
        self.check(eager)?;
        if saved.json != DOCUMENT {
            return Err(NetworkError::Document { found: saved.json.clone() });
        }
        write_back(self.variables(), &saved.tensors)
    }
}
