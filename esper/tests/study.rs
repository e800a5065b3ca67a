//! A study keeps what was done, and takes over what the same build did with the same settings on the same data, and nothing else.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

/// A study, of two short trainings for each seed where no policies are given.
fn study(dir: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("esper"));
    command.current_dir(dir).args(["study", "--out", "runs.json"]).args(more);
    if !more.contains(&"--policies") {
        command.args(["--policies", "fixed,off"]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(output: &Output) -> (String, String) {
    (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn runs(dir: &Path) -> Vec<Value> {
    serde_json::from_slice(&std::fs::read(dir.join("runs.json")).unwrap()).unwrap_or_default()
}

#[test]
fn every_arm_is_in_the_table_and_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let output = study(dir.path(), &["--seeds", "2", "--set", "run.epochs=1"]).output().unwrap();
    let (table, told) = text(&output);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert_eq!((table.lines().count(), runs(dir.path()).len()), (4, 4), "{table}");
    assert!(!told.contains("runs were done"), "{told}");
}

#[test]
fn a_run_that_was_halted_is_no_run() {
    let dir = tempfile::tempdir().unwrap();
    let troubled = ["recovery.memory_mib=64", "recovery.loss_bound=1.1", "safety.halt_after_epochs=1"];
    let set = troubled.map(|key| format!("train.{key}"));
    let set: Vec<&str> = set.iter().flat_map(|key| ["--set", key]).collect();
    let more = [&["--policies", "off", "--seeds", "1", "--set", "run.epochs=4"], &set[..]].concat();
    let (table, told) = text(&study(dir.path(), &more).output().unwrap());
    assert!(told.contains("off, seed 0: the run was halted") && !table.contains("| off |"), "{told}{table}");
    assert!(runs(dir.path()).is_empty());
}

#[test]
fn the_page_is_well_formed_stands_alone_and_shows_each_arm() {
    let dir = tempfile::tempdir().unwrap();
    let (table, _) = done(dir.path(), &["--seeds", "2", "--set", "run.epochs=1", "--page", "page.html"]);
    let page = std::fs::read_to_string(dir.path().join("page.html")).unwrap();
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = roxmltree::Document::parse_with_options(&page, options).unwrap();
    for node in document.descendants().filter(roxmltree::Node::is_element) {
        let outside = node.attributes().find(|of| ["src", "href"].contains(&of.name()) && !of.value().starts_with('#'));
        assert!(node.tag_name().name() != "script" && outside.is_none(), "{node:?}");
    }
    let with_class = |name: &str| {
        let has = |node: &roxmltree::Node<'_, '_>| {
            node.attribute("class").is_some_and(|class| class.split(' ').next() == Some(name))
        };
        document.descendants().filter(has).count()
    };
    // Accuracy, over operations, over seconds; two arms in each.
    assert_eq!((with_class("plot"), with_class("dot"), with_class("column")), (3, 6, 6));
    let row = table.lines().find(|line| line.contains("| digits | fixed |")).unwrap();
    let mean = row.split('|').nth(12).unwrap().split('±').next().unwrap().trim();
    assert!(page.contains(&format!(">{mean}%</td>")), "{mean}: {row}");
    assert!(page.contains(">1 fixed<") || page.contains("1 fixed</span>"), "the legend");
    for refused in ["gone/page.html", "."] {
        let output = study(dir.path(), &["--page", refused]).output().unwrap();
        let (_, told) = text(&output);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(&format!("--page {refused}: expected a file in a folder that exists")), "{told}");
    }
}

#[test]
fn files_that_would_overwrite_each_other_are_refused_before_anything_is_trained_or_made() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("folder")).unwrap();
    std::os::unix::fs::symlink("folder", dir.path().join("link")).unwrap();
    for (flags, refused) in [
        (&["--page", "./runs.json"][..], "--out runs.json and --page ./runs.json: one file"),
        (&["--page", "folder/../runs.json"], "--out runs.json and --page folder/../runs.json: one file"),
        (&["--result", "runs.json"], "--out runs.json and --result runs.json: one file"),
        (&["--result", "page", "--page", "page"], "--page page and --result page: one file"),
        (
            &["--result", "link", "--page", "folder/study-0.json"],
            "--page folder/study-0.json and --result link: one file, study-0.json",
        ),
        (
            &["--result", "new", "--page", "new/study-3.json", "--first-seed", "3"],
            "--page new/study-3.json and --result new: one file, study-3.json",
        ),
    ] {
        let (table, told) = text(&study(dir.path(), flags).output().unwrap());
        assert!(told.contains(refused) && told.contains("expected another"), "{flags:?}: {table}{told}");
        assert!(!told.contains("% test accuracy"), "{flags:?}: {told}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    // Beside each other is well.
    let flags = [&ONE[..], &["--result", "folder", "--page", "folder/page.html"]].concat();
    done(dir.path(), &flags);
    assert!(["page.html", "study-0.json"].iter().all(|name| dir.path().join("folder").join(name).is_file()));
}

#[test]
fn a_study_that_is_interrupted_gives_the_table_of_what_was_done() {
    let dir = tempfile::tempdir().unwrap();
    let child = study(dir.path(), &["--seeds", "500", "--set", "run.epochs=2"]).spawn().unwrap();
    for _ in 0..12_000 {
        let text = std::fs::read_to_string(dir.path().join("runs.json")).unwrap_or_default();
        if text.matches("\"seed\"").count() >= 2 {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // The shell's own `kill`: the program of that name is not on every machine.
    Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let (table, told) = text(&output);
    assert_eq!(output.status.code(), Some(130), "{told}");
    let done = runs(dir.path()).len();
    assert!(done >= 2 && told.contains(&format!("{done} of 1000 runs were done")), "{told}");
    assert!(table.contains("| digits | fixed |") && table.contains("| digits | off |"), "{table}");
}

#[test]
fn a_study_whose_file_cannot_be_written_any_more_still_prints_its_table() {
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else { return };
    drop(full);
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("esper"));
    command.current_dir(dir.path()).args(["study", "--policies", "off", "--seeds", "2", "--out", "/dev/full"]);
    let output = command.args(["--set", "run.epochs=1"]).output().unwrap();
    let (table, told) = text(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("writing /dev/full") && told.contains("1 of 2 runs were done"), "{told}");
    assert!(table.contains("| digits | off |"), "{table}");
}

/// Its standard error, after it came to its end.
fn done(dir: &Path, more: &[&str]) -> (String, String) {
    let output = study(dir, more).output().unwrap();
    let (table, told) = text(&output);
    assert_eq!(output.status.code(), Some(0), "{told}");
    (table, told)
}

#[test]
fn a_network_from_scratch_has_the_size_of_the_one_that_was_grown_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--policies", "fixed,scratch,off", "--set", "data.test_fraction=0.7"];
    // Too short to grow, and long enough.
    // A seed that trains in the shadow answers nothing, and a network from scratch needs nothing for it.
    for (epochs, seed) in [("1", 3_u64), ("4", 5), ("40", 0)] {
        let (set, first) = (format!("run.epochs={epochs}"), seed.to_string());
        let more = ["--first-seed", &first, "--seeds", "1", "--set", &set];
        done(dir.path(), &[&flags[..], &more].concat());
        let all = runs(dir.path());
        let [fixed, scratch, off] = ["fixed", "scratch", "off"]
            .map(|policy| all.iter().find(|run| run["policy"] == policy && run["seed"] == seed).unwrap());
        let size = |run: &Value| run["parameters"].as_u64().unwrap();
        assert_eq!(size(fixed) > size(off), epochs == "40");
        assert!((size(fixed)..size(fixed) + 100).contains(&size(scratch)), "{fixed}, {scratch}");
        assert_eq!(fixed["num_germinated"], 1, "{fixed}");
        assert_eq!(scratch["test_loss"] == off["test_loss"], epochs != "40", "the same network");
        assert_eq!(scratch["steps"], fixed["steps"]);
        let (_, told) = done(dir.path(), &[&flags[..], &more].concat());
        assert_eq!((told.matches("% test accuracy").count(), runs(dir.path()).len()), (0, all.len()), "{told}");
    }
    let output = study(dir.path(), &["--policies", "scratch,off"]).output().unwrap();
    let (_, told) = text(&output);
    assert!(output.status.code() == Some(2) && told.contains("expected a policy before them"), "{told}");
}

#[test]
fn dice_keep_as_many_seeds_as_the_policy_beside_them_and_say_so_where_they_cannot() {
    let flags = ["--policies", "fixed,random-equal,off", "--set", "data.test_fraction=0.7", "--seeds", "1"];
    let mut before = Vec::new();
    // Too short to grow, and long enough; decided alike by another study.
    for epochs in ["1", "40", "40"] {
        let dir = tempfile::tempdir().unwrap();
        let set = format!("run.epochs={epochs}");
        let more = [&flags[..], &["--set", &set]].concat();
        done(dir.path(), &more);
        let all = runs(dir.path());
        let [fixed, dice, off] = ["fixed", "random-equal", "off"].map(|policy| run_of(&all, policy));
        assert_eq!((&dice["num_fossilized"], &dice["steps"]), (&fixed["num_fossilized"], &off["steps"]), "{dice}");
        assert_eq!(fixed["num_fossilized"] == 0, epochs == "1", "{fixed}");
        assert_eq!(dice["test_loss"] == off["test_loss"], epochs == "1", "the host alone: {dice}");
        assert!(dice.get("num_confirmations").is_none() && dice["origin"] != fixed["origin"], "{dice}");
        before.push((dice["test_loss"].clone(), dice["parameters"].clone()));
        let (_, told) = done(dir.path(), &more);
        assert_eq!(told.matches("% test accuracy").count(), 0, "{told}");
    }
    assert_eq!(before[1], before[2]);
}

#[test]
fn arms_that_would_stop_early_by_different_samples_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let output = study(dir.path(), &["--set", "train.early_stop.patience=3"]).output().unwrap();
    let (_, told) = text(&output);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("--set train.early_stop.patience=3: `train.early_stop` "), "{told}");
    assert!(told.contains("expected no such key in a study"), "{told}");
}

