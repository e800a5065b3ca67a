//! The engine on one window, again and again, with the optimizer behind it.

use candle_core::{DType, Device, Tensor, Var};
use leyline::model::Parameter;
use tolaria::aggregate::{AggregationConfig, ConflictResolution, GradientEngine, WindowPlan};
use tolaria::grad::{GradientBufferPool, GradientLease};
use tolaria::host_read::{HostReads, read_vec, read_vec_f64};
use tolaria::optim::{Optimizer, OptimizerConfig, UpdatePlan};

use super::windows::Window;
use crate::error::Error;
use crate::models::Draw;

const LEARNING_RATE: f64 = 1e-3;
const ADAM_W: OptimizerConfig = OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };

/// Every method, with its name in configurations.
pub(crate) const METHODS: [(&str, ConflictResolution); 6] = [
    ("mean", ConflictResolution::Mean),
    ("pcgrad", ConflictResolution::PcGrad),
    ("mgda", ConflictResolution::Mgda),
    ("upgrad", ConflictResolution::UpGrad),
    ("cagrad", ConflictResolution::CaGrad),
    ("aligned_mtl", ConflictResolution::AlignedMtl),
];

/// What the works measure unless they say otherwise.
pub(crate) fn aggregation(method: ConflictResolution) -> AggregationConfig {
    AggregationConfig { method, ..AggregationConfig::default() }
}

/// An engine with everything that a step needs. On a GPU, [`Self::combine`] and [`Self::update`] are device work alone
/// between static tensors, so that a graph can hold one of them.
#[derive(Debug)]
pub(crate) struct EngineRun {
    window: Window,
    engine: GradientEngine,
    pool: GradientBufferPool,
    /// What the engine is given next; it takes them.
    leases: Vec<GradientLease>,
    /// The rows of the last filling: where a graph reads and writes.
    rows: Vec<Tensor>,
    /// Held, so that nobody else is given its buffer.
    result: Option<GradientLease>,
    plan: WindowPlan,
    /// On a GPU.
    arguments: Option<Tensor>,
    /// What the engine adds about the owners.
    sums: Tensor,
    parameters: Vec<Parameter>,
    optimizer: Optimizer,
    updates: UpdatePlan,
    /// On a GPU.
    table: Option<Tensor>,
}

impl EngineRun {
    /// Parameters follow from a seed.
    pub(crate) fn new(
        window: &Window,
        config: AggregationConfig,
        plan: WindowPlan,
        device: &Device,
    ) -> Result<Self, Error> {
        let engine = GradientEngine::new(window.geometry.clone(), config, window.shape.num_rows, device)?;
        let sums = Tensor::zeros(engine.num_sums(), DType::F64, device)?;
        let numbers = Draw::new(5, device).uniform(window.layout.num_elements(), 0.1)?;
        let parameter = |segment: &leyline::layout::Segment| -> Result<Parameter, Error> {
            let values = numbers.narrow(0, segment.offset, segment.len)?.copy()?;
            Ok(Parameter { name: segment.spec.name.clone(), var: Var::from_tensor(&values)? })
        };
        let parameters: Vec<Parameter> =
            window.layout.segments().iter().map(parameter).collect::<Result<_, Error>>()?;
        let mut optimizer = Optimizer::new(ADAM_W);
        let updates = optimizer.prepare(&parameters, &window.layout, LEARNING_RATE)?;
        let (mut arguments, mut table) = (None, None);
        if !device.is_cpu() {
            arguments = Some(on_device(&plan, device)?);
            table = Some(table_of(&updates, device)?);
        }
        Ok(Self {
            window: window.clone(),
            engine,
            pool: GradientBufferPool::new(),
            leases: Vec::new(),
            rows: Vec::new(),
            result: None,
            plan,
            arguments,
            sums,
            parameters,
            optimizer,
            updates,
            table,
        })
    }

    /// Rows for the next combination: those of the window.
    pub(crate) fn fill(&mut self) -> Result<(), Error> {
        // Its buffer first, so that every turn has the same ones.
        self.result = None;
        self.leases.clear();
        self.rows.clear();
        for _ in &self.window.rows {
            let source = &self.window.rows[0];
            let lease = self.pool.lease_to_write(source.elem_count(), source.dtype(), source.device())?;
            self.rows.push(lease.as_tensor().clone());
            self.leases.push(lease);
        }
        self.refill()
    }

