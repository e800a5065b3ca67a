//! An order that things can be moved in.

use crate::compile::work::did;

/// Distance of labels of neighbors that were not moved: 2²³ of them have room.
const DISTANCE: u64 = 1 << 40;
/// What stays free on the other side of what is put between two others, as a multiple of what it takes on this side.
const ROOM: u64 = 1 << 10;

/// Things by number, one after the other. Which of two comes first is told by labels, which leave room between them.
#[derive(Debug, Default)]
pub(super) struct Line {
    labels: Vec<u64>,
    before: Vec<Option<usize>>,
    after: Vec<Option<usize>>,
    last: Option<usize>,
}

impl Line {
    /// Puts the thing with the next number at the end.
    pub(super) fn push(&mut self) {
        let thing = self.labels.len();
        let label = self.last.map_or(0, |last| self.labels[last]) + DISTANCE;
        self.labels.push(label);
        self.before.push(self.last);
        self.after.push(None);
        if let Some(last) = self.last {
            self.after[last] = Some(thing);
        }
        self.last = Some(thing);
        did(1);
    }

    pub(super) fn is_before(&self, one: usize, other: usize) -> bool {
        self.labels[one] < self.labels[other]
    }

    /// Grows from the first to the last; valid until something is put in.
    pub(super) fn label(&self, thing: usize) -> u64 {
        self.labels[thing]
    }

    /// Takes a thing out.
    pub(super) fn remove(&mut self, thing: usize) {
        let (before, after) = (self.before[thing].take(), self.after[thing].take());
        if let Some(before) = before {
            self.after[before] = after;
        }
        match after {
            Some(after) => self.before[after] = before,
            None => self.last = before,
        }
    }

    /// Puts a thing that was taken out before another one.
    pub(super) fn insert_before(&mut self, next: usize, thing: usize) {
        let before = self.before[next];
        let free = |line: &Self| line.labels[next] - before.map_or(0, |before| line.labels[before]);
        if free(self) < 2 {
            self.relabel(next);
        }
        // Near the one before it: more may come to stand before the same one.
        self.labels[thing] = before.map_or(0, |before| self.labels[before]) + (free(self) / ROOM).max(1);
        (self.before[thing], self.after[thing]) = (before, Some(next));
        self.before[next] = Some(thing);
        if let Some(before) = before {
            self.after[before] = Some(thing);
        }
        did(1);
    }

    /// Spreads the labels again.
    fn relabel(&mut self, any: usize) {
        let mut next = Some(any);
        while let Some(before) = next.and_then(|thing| self.before[thing]) {
            next = Some(before);
        }
        let mut label = 0;
        while let Some(thing) = next {
            label += DISTANCE;
            self.labels[thing] = label;
            did(1);
            next = self.after[thing];
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn things_stand_where_they_were_put(moves in prop::collection::vec((0..12_usize, 0..12_usize), 0..80), twice in 0..200_usize) {
            let mut line = Line::default();
            (0..12).for_each(|_| line.push());
            let mut list: Vec<usize> = (0..12).collect();
            // Again and again before the same one, so that labels run out.
            for (thing, next) in moves.into_iter().chain((0..twice).map(|round| (round % 11, 11))) {
                if thing == next {
                    continue;
                }
                line.remove(thing);
                line.insert_before(next, thing);
                list.retain(|other| *other != thing);
                let place = list.iter().position(|other| *other == next).unwrap();
                list.insert(place, thing);
                prop_assert!(list.windows(2).all(|pair| line.is_before(pair[0], pair[1])), "{list:?}");
            }
        }

        #[test]
        fn labels_that_run_out_are_given_again(rounds in 1..400_usize) {
            let mut line = Line::default();
            (0..3).for_each(|_| line.push());
            // Each time between the two that stand closest.
            for round in 0..rounds {
                let (one, other) = ([0, 1][round % 2], [1, 0][round % 2]);
                line.remove(one);
                line.insert_before(other, one);
                prop_assert!(line.is_before(one, other) && line.is_before(other, 2));
            }
        }
    }
}