#[test]
fn the_validation_score_of_a_run_that_ends_inside_an_epoch_is_that_of_its_end() {
    let dir = tempfile::tempdir().unwrap();
    done(dir.path(), &ONE);
    let whole = runs(dir.path())[0]["steps"].as_u64().unwrap();
    let ends = |steps: u64, policies: &str| {
        let max_steps = format!("run.max_steps={steps}");
        let set = ["--set", "run.epochs=2", "--set", &max_steps];
        done(dir.path(), &[&["--policies", policies, "--seeds", "1"][..], &set].concat()).0
    };
    // Inside the first epoch, of which no report comes.
    let table = ends(1, "sweep,off");
    assert!(table.contains("| digits | sweep |"), "{table}");
    // And inside the second one, where the report of the first one is of another network.
    let mut losses = Vec::new();
    for steps in [1, whole, whole + 3] {
        ends(steps, "off");
        let all = runs(dir.path());
        let of = |run: &&Value| {
            run["policy"] == "off" && run["steps"] == steps && run["set"].to_string().contains("max_steps")
        };
        losses.push(all.iter().find(of).unwrap()["validation"][1].as_f64().unwrap());
    }
    assert!(losses[0] > losses[1] && losses[1] > losses[2], "{losses:?}");
}

const ONE: [&str; 6] = ["--policies", "off", "--seeds", "1", "--set", "run.epochs=1"];

