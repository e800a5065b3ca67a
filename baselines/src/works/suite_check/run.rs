//! What a run left in its folder, and what two runs have in common.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

use crate::gpu::report::{Broken, promise};
use crate::samples::Samples;

/// What differs from run to run.
const OWN: [&str; 3] = ["run_id", "wall_s", "samples_per_s"];

/// What is in the folder of a run.
#[derive(Debug, Clone, Default)]
pub(super) struct Run {
    /// The report of each epoch, without what is its own.
    epochs: Vec<Value>,
    packets: Vec<Value>,
    /// Epoch, name, labels and value of every metric by seed, packet after packet; times are left out.
    of_seeds: Vec<Value>,
    /// The tensors of the last checkpoint, as they are in its file.
    tensors: Vec<u8>,
    pub(super) replays: f64,
    pub(super) compiled: f64,
    /// Packets whose last step was a replay, and which have metrics by seed.
    pub(super) seeds_of_replays: usize,
}

impl Run {
    pub(super) fn read(folder: &Path) -> Result<Self, Broken> {
        let epochs = lines(&folder.join("metrics.jsonl"))?.into_iter().map(without_own).collect();
        let tensors = last_checkpoint(&folder.join("checkpoints"))?;
        Ok(Self { epochs, tensors, ..Self::of_packets(lines(&folder.join("packets.jsonl"))?) })
    }

    fn of_packets(packets: Vec<Value>) -> Self {
        let mut run = Self::default();
        for packet in &packets {
            let of_seeds: Vec<Value> = metrics(packet).filter_map(|metric| of_seed(packet, metric)).collect();
            run.seeds_of_replays +=
                usize::from(value_of(packet, "tolaria.train.graph_enabled") == Some(1.0) && !of_seeds.is_empty());
            run.of_seeds.extend(of_seeds);
        }
        let last = |name| packets.last().and_then(|packet| value_of(packet, name)).unwrap_or(0.0);
        (run.replays, run.compiled) = (last("tolaria.graph.replays_total"), last("tolaria.compile.replays_total"));
        Self { packets, ..run }
    }

    /// No packet and no event was lost between the trainer and the file, there is a packet of each epoch, and something was told by seed.
    pub(super) fn complete(&self) -> Result<(), Broken> {
        let numbers = self.packets.iter().map(|packet| packet["sequence"].as_u64());
        promise(numbers.eq((1..=self.packets.len() as u64).map(Some)), || "packets have gaps".to_owned())?;
        let Some(last) = self.packets.last() else { return Err(Broken("there is no packet".to_owned())) };
        for name in ["esper.telemetry.dropped_total", "esper.telemetry.sink_errors_total"] {
            let rows: Vec<f64> = values_of(last, name).collect();
            promise(!rows.is_empty() && rows.iter().all(|row| *row == 0.0), || format!("{name}: {rows:?}"))?;
        }
        let (packets, events) = (self.packets.len(), self.num_events());
        let told = ["packets", "events"].map(|of| value_of(last, &format!("esper.telemetry.{of}_total")));
        // A packet is counted once it is delivered, and a boundary does not wait for those before it.
        let is_so = told[0].is_some_and(|told| told < packets as f64) && told[1] == Some(events as f64);
        promise(is_so, || {
            format!("{packets} packets and {events} events in the file, and the last one tells of {told:?}")
        })?;
        let of_epoch = |epoch: &Value| self.packets.iter().any(|packet| packet["epoch"] == epoch["epoch"]);
        let missing = self.epochs.iter().find(|epoch| !of_epoch(epoch));
        promise(missing.is_none() && !self.epochs.is_empty(), || "an epoch has no packet".to_owned())?;
        promise(!self.of_seeds.is_empty(), || "nothing was told by seed".to_owned())
    }

    /// Confirms that the other run came to the same, bit for bit.
    pub(super) fn same(&self, other: &Self) -> Result<String, Broken> {
        for (what, found, expected) in
            [("epochs", &self.epochs, &other.epochs), ("metrics by seed", &self.of_seeds, &other.of_seeds)]
        {
            promise(found.len() == expected.len(), || format!("{} and {} {what}", found.len(), expected.len()))?;
            let place = found.iter().zip(expected).find_map(|(a, b)| Some((b, difference(Some(a), Some(b))?)));
            if let Some((of, place)) = place {
                return Err(Broken(format!("{what} differ in epoch {}: {place}", of["epoch"])));
            }
        }
        promise(self.tensors == other.tensors && !self.tensors.is_empty(), || {
            format!("tensors of the last checkpoint differ: {} and {} bytes", self.tensors.len(), other.tensors.len())
        })?;
        Ok(format!("{}; none differs", self.told()))
    }

