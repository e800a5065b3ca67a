//! Copies of weights: what their parameters are rounded to, and not used where that is not known.

use candle_core::Var;
use leyline::id::TopologyRevision;
use leyline::layout::SegmentSpec;

use super::*;

const ROWS: usize = 3;

/// A matrix, a vector and a number of the host, and a matrix of a seed.
fn setup(config: OptimizerConfig, revision: u64, is_copying: bool) -> Setup {
    let of = |name: &str, shape: &[usize], owner| SegmentSpec {
        name: name.to_owned(),
        shape: shape.to_vec(),
        owner,
        isolated: false,
    };
    let specs = vec![of("a", &[ROWS, 5], HOST), of("b", &[4], HOST), of("c", &[2, 2], seed(1)), of("d", &[], HOST)];
    let layout = ParameterLayout::new(TopologyRevision(revision), specs).unwrap();
    let parameters = layout.segments().iter().map(|segment| {
        let values = random(segment.len, segment.offset as u64);
        let value = Tensor::from_vec(values, segment.spec.shape.clone(), &Device::Cpu).unwrap();
        Parameter { name: segment.spec.name.clone(), var: Var::from_tensor(&value).unwrap() }
    });
    let parameters = parameters.collect();
    Setup { layout, parameters, optimizer: Optimizer::new(config).copying(is_copying) }
}

impl Setup {
    fn refresh(&mut self) {
        self.optimizer.refresh_copies(&self.parameters, &self.layout).unwrap();
    }

    fn num_copies(&self) -> usize {
        self.optimizer.working_copies(&self.parameters, &self.layout).unwrap().len()
    }

    /// The copy of the matrix, and what that is rounded to.
    fn copy_and_rounded(&self) -> [Vec<f32>; 2] {
        let (_, copy) = self.optimizer.copies(&self.layout).find(|(name, _)| *name == "a").unwrap();
        let rounded = self.parameters[0].var.as_detached_tensor().to_dtype(DType::BF16).unwrap();
        [copy, &rounded].map(|of| values(&of.flatten_all().unwrap().to_dtype(DType::F32).unwrap()))
    }
}

#[test]
fn an_update_writes_the_copy_with_its_weight_and_the_same_weight() {
    for config in ALL {
        let [mut copying, mut plain] = [true, false].map(|is_copying| setup(config, 0, is_copying));
        for round in 0..4 {
            let gradient = random(copying.layout.num_elements(), 100 + round);
            let plan = copying.optimizer.prepare(&copying.parameters, &copying.layout, RATE).unwrap();
            copying.refresh();
            let gradient = vector(&gradient);
            copying.optimizer.apply(&copying.parameters, &copying.layout, &gradient, &plan, None).unwrap();
            copying.optimizer.commit(&copying.layout, &plan);
            plain.optimizer.step(&plain.parameters, &plain.layout, &gradient, RATE).unwrap();
            let [copy, rounded] = copying.copy_and_rounded();
            assert_eq!(bits(&copy), bits(&rounded), "{config:?}");
            for (a, b) in copying.parameters.iter().zip(&plain.parameters) {
                let [a, b] = [a, b].map(|of| bits(&values(&of.var.flatten_all().unwrap())));
                assert_eq!(a, b, "{config:?}");
            }
        }
        assert_eq!((copying.num_copies(), plain.num_copies()), (2, 0));
    }
}

#[test]
fn a_copy_counts_for_one_structure_and_until_it_is_doubted() {
    let mut setup = setup(ADAM_W, 7, true);
    setup.optimizer.prepare(&setup.parameters, &setup.layout, RATE).unwrap();
    assert_eq!(setup.num_copies(), 0, "before it was rounded");
    setup.refresh();
    assert_eq!(setup.num_copies(), 2, "of the host");

    setup.parameters[0].var.set(&Tensor::full(0.3_f32, (ROWS, 5), &Device::Cpu).unwrap()).unwrap();
    setup.refresh();
    let [copy, rounded] = setup.copy_and_rounded();
    assert_ne!(bits(&copy), bits(&rounded), "nobody has said that the weight was written");
    setup.optimizer.doubt_copies();
    assert_eq!(setup.num_copies(), 0, "doubted");
    setup.refresh();
    let [copy, rounded] = setup.copy_and_rounded();
    assert_eq!((bits(&copy), setup.num_copies()), (bits(&rounded), 2));

    let other = self::setup(ADAM_W, 8, true).layout;
    assert!(setup.optimizer.working_copies(&setup.parameters, &other).unwrap().is_empty(), "another structure");
    setup.parameters[0].var.set(&Tensor::full(0.7_f32, (ROWS, 5), &Device::Cpu).unwrap()).unwrap();
    setup.optimizer.refresh_copies(&setup.parameters, &other).unwrap();
    let [copy, rounded] = setup.copy_and_rounded();
    assert_eq!((bits(&copy), setup.num_copies()), (bits(&rounded), 0));
}

#[test]
fn a_weight_in_the_place_of_one_of_another_shape_has_no_copy_before_it_is_rounded() {
    let mut setup = setup(PLAIN, 0, true);
    setup.optimizer.prepare(&setup.parameters, &setup.layout, RATE).unwrap();
    setup.refresh();
    let spec = SegmentSpec { name: "a".to_owned(), shape: vec![2, 2], owner: HOST, isolated: false };
    setup.layout = ParameterLayout::new(TopologyRevision(0), vec![spec]).unwrap();
    let var = Var::ones((2, 2), DType::F32, &Device::Cpu).unwrap();
    setup.parameters = vec![Parameter { name: "a".to_owned(), var }];
    assert!(setup.optimizer.working_copies(&setup.parameters, &setup.layout).is_err());
    setup.optimizer.prepare(&setup.parameters, &setup.layout, RATE).unwrap();
    assert_eq!(setup.num_copies(), 0);
    setup.refresh();
    let [copy, rounded] = setup.copy_and_rounded();
    assert_eq!((bits(&copy), setup.num_copies()), (bits(&rounded), 1));
}
