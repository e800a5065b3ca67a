//! The report of a run with hundreds of seeds can still be read.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::fs;
use std::path::Path;

use esper::report::{Run, render_html, render_text};
use roxmltree::{Document, ParsingOptions};
use serde_json::{Value, json};

const NUM_SEEDS: u64 = 300;

/// A run in which one seed after the other is pruned in the epoch after its germination, but for one that stays.
fn crowd(dir: &Path) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/completed");
    for entry in fs::read_dir(fixture).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
    }
    let metrics = fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    let last: Value = serde_json::from_str(metrics.lines().last().unwrap()).unwrap();
    let epochs = (1..=3 * NUM_SEEDS).map(|epoch| {
        let seed = format!("seed-{}", epoch.div_ceil(3));
        let stage = ["germinated", "training", "pruned"][usize::try_from((epoch - 1) % 3).unwrap()];
        let mut seeds = vec![last["seeds"][1].clone(), last["seeds"][0].clone()];
        (seeds[0]["seed_id"], seeds[0]["stage"]) = (json!(seed), json!(stage));
        (seeds[1]["seed_id"], seeds[1]["slot"]) = (json!("seed-999"), json!("elsewhere"));
        let mut all = last.clone();
        all["epoch"] = json!(epoch);
        all["seeds"] = json!(seeds);
        all["conflict"] = Value::Null;
        if stage != "training" {
            all["transitions"] = json!([{"seed": seed, "from": "dormant", "to": stage, "reason": "schedule"}]);
        }
        format!("{all}\n")
    });
    fs::write(dir.join("metrics.jsonl"), epochs.collect::<String>()).unwrap();
}

#[test]
fn pruned_seeds_are_told_together_and_markers_stay_few() {
    let dir = tempfile::tempdir().unwrap();
    crowd(dir.path());
    let run = Run::read(dir.path()).unwrap();
    let page = render_html(&run).unwrap();
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let document = Document::parse_with_options(&page, options).unwrap();
    let classed = |id: &str, class: &str| {
        let part = document.descendants().find(|node| node.attribute("id") == Some(id)).unwrap();
        part.descendants()
            .filter(|node| node.attribute("class").is_some_and(|all| all.split(' ').any(|one| one == class)))
            .count()
    };
    assert_eq!(classed("lifecycle", "seed"), 2, "rows: the seed that stays, and those that do not");
    assert_eq!(classed("alpha", "line") - classed("alpha", "swatch"), 2, "lines of alphas");
    for chart in ["alpha", "loss", "accuracy"] {
        assert!((10..=24).contains(&classed(chart, "marker")), "{chart}: {} markers", classed(chart, "marker"));
    }
    assert!(page.contains("<summary>Pruned seeds (300)</summary>"), "their table is folded up");
    assert!(page.contains("seed-17: training from the end of epoch 50"), "each can be found");

    let text = render_text(&run);
    assert!(text.contains("300 pruned seeds are in the report") && text.lines().count() < 30, "{text}");
}
