//! What a server says unasked, beside what the model does.

use super::*;

impl Pair {
    /// Who is told of what: the same as the models say, but that a server may find out at any time
    /// that a key's time is over.
    pub(super) fn compare_pushes(&mut self) {
        let mut told: BTreeSet<(u64, String)> = BTreeSet::new();
        // What expires between two of these questions has been told to one and not yet to the other.
        let mut before = None;
        while before != Some(told.len()) {
            before = Some(told.len());
            for (place, connection) in self.connections.iter_mut().enumerate() {
                connection.ask(&[&["PING"]]);
                let keys = std::mem::take(&mut connection.pushed).into_iter().flatten();
                told.extend(keys.map(|key| (place as u64, key)));
            }
        }
        for one in &told {
            assert!(self.asked.remove(one), "{one:?} is told without having asked");
        }
        let now = self.now();
        let mut expected = self.pushes_of_models();
        let keys = (0..3).flat_map(|key| ["", "quorlock:intent:"].map(|of| format!("{of}k{key}")));
        for key in keys {
            let key: Key = key.into();
            let of_key = |set: &BTreeSet<(u64, String)>| {
                set.iter().filter(|(_, of)| **of == *key).cloned().collect::<BTreeSet<_>>()
            };
            // Who finds a key expired is not told; but the server may have found it before.
            let finder: BTreeSet<_> = [(self.last_by, key.to_string())].into();
            let fits = |told: &BTreeSet<_>, expected: &BTreeSet<_>| {
                told.is_superset(expected) && (told - expected).is_subset(&finder)
            };
            let gone = self.early.stored(&key, now).is_none();
            let same = of_key(&told) == of_key(&expected);
            if !same && (gone || !fits(&of_key(&told), &of_key(&expected))) {
                // The server has found it expired before anybody asked.
                assert!(gone, "{key} is there: told {told:?}, expected {expected:?}");
                if !of_key(&told).is_empty() {
                    self.forget(&key, now);
                }
                expected.extend(self.pushes_of_models());
                let (told, expected) = (of_key(&told), of_key(&expected));
                let is_late = (&told - &expected).is_subset(&self.looked);
                assert!(
                    is_late || told.is_empty() || fits(&told, &expected),
                    "{told:?}, {expected:?}"
                );
            }
        }
        self.seen.pushes += told.len();
    }

    pub(super) fn pushes_of_models(&mut self) -> BTreeSet<(u64, String)> {
        let both = [&mut self.early, &mut self.late];
        let pushes = both.into_iter().flat_map(ModelNode::take_pushes);
        pushes.map(|(ConnectionId(by), key)| (by, key.to_string())).collect()
    }
}