#[test]
fn runs_of_other_arms_stay_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    for more in [
        &["--first-seed", "0"][..],
        &["--first-seed", "1"],
        &["--first-seed", "0", "--set", "train.batch.batch_size=16"],
    ] {
        let (table, told) = done(dir.path(), &[&ONE, more].concat());
        assert!(table.contains("| digits | off | 1 |"), "{table}");
        assert_eq!(told.matches("% test accuracy").count(), 1, "{told}");
    }
    let seeds = || runs(dir.path()).iter().map(|run| run["seed"].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(seeds(), [0, 1, 0]);
    // Nothing is left to train, and nothing is lost.
    let (_, told) = done(dir.path(), &ONE);
    assert_eq!((told.matches("% test accuracy").count(), seeds().len()), (0, 3), "{told}");
}

#[test]
fn a_file_that_cannot_be_read_is_refused_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    for content in [&b"[\xff\xfe]"[..], b"[{}]", b"{"] {
        std::fs::write(dir.path().join("runs.json"), content).unwrap();
        let output = study(dir.path(), &ONE).output().unwrap();
        let (_, told) = text(&output);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains("--out runs.json"), "{told}");
        assert_eq!(std::fs::read(dir.path().join("runs.json")).unwrap(), content);
    }
}

#[test]
fn a_run_of_another_build_other_settings_or_unknown_origin_is_trained_again_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    done(dir.path(), &ONE);
    let first = runs(dir.path()).remove(0);
    let write = |run: &Value| std::fs::write(dir.path().join("runs.json"), format!("[{run}]")).unwrap();
    let mut same = first.clone();
    same["test_accuracy"] = 0.1234.into();
    write(&same);
    let (table, told) = done(dir.path(), &ONE);
    assert!(table.contains("| 12.34 % |") && !told.contains("again"), "{table}{told}");
    for key in ["build", "config", "data", ""] {
        let mut other = same.clone();
        other["later"] = "unknown to this version".into();
        match key {
            "" => drop(other.as_object_mut().unwrap().remove("origin")),
            key => other["origin"][key] = "another".into(),
        }
        write(&other);
        let (table, told) = done(dir.path(), &ONE);
        assert!(!table.contains("12.34"), "{key}: {table}");
        assert_eq!(told.matches("trained again").count(), 1, "{key}: {told}");
        // The time that it took is another.
        let mut found = runs(dir.path());
        assert!(found[1]["seconds"].take().is_f64(), "{key}");
        let mut again = first.clone();
        again["seconds"].take();
        assert_eq!(found, [other, again], "{key}");
    }
}