    pub(super) fn told(&self) -> String {
        let commands = self.epochs.iter().map(|epoch| epoch["commands"].as_array().map_or(0, Vec::len)).sum::<usize>();
        format!(
            "{} epochs, {commands} commands, {} packets, {} metrics by seed, {} bytes of tensors, {} replays, {} of compiled graphs",
            self.epochs.len(),
            self.packets.len(),
            self.of_seeds.len(),
            self.tensors.len(),
            self.replays,
            self.compiled
        )
    }

    pub(super) fn push(&self, name: &str, samples: &mut Samples) {
        for (what, value) in [
            ("replays", self.replays),
            ("compiled", self.compiled),
            ("packets", self.packets.len() as f64),
            ("packets.seeds_of_replays", self.seeds_of_replays as f64),
            ("events", self.num_events() as f64),
            ("metrics_of_seeds", self.of_seeds.len() as f64),
        ] {
            samples.push(format!("{name}.{what}"), "count", value);
        }
    }

    fn num_events(&self) -> usize {
        self.packets.iter().map(|packet| packet["events"].as_array().map_or(0, Vec::len)).sum()
    }
}

fn lines(path: &Path) -> Result<Vec<Value>, Broken> {
    let broken = |error: String| Broken(format!("{}: {error}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| broken(error.to_string()))?;
    text.lines().map(|line| serde_json::from_str(line).map_err(|error| broken(error.to_string()))).collect()
}

fn last_checkpoint(checkpoints: &Path) -> Result<Vec<u8>, Broken> {
    let broken = |error: std::io::Error| Broken(format!("{}: {error}", checkpoints.display()));
    let folders = fs::read_dir(checkpoints).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(broken)?;
    // Their names are in the order of time.
    let last = folders.iter().map(fs::DirEntry::path).filter(|path| path.is_dir()).max();
    let last = last.ok_or_else(|| Broken(format!("{}: no checkpoint", checkpoints.display())))?;
    fs::read(last.join("tensors.safetensors")).map_err(broken)
}

fn without_own(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(name, _)| !OWN.contains(&name.as_str()));
            Value::Object(fields.map(|(name, value)| (name, without_own(value))).collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_own).collect()),
        value => value,
    }
}

fn metrics(packet: &Value) -> impl Iterator<Item = &Value> {
    packet["metrics"].as_array().into_iter().flatten()
}

fn values_of<'a>(packet: &'a Value, name: &'a str) -> impl Iterator<Item = f64> + 'a {
    metrics(packet).filter(move |metric| metric["name"] == name).filter_map(|metric| metric["value"].as_f64())
}

fn value_of(packet: &Value, name: &str) -> Option<f64> {
    values_of(packet, name).next()
}

/// A metric by seed with its epoch; none for another one, and for a time.
fn of_seed(packet: &Value, metric: &Value) -> Option<Value> {
    metric["labels"].get("seed_id")?;
    let is_time = metric["unit"] == "milliseconds" || metric["name"].as_str()?.ends_with("_ms");
    let fields = ["name", "labels", "value"].map(|field| (field.to_owned(), metric[field].clone()));
    (!is_time)
        .then(|| Value::Object(fields.into_iter().chain([("epoch".to_owned(), packet["epoch"].clone())]).collect()))
}

