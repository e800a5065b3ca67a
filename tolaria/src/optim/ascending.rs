//! Values of a map by names that ascend: each step asks for those of all parameters, which are in the order of their names (I-8).

use std::cmp::Ordering;
use std::iter::Peekable;

/// What is left of a map, from the last name that was asked for on.
pub(super) struct Ascending<I: Iterator>(Peekable<I>);

impl<'a, V, I: Iterator<Item = (&'a String, V)>> Ascending<I> {
    pub(super) fn new(map: impl IntoIterator<IntoIter = I>) -> Self {
        Self(map.into_iter().peekable())
    }

    /// The value of a name after all those that were asked for.
    pub(super) fn get(&mut self, name: &str) -> Option<V> {
        loop {
            match self.0.peek()?.0.as_str().cmp(name) {
                Ordering::Less => drop(self.0.next()),
                Ordering::Equal => return self.0.next().map(|(_, value)| value),
                Ordering::Greater => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn names_that_ascend_find_their_values_and_others_none() {
        let mut map: BTreeMap<String, u32> = ["b", "c", "e"].map(String::from).into_iter().zip(1..).collect();
        let mut of = Ascending::new(&map);
        assert_eq!(["a", "b", "d", "e", "f"].map(|name| of.get(name).copied()), [None, Some(1), None, Some(3), None]);
        let mut of = Ascending::new(&mut map);
        *of.get("c").unwrap() = 7;
        assert_eq!(map["c"], 7);
    }
}