#[test]
fn a_run_on_data_that_were_changed_since_is_trained_again() {
    let dir = tempfile::tempdir().unwrap();
    let write = |shift: usize| {
        let rows = (0..90).map(|i| format!("{},{},{}\n", i % 7, (i * 5 + shift) % 11, ["a", "b"][i % 2]));
        std::fs::write(dir.path().join("t.csv"), format!("x,y,label\n{}", rows.collect::<String>())).unwrap();
    };
    let args = [&ONE[..], &["--data", "t.csv"]].concat();
    for (shift, num_trained) in [(0, 1), (0, 0), (1, 1), (0, 0)] {
        write(shift);
        let (_, told) = done(dir.path(), &args);
        assert_eq!(told.matches("% test accuracy").count(), num_trained, "{shift}: {told}");
    }
    assert_eq!(runs(dir.path()).len(), 2);
}

#[test]
fn a_study_tells_what_was_tried_and_why_nothing_could_be_confirmed() {
    let dir = tempfile::tempdir().unwrap();
    let rows = (0..90).map(|i| format!("{},{},{}\n", i % 7, (i * 5) % 11, ["a", "b"][i % 2]));
    std::fs::write(dir.path().join("t.csv"), format!("x,y,label\n{}", rows.collect::<String>())).unwrap();
    let args = ["--policies", "fixed", "--data", "digits,t.csv", "--seeds", "1", "--set", "run.epochs=3"];
    let (table, _) = done(dir.path(), &[&args[..], &["--result", "."]].concat());
    let runs = runs(dir.path());
    let (digits, few) = (&runs[0], &runs[1]);
    assert!(digits["num_germinated"].as_u64() > Some(0) && digits["num_confirmations"] == 0, "{digits}");
    assert!(digits.get("unconfirmable").is_none(), "{digits}");
    let why = few["unconfirmable"].as_str().unwrap_or_default();
    assert!(why.contains("the smallest that matters needs "), "{few}");
    assert!(
        table.contains("seeds germinated") && table.contains("confirmations read") && table.contains(why),
        "{table}"
    );
    let result: Value = serde_json::from_slice(&std::fs::read(dir.path().join("study-0.json")).unwrap()).unwrap();
    assert_eq!(result["config"]["t.csv.fixed.unconfirmable"], format!("1 run: {why}"), "{result}");
    assert_eq!(result["measurements"]["digits.fixed.confirmations"]["median"], 0.0, "{result}");
}

