//! Artifacts that were fetched lately: least recently used go first, within a number of bytes and a time.

use std::collections::BTreeMap;
use std::time::Duration;

use leyline::id::BlueprintId;

use crate::artifact::Artifact;

/// Keeps artifacts under their own ids. What it lets go of is handed back, so that freeing it needs no lock.
#[derive(Debug)]
pub(crate) struct Cache {
    max_bytes: u64,
    ttl: Option<Duration>,
    entries: BTreeMap<BlueprintId, Entry>,
    /// Least recently used first.
    order: BTreeMap<u64, BlueprintId>,
    next_use: u64,
    num_bytes: u64,
    counts: CacheCounts,
}

#[derive(Debug)]
struct Entry {
    artifact: Artifact,
    inserted_at: Duration,
    last_use: u64,
}

/// Events since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CacheCounts {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// Displaced or expired; not those that were cleared.
    pub(crate) evictions: u64,
}

impl Cache {
    pub(crate) fn new(max_bytes: u64, ttl: Option<Duration>) -> Self {
        let (entries, order) = (BTreeMap::new(), BTreeMap::new());
        Self { max_bytes, ttl, entries, order, next_use: 0, num_bytes: 0, counts: CacheCounts::default() }
    }

    /// The artifact, now the most recently used one; an expired one is let go of.
    pub(crate) fn get(
        &mut self,
        blueprint: &BlueprintId,
        now: Duration,
        freed: &mut Vec<Artifact>,
    ) -> Option<Artifact> {
        let is_expired = self.entries.get(blueprint).is_some_and(|entry| self.is_expired(entry, now));
        if is_expired {
            self.evict(blueprint, freed);
        }
        let last_use = self.next_use;
        let Some(entry) = self.entries.get_mut(blueprint) else {
            self.counts.misses += 1;
            return None;
        };
        self.counts.hits += 1;
        self.next_use += 1;
        self.order.remove(&entry.last_use);
        self.order.insert(last_use, blueprint.clone());
        entry.last_use = last_use;
        Some(entry.artifact.clone())
    }

    /// Keeps the artifact under its own id, unless it alone is over the limit; others make room.
    pub(crate) fn insert(&mut self, artifact: Artifact, now: Duration, freed: &mut Vec<Artifact>) {
        if artifact.num_bytes() > self.max_bytes {
            freed.push(artifact);
            return;
        }
        freed.extend(self.remove(&artifact.blueprint().clone()));
        while self.num_bytes > self.max_bytes - artifact.num_bytes() {
            let (_, oldest) = self.order.first_key_value().expect("bytes are counted for entries only");
            self.evict(&oldest.clone(), freed);
        }
        let (blueprint, last_use) = (artifact.blueprint().clone(), self.next_use);
        self.next_use += 1;
        self.num_bytes += artifact.num_bytes();
        self.order.insert(last_use, blueprint.clone());
        self.entries.insert(blueprint, Entry { artifact, inserted_at: now, last_use });
    }

    /// Lets go of what is too old; how many.
    pub(crate) fn expire(&mut self, now: Duration, freed: &mut Vec<Artifact>) -> usize {
        let old: Vec<BlueprintId> =
            self.entries.iter().filter(|(_, e)| self.is_expired(e, now)).map(|(id, _)| id.clone()).collect();
        for blueprint in &old {
            self.evict(blueprint, freed);
        }
        old.len()
    }

