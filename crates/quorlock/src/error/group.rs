//! Lists that show nodes with the same answer in one entry.

/// Groups nodes by their answers, in the order of each group's first node. A group has the names of the nodes with the
/// same answer, and the answer of its first node. Errors and the command line list nodes with this function.
pub fn group<N, T>(
    nodes: impl IntoIterator<Item = (N, T)>,
    is_same: impl Fn(&T, &T) -> bool,
) -> Vec<(Vec<N>, T)> {
    let mut groups: Vec<(Vec<N>, T)> = Vec::new();
    for (node, said) in nodes {
        match groups.iter_mut().find(|(_, other)| is_same(other, &said)) {
            Some((nodes, _)) => nodes.push(node),
            None => groups.push((vec![node], said)),
        }
    }
    groups
}

/// Names nodes in a message: `node a`, or `nodes a, b`.
pub fn names<N: AsRef<str>>(nodes: &[N]) -> String {
    let plural = if nodes.len() == 1 { "" } else { "s" };
    let names: Vec<&str> = nodes.iter().map(AsRef::as_ref).collect();
    format!("node{plural} {}", names.join(", "))
}