#[test]
fn what_each_confirmation_found_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let ask = ["--set", "seeds.gates.require_gain=false", "--set", "run.epochs=8"];
    done(dir.path(), &[&["--policies", "fixed", "--seeds", "2", "--result", "."][..], &ask].concat());
    let found: Vec<f64> = runs(dir.path()).iter().map(|run| run["p_values"][0].as_f64().unwrap()).collect();
    let result: Value = serde_json::from_slice(&std::fs::read(dir.path().join("study-0.json")).unwrap()).unwrap();
    let value = |what: &str| result["measurements"][format!("digits.fixed.{what}")].clone();
    assert_eq!(value("confirmations")["median"], 2.0, "{result}");
    let [least, most] = ["min", "max"].map(|end| value("confirmations.p")[end].as_f64().unwrap());
    assert_eq!((least, most), (found[0].min(found[1]), found[0].max(found[1])), "{found:?}");
    let at_most = |level: f64| found.iter().filter(|p| **p <= level).count() as f64;
    assert_eq!(value("confirmations.at_most_5")["median"], at_most(0.05), "{found:?}");
    assert_eq!(value("confirmations.at_most_50")["median"], at_most(0.5), "{found:?}");
}

#[test]
fn intervals_hold_for_all_comparisons_of_a_call_together_and_the_table_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--policies", "fixed,heuristic,off", "--seeds", "2", "--set", "run.epochs=1"];
    let (table, _) = done(dir.path(), &[&args[..], &["--result", "."]].concat());
    assert!(table.contains("95 % interval of each, of all 3 together"), "{table}");
    let result: Value = serde_json::from_slice(&std::fs::read(dir.path().join("study-0.json")).unwrap()).unwrap();
    let value = |name: &str| result["measurements"][format!("digits.fixed.{name}")]["median"].as_f64().unwrap();
    // Both with the last, and the first with the other.
    assert_eq!(result["config"]["comparisons"], "3");
    for outcome in ["difference", "loss_difference"] {
        let [mean, single, all] = ["", ".high", ".high_of_all"].map(|end| value(&format!("{outcome}{end}")));
        // t(1 − 0.025 / 3, 1) / t(0.975, 1)
        assert!(((all - mean) - 38.188_459 / 12.706_205 * (single - mean)).abs() < 1e-5, "{mean} {single} {all}");
    }
}

fn run_of<'a>(all: &'a [Value], policy: &str) -> &'a Value {
    all.iter().find(|run| run["policy"] == policy).unwrap_or_else(|| panic!("no {policy}"))
}

fn operations(run: &Value) -> u64 {
    ["training", "evaluation", "looking"].iter().map(|of| run["operations"][of].as_u64().unwrap()).sum()
}

/// digits: 1 079 samples to train on, 359 to validate; the host is 64 → 6 → 10.
#[test]
fn operations_are_those_of_a_count_by_hand() {
    let dir = tempfile::tempdir().unwrap();
    done(dir.path(), &["--policies", "off", "--seeds", "1", "--set", "run.epochs=2"]);
    let counted = &runs(dir.path())[0]["operations"];
    // Forward and the gradient of the weight; in the second layer that of the input, too.
    let per_sample = 2 * 64 * 6 * 2 + 2 * 6 * 10 * 3;
    assert_eq!(counted["training"], 2 * 1079 * per_sample, "{counted}");
    assert_eq!(counted["evaluation"], 2 * 359 * 2 * (64 * 6 + 6 * 10), "{counted}");
    assert_eq!(counted["looking"], 0, "{counted}");
}

