//! Values in the order of their numbers: new ones are added at the end, most are removed at the front, any may be.

use std::collections::VecDeque;

/// A map whose keys only rise. A removal from the middle leaves a gap, until there are more gaps than values.
#[derive(Debug)]
pub(super) struct NumberMap<T> {
    /// The first is no gap.
    slots: VecDeque<(u64, Option<T>)>,
    len: usize,
}

// === impl Line ===

impl<T> Default for NumberMap<T> {
    fn default() -> Self {
        Self {
            slots: VecDeque::new(),
            len: 0,
        }
    }
}

impl<T> NumberMap<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `number` is higher than all before.
    pub(super) fn push(&mut self, number: u64, value: T) {
        self.slots.push_back((number, Some(value)));
        self.len += 1;
    }

    pub(super) fn first(&self) -> Option<(u64, &T)> {
        self.iter().next()
    }

    pub(super) fn get(&self, number: u64) -> Option<&T> {
        self.slots[self.at(number)?].1.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let at = self.at(number)?;
        self.slots[at].1.as_mut()
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let at = self.at(number)?;
        let value = self.slots[at].1.take()?;
        self.close_gaps();
        Some(value)
    }

    pub(super) fn pop_first(&mut self) -> Option<(u64, T)> {
        let (number, value) = self.slots.pop_front()?;
        self.close_gaps();
        Some((number, value?))
    }

    /// In order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let slots = self.slots.iter();
        slots.filter_map(|(number, value)| Some((*number, value.as_ref()?)))
    }

    /// The values with this number and above, in order.
    pub(super) fn iter_mut_from(&mut self, number: u64) -> impl Iterator<Item = (u64, &mut T)> {
        let from = self.slots.partition_point(|(n, _)| *n < number);
        let slots = self.slots.range_mut(from..);
        slots.filter_map(|(number, value)| Some((*number, value.as_mut()?)))
    }

    /// Whether there is a value with this number or above.
    pub(super) fn reaches(&self, number: u64) -> bool {
        let last = self.slots.iter().rev().find(|(_, value)| value.is_some());
        last.is_some_and(|(last, _)| *last >= number)
    }

    fn at(&self, number: u64) -> Option<usize> {
        self.slots.binary_search_by_key(&number, |(n, _)| *n).ok()
    }

    /// A value was removed.
    fn close_gaps(&mut self) {
        self.len -= 1;
        while let Some((_, None)) = self.slots.front() {
            self.slots.pop_front();
        }
        if self.slots.len() > 2 * self.len + 64 {
            self.slots.retain(|(_, value)| value.is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn it_is_a_map_by_number(steps in proptest::collection::vec((0_u8..4, any::<prop::sample::Index>()), 0..600)) {
            let (mut numbers, mut map) = (NumberMap::default(), BTreeMap::new());
            for (number, (what, which)) in steps.into_iter().enumerate() {
                let number = number as u64;
                let some = *which.get(&(0..=number).collect::<Vec<_>>());
                match what {
                    0 | 1 => {
                        numbers.push(number, number);
                        map.insert(number, number);
                    }
                    2 => prop_assert_eq!(numbers.remove(some), map.remove(&some)),
                    _ => prop_assert_eq!(numbers.pop_first(), map.pop_first()),
                }
                prop_assert_eq!(numbers.get(some), map.get(&some));
                prop_assert_eq!(numbers.len(), map.len());
                prop_assert_eq!(numbers.reaches(some), map.range(some..).next().is_some());
                prop_assert_eq!(numbers.first(), map.first_key_value().map(|(n, v)| (*n, v)));
                prop_assert!(numbers.iter().eq(map.iter().map(|(n, v)| (*n, v))));
                let from: Vec<u64> = numbers.iter_mut_from(some).map(|(n, _)| n).collect();
                prop_assert!(from.iter().eq(map.range(some..).map(|(n, _)| n)));
                prop_assert!(numbers.slots.len() <= 2 * numbers.len() + 64, "no more gaps than values");
            }
        }
    }
}