/// Where two values differ, and how; none where they are the same.
fn difference(a: Option<&Value>, b: Option<&Value>) -> Option<String> {
    match (a, b) {
        (Some(Value::Object(x)), Some(Value::Object(y))) => {
            let mut names = x.keys().chain(y.keys());
            names.find_map(|name| Some(format!(".{name}{}", difference(x.get(name), y.get(name))?)))
        }
        (Some(Value::Array(x)), Some(Value::Array(y))) => {
            let mut indices = 0..x.len().max(y.len());
            indices.find_map(|index| Some(format!("[{index}]{}", difference(x.get(index), y.get(index))?)))
        }
        (a, b) => (a != b).then(|| {
            let text = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
            format!(": {} and {}", text(a), text(b))
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn packets() -> Vec<Value> {
        let packet = |sequence: u64| {
            json!({"sequence": sequence, "epoch": sequence, "events": [{"name": "e"}], "metrics": [
                {"name": "esper.telemetry.dropped_total", "labels": {"kind": "packet"}, "value": 0.0},
                {"name": "esper.telemetry.sink_errors_total", "labels": {"sink": "json_lines"}, "value": 0.0},
                {"name": "esper.telemetry.packets_total", "value": sequence - 1},
                {"name": "esper.telemetry.events_total", "value": sequence},
                {"name": "tolaria.train.graph_enabled", "value": 1.0},
                {"name": "tolaria.graph.replays_total", "value": 5 * sequence},
                {"name": "tolaria.grad_agg.seed.norm", "labels": {"seed_id": "seed-1"}, "value": 0.1},
                {"name": "kasmina.seed.fetch_ms", "labels": {"seed_id": "seed-1"}, "value": sequence},
            ]})
        };
        vec![packet(1), packet(2)]
    }

    fn run() -> Run {
        let epoch = |epoch: u64| {
            let report = json!({"epoch": epoch, "wall_s": epoch as f64, "asked": {"run_id": "r", "loss": 0.5},
                "commands": [{"slot": 1}]});
            without_own(report)
        };
        Run { epochs: vec![epoch(1), epoch(2)], tensors: vec![1, 2, 3], ..Run::of_packets(packets()) }
    }

    #[test]
    fn runs_that_came_to_the_same_are_told_of_with_what_was_compared() {
        assert!(run().complete().is_ok());
        let text = run().same(&run()).map_err(|Broken(text)| text).unwrap();
        assert!(
            text.starts_with("2 epochs, 2 commands, 2 packets, 2 metrics by seed, 3 bytes of tensors, 10 replays"),
            "{text}"
        );
        assert_eq!((run().seeds_of_replays, run().epochs[0].to_string().contains("run_id")), (2, false));
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Run), expected: &str) {
        let mut changed = run();
        change(&mut changed);
        let outcome = changed.complete().and_then(|()| changed.same(&run()));
        let Err(Broken(text)) = outcome else { panic!("accepted, expected: {expected}") };
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn every_difference_is_found() {
        check(|run| run.tensors[1] = 9, "tensors of the last checkpoint differ");
        check(
            |run| run.epochs[1]["asked"]["loss"] = json!(0.500_000_000_000_000_1),
            "epochs differ in epoch 2: .asked.loss",
        );
        check(|run| run.epochs[0]["commands"] = json!([]), "epochs differ in epoch 1: .commands[0]: nothing and");
        check(|run| run.epochs.truncate(1), "1 and 2 epochs");
        check(|run| run.of_seeds[1]["value"] = json!(0.2), "metrics by seed differ in epoch 2: .value");
    }

    #[test]
    fn what_is_lost_is_found() {
        let of = |change: fn(&mut Vec<Value>)| {
            let mut changed = packets();
            change(&mut changed);
            move |run: &mut Run| {
                *run = Run { epochs: run.epochs.clone(), tensors: run.tensors.clone(), ..Run::of_packets(changed) }
            }
        };
        check(of(|packets| drop(packets.remove(0))), "gaps");
        check(of(Vec::clear), "no packet");
        check(of(|packets| drop(packets.pop())), "an epoch has no packet");
        check(of(|packets| packets[1]["metrics"][0]["value"] = json!(1.0)), "dropped_total: [1.0]");
        check(of(|packets| packets[1]["metrics"][1]["value"] = json!(2.0)), "sink_errors_total: [2.0]");
        let told = "and the last one tells of [Some(2.0), Some(2.0)]";
        check(of(|packets| packets[1]["metrics"][2]["value"] = json!(2.0)), told);
        check(of(|packets| packets[0]["events"] = json!([])), "2 packets and 1 events in the file");
        check(
            of(|packets| packets.iter_mut().for_each(|packet| packet["metrics"][6]["labels"] = json!({}))),
            "by seed",
        );
    }
}