/// R-51: by default, on a host that a seed costs many times of, and with a seed that costs still more.
#[test]
fn looking_takes_at_most_a_fifth_of_a_run() {
    for width in ["12", "64"] {
        let dir = tempfile::tempdir().unwrap();
        let width = format!("seeds.seed_width={width}");
        done(dir.path(), &["--policies", "heuristic", "--seeds", "1", "--set", "run.epochs=60", "--set", &width]);
        let run = &runs(dir.path())[0];
        let share = run["operations"]["looking"].as_f64().unwrap() / operations(run) as f64;
        assert!(share > 0.0 && share <= 0.2, "{share}: {run}");
    }
}

#[test]
fn networks_from_scratch_cost_as_much_as_the_one_that_was_grown_where_they_are_to() {
    let dir = tempfile::tempdir().unwrap();
    let policies = "fixed,scratch,scratch-flops,scratch-seconds,off";
    let args = ["--policies", policies, "--seeds", "1", "--set", "run.epochs=40", "--jobs", "2", "--result", "."];
    let (table, _) = done(dir.path(), &args);
    let all = runs(dir.path());
    let [fixed, scratch, equal] = ["fixed", "scratch", "scratch-flops"].map(|policy| run_of(&all, policy));
    assert!(fixed["operations"]["looking"].as_u64() > Some(0) && scratch["operations"]["looking"] == 0, "{fixed}");
    assert_eq!(equal["parameters"], scratch["parameters"]);
    let share = |run: &Value, other: &Value| operations(run) as f64 / operations(other) as f64;
    // Within a step, and the evaluation of an epoch that may have begun.
    assert!((share(equal, fixed) - 1.0).abs() < 0.02, "{equal}, {fixed}");
    let steps = |run: &Value| run["steps"].as_f64().unwrap();
    let seconds = |run: &Value| run["seconds"].as_f64().unwrap();
    let wanted = (steps(scratch) * seconds(fixed) / seconds(scratch)).round();
    assert!((steps(run_of(&all, "scratch-seconds")) - wanted).abs() < 0.5, "{wanted}");
    assert!(table.contains("| data | `fixed` beside |") && table.contains("| digits | scratch-flops | "), "{table}");
    let result: Value = serde_json::from_slice(&std::fs::read(dir.path().join("study-0.json")).unwrap()).unwrap();
    let told = &result["measurements"]["digits.fixed.over.scratch.operations_share"]["median"];
    assert!((told.as_f64().unwrap() - 100.0 * share(fixed, scratch)).abs() < 1e-9, "{told}");
}

#[test]
fn a_sweep_is_the_width_that_is_best_on_validation_data_at_the_cost_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--policies", "sweep,off", "--seeds", "1", "--set", "run.epochs=2", "--result", "."];
    let (table, _) = done(dir.path(), &args);
    let all = runs(dir.path());
    let widths: Vec<&Value> = all.iter().filter(|run| run["policy"].as_str().unwrap().starts_with("sweep-")).collect();
    assert_eq!((widths.len(), all.len()), (5, 6));
    let accuracy = |run: &Value| run["validation"][0].as_f64().unwrap();
    let best = widths.iter().map(|run| accuracy(run)).fold(0.0, f64::max);
    let best = widths.iter().find(|run| accuracy(run) >= best).unwrap();
    let result: Value = serde_json::from_slice(&std::fs::read(dir.path().join("study-0.json")).unwrap()).unwrap();
    let value = |name: &str| result["measurements"][format!("digits.sweep.{name}")]["median"].as_f64().unwrap();
    assert!((value("test_accuracy.mean") - 100.0 * best["test_accuracy"].as_f64().unwrap()).abs() < 1e-9, "{table}");
    let is = |name: &str, expected: f64| assert!((value(name) - expected).abs() < 0.5, "{name}: {expected}");
    is("operations", widths.iter().map(|run| operations(run)).sum::<u64>() as f64);
    is("parameters", best["parameters"].as_f64().unwrap());
    // Nothing is trained again.
    let (_, told) = done(dir.path(), &args);
    assert_eq!(told.matches("% test accuracy").count(), 0, "{told}");
}