    /// Lets go of everything; how many.
    pub(crate) fn clear(&mut self, freed: &mut Vec<Artifact>) -> usize {
        let num_entries = self.entries.len();
        freed.extend(std::mem::take(&mut self.entries).into_values().map(|entry| entry.artifact));
        self.order.clear();
        self.num_bytes = 0;
        num_entries
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn num_bytes(&self) -> u64 {
        self.num_bytes
    }

    pub(crate) fn counts(&self) -> CacheCounts {
        self.counts
    }

    /// What is kept, least recently used first. Counts as no use.
    pub(crate) fn artifacts(&self) -> Vec<Artifact> {
        self.order.values().map(|blueprint| self.entries[blueprint].artifact.clone()).collect()
    }

    fn is_expired(&self, entry: &Entry, now: Duration) -> bool {
        self.ttl.is_some_and(|ttl| now.saturating_sub(entry.inserted_at) >= ttl)
    }

    fn evict(&mut self, blueprint: &BlueprintId, freed: &mut Vec<Artifact>) {
        if let Some(artifact) = self.remove(blueprint) {
            self.counts.evictions += 1;
            freed.push(artifact);
        }
    }

    fn remove(&mut self, blueprint: &BlueprintId) -> Option<Artifact> {
        let entry = self.entries.remove(blueprint)?;
        self.order.remove(&entry.last_use);
        self.num_bytes -= entry.artifact.num_bytes();
        Some(entry.artifact)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::artifact::HostTensor;

    fn artifact(name: usize, num_values: usize) -> Artifact {
        let values = vec![0.5; num_values];
        let tensor = HostTensor { name: "w".into(), shape: vec![num_values], values };
        Artifact::from_tensors(BlueprintId::new(format!("b{name}")).unwrap(), &[tensor]).unwrap()
    }

    /// The rules once more, as a list in the order of use with nothing clever in it.
    struct Model {
        max_bytes: u64,
        ttl: Option<Duration>,
        entries: Vec<(Artifact, Duration)>,
        evictions: u64,
    }

    impl Model {
        fn expire(&mut self, now: Duration) {
            let before = self.entries.len();
            let ttl = self.ttl;
            self.entries.retain(|(_, since)| ttl.is_none_or(|ttl| now - *since < ttl));
            self.evictions += (before - self.entries.len()) as u64;
        }

        fn num_bytes(&self) -> u64 {
            self.entries.iter().map(|(artifact, _)| artifact.num_bytes()).sum()
        }

        fn get(&mut self, blueprint: &BlueprintId, now: Duration) -> Option<Artifact> {
            let at = self.entries.iter().position(|(artifact, _)| artifact.blueprint() == blueprint)?;
            let (artifact, since) = self.entries.remove(at);
            if self.ttl.is_some_and(|ttl| now - since >= ttl) {
                self.evictions += 1;
                return None;
            }
            self.entries.push((artifact.clone(), since));
            Some(artifact)
        }

        fn insert(&mut self, artifact: Artifact, now: Duration) {
            if artifact.num_bytes() > self.max_bytes {
                return;
            }
            self.entries.retain(|(kept, _)| kept.blueprint() != artifact.blueprint());
            self.entries.push((artifact, now));
            while self.num_bytes() > self.max_bytes {
                self.entries.remove(0);
                self.evictions += 1;
            }
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Get(usize),
        Insert(usize, usize),
        Expire,
        Clear,
        Pass(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..6_usize).prop_map(Step::Get),
            5 => (0..6_usize, 0..160_usize).prop_map(|(name, size)| Step::Insert(name, size)),
            1 => Just(Step::Expire),
            1 => Just(Step::Clear),
            2 => (0..40_u64).prop_map(Step::Pass),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn it_keeps_what_a_list_in_the_order_of_use_keeps(
            max_bytes in 0..2_000_u64,
            ttl_s in proptest::option::of(1..60_u64),
            steps in proptest::collection::vec(step(), 1..60),
        ) {
            let ttl = ttl_s.map(Duration::from_secs);
            let mut cache = Cache::new(max_bytes, ttl);
            let mut model = Model { max_bytes, ttl, entries: Vec::new(), evictions: 0 };
            let (mut now, mut freed) = (Duration::ZERO, Vec::new());
            let (mut lookups, mut hits) = (0, 0);
            for step in steps {
                match step {
                    Step::Get(name) => {
                        let blueprint = BlueprintId::new(format!("b{name}")).unwrap();
                        let found = cache.get(&blueprint, now, &mut freed);
                        lookups += 1;
                        hits += u64::from(found.is_some());
                        prop_assert_eq!(found, model.get(&blueprint, now));
                    }
                    Step::Insert(name, size) => {
                        cache.insert(artifact(name, size), now, &mut freed);
                        model.insert(artifact(name, size), now);
                    }
                    Step::Expire => {
                        let before = model.entries.len();
                        model.expire(now);
                        prop_assert_eq!(cache.expire(now, &mut freed), before - model.entries.len());
                    }
                    Step::Clear => prop_assert_eq!(cache.clear(&mut freed), std::mem::take(&mut model.entries).len()),
                    Step::Pass(seconds) => now += Duration::from_secs(seconds),
                }
                let kept: Vec<Artifact> = model.entries.iter().map(|(artifact, _)| artifact.clone()).collect();
                prop_assert_eq!(cache.artifacts(), kept, "in the order of use");
                prop_assert_eq!(cache.num_bytes(), model.num_bytes());
                prop_assert!(cache.num_bytes() <= max_bytes);
                prop_assert_eq!(cache.counts(), CacheCounts { hits, misses: lookups - hits, evictions: model.evictions });
            }
        }
    }

    #[test]
    fn an_artifact_over_the_limit_displaces_nothing() {
        let small = artifact(0, 1);
        let mut cache = Cache::new(small.num_bytes(), None);
        let mut freed = Vec::new();
        cache.insert(small.clone(), Duration::ZERO, &mut freed);
        cache.insert(artifact(1, 1_000), Duration::ZERO, &mut freed);
        assert_eq!((cache.artifacts(), freed.len()), (vec![small], 1));
    }

    #[test]
    fn using_an_artifact_does_not_renew_its_time() {
        let mut cache = Cache::new(1 << 20, Some(Duration::from_secs(10)));
        let (kept, mut freed) = (artifact(0, 1), Vec::new());
        cache.insert(kept.clone(), Duration::ZERO, &mut freed);
        let just_before = Duration::from_secs(10) - Duration::from_nanos(1);
        assert_eq!(cache.get(kept.blueprint(), just_before, &mut freed), Some(kept.clone()));
        assert_eq!(cache.get(kept.blueprint(), Duration::from_secs(10), &mut freed), None);
        assert_eq!((freed, cache.len(), cache.num_bytes()), (vec![kept], 0, 0));
    }
}