    /// The window's rows into the buffers of the last [`Self::fill`], which a graph works on.
    pub(crate) fn refill(&self) -> Result<(), Error> {
        for (row, source) in self.rows.iter().zip(&self.window.rows) {
            row.slice_set(source, 0, 0)?;
        }
        Ok(())
    }

    /// Other rows of the same sizes from now on.
    pub(crate) fn set_rows(&mut self, rows: &[Tensor]) {
        self.window.rows = rows.to_vec();
    }

    /// Another plan of the same sizes from now on.
    pub(crate) fn set_plan(&mut self, plan: WindowPlan) -> Result<(), Error> {
        if let Some(arguments) = &self.arguments {
            arguments.slice_set(&on_device(&plan, arguments.device())?, 0, 0)?;
        }
        self.plan = plan;
        Ok(())
    }

    /// The next step of the optimizer: its count, and its constants on the device.
    pub(crate) fn advance(&mut self) -> Result<(), Error> {
        self.optimizer.commit(&self.window.layout, &self.updates);
        self.updates = self.optimizer.prepare(&self.parameters, &self.window.layout, LEARNING_RATE)?;
        if let Some(table) = &self.table {
            table.slice_set(&table_of(&self.updates, table.device())?, 0, 0)?;
        }
        Ok(())
    }

    /// The filled rows to one gradient, formed in memory.
    pub(crate) fn combine(&mut self) -> Result<(), Error> {
        let rows = std::mem::take(&mut self.leases);
        let mut reads = HostReads::default();
        let combination =
            self.engine.combine(rows, &self.plan, self.arguments.as_ref(), Some(&self.sums), &mut reads)?;
        self.result = Some(combination.materialize(&self.window.geometry)?);
        Ok(())
    }

    /// The filled rows to new parameters, without a gradient in between.
    pub(crate) fn update(&mut self) -> Result<(), Error> {
        let rows = std::mem::take(&mut self.leases);
        let mut reads = HostReads::default();
        let combination =
            self.engine.combine(rows, &self.plan, self.arguments.as_ref(), Some(&self.sums), &mut reads)?;
        let Self { optimizer, parameters, window, updates, table, .. } = self;
        Ok(optimizer.apply_combination(parameters, &window.layout, &combination, updates, table.as_ref())?)
    }

    /// The gradient of the last [`Self::combine`], or of the last replay of a graph that holds it.
    ///
    /// # Sync
    /// one device-to-host copy
    pub(crate) fn gradient(&self) -> Result<Vec<f32>, Error> {
        match &self.result {
            Some(result) => Ok(read_vec(result.as_tensor(), "bench", &mut HostReads::default())?),
            None => Ok(Vec::new()),
        }
    }

    /// All parameters in the order of the layout.
    ///
    /// # Sync
    /// one device-to-host copy each
    pub(crate) fn parameters(&self) -> Result<Vec<f32>, Error> {
        let mut values = Vec::new();
        for parameter in self.parameters.iter().filter(|parameter| parameter.var.elem_count() > 0) {
            values.extend(read_vec(parameter.var.as_tensor(), "bench", &mut HostReads::default())?);
        }
        Ok(values)
    }

    /// What the engine added about the owners so far.
    ///
    /// # Sync
    /// one device-to-host copy
    pub(crate) fn sums(&self) -> Result<Vec<f64>, Error> {
        Ok(read_vec_f64(&self.sums, "bench", &mut HostReads::default())?)
    }

    /// The rows of the window on the host.
    ///
    /// # Sync
    /// one device-to-host copy each
    pub(crate) fn host_rows(&self) -> Result<Vec<Vec<f32>>, Error> {
        let read = |row: &Tensor| Ok(read_vec(row, "bench", &mut HostReads::default())?);
        self.window.rows.iter().map(read).collect()
    }
}

/// The arguments of a plan.
fn on_device(plan: &WindowPlan, device: &Device) -> Result<Tensor, Error> {
    Ok(Tensor::new(plan.arguments(), device)?)
}

fn table_of(updates: &UpdatePlan, device: &Device) -> Result<Tensor, Error> {
    let table = updates.table();
    let len = table.len();
    Ok(Tensor::from_vec(table, len, device)?)
}