#[test]
fn a_setting_with_the_name_of_a_data_set_is_for_that_one_alone() {
    let dir = tempfile::tempdir().unwrap();
    let rows = (0..90).map(|i| format!("{},{},{}\n", i % 7, (i * 5) % 11, ["a", "b"][i % 2]));
    std::fs::write(dir.path().join("t.csv"), format!("x,y,label\n{}", rows.collect::<String>())).unwrap();
    let set = ["--set", "run.epochs=1", "--set", "t.csv:host.mlp.hidden=[3]"];
    done(dir.path(), &[&["--policies", "off", "--seeds", "1", "--data", "digits,t.csv"][..], &set].concat());
    let all = runs(dir.path());
    assert_eq!(all[0]["parameters"], 64 * 6 + 6 + 6 * 10 + 10);
    assert_eq!(all[1]["parameters"], 2 * 3 + 3 + 3 * 2 + 2);
}

#[test]
fn arms_that_need_others_are_refused_without_them() {
    let dir = tempfile::tempdir().unwrap();
    for (policies, expected) in [
        ("scratch,off", "expected a policy before them"),
        ("noise,off", "expected a policy before them"),
        ("random-equal,off", "expected a policy before them"),
        ("untold,off", "expected a policy before them"),
        ("fixed,untold,off", "`untold` is `fixed` again, which does not read `policy.heuristic.earlier`"),
        ("heuristic,scratch-flops,off", "expected `scratch` too"),
        ("heuristic,sweep-4,off", "accepted: "),
    ] {
        let output = study(dir.path(), &["--policies", policies]).output().unwrap();
        let (_, told) = text(&output);
        assert!(output.status.code() == Some(2) && told.contains(expected), "{policies}: {told}");
    }
}

#[test]
fn a_name_that_is_there_twice_is_refused_for_its_runs_would_count_twice() {
    let dir = tempfile::tempdir().unwrap();
    for (flags, expected) in [
        (["--data", "digits,mnist1d,digits"], "--data: `digits` is there twice; expected each once"),
        (["--policies", "fixed,off,fixed"], "--policies: `fixed` is there twice; expected each once"),
    ] {
        let more = [&flags[..], &["--seeds", "2", "--set", "run.epochs=1"]].concat();
        let output = study(dir.path(), &more).output().unwrap();
        let (table, told) = text(&output);
        assert!(output.status.code() == Some(2) && told.contains(expected), "{flags:?}: {told}{table}");
    }
}

#[test]
fn where_nothing_but_noise_is_on_offer_no_seed_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let prefers = ["--set", r#"policy.heuristic.germination.blueprints=["norm_mlp"]"#];
    let args = ["--policies", "heuristic,noise,off", "--seeds", "1", "--set", "run.epochs=60"];
    done(dir.path(), &[&args[..], &prefers].concat());
    let all = runs(dir.path());
    let noise = run_of(&all, "noise");
    assert!(noise["num_germinated"].as_u64() > Some(0) && noise["num_fossilized"] == 0, "{noise}");
}

#[test]
fn untold_is_the_first_policy_without_what_earlier_runs_say() {
    let dir = tempfile::tempdir().unwrap();
    let row = |slot: &str, parameters: u64| {
        format!(r#"{{slot="{slot}",blueprint="mlp",parameters={parameters},grown=false,tries=20,kept=0}}"#)
    };
    let told = format!("policy.heuristic.earlier.tries=[{},{}]", row("input", 2128), row("hidden0", 214));
    done(dir.path(), &["--policies", "heuristic,untold,off", "--seeds", "1", "--set", "run.epochs=40", "--set", &told]);
    let all = runs(dir.path());
    let germinated = |policy: &str| run_of(&all, policy)["num_germinated"].as_u64();
    assert!(germinated("heuristic") == Some(0) && germinated("untold") > Some(0), "{all:?}");
    assert_eq!(run_of(&all, "heuristic")["test_loss"], run_of(&all, "off")["test_loss"]);
}
